"""The verb `check`: whether a method keeps the contracts that every method has to keep."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from suite import registry
from suite.choices import MethodChoice, ModelChoice, TaskChoice
from suite.cli.options import Parser, read_data_root
from suite.engine.cost.hardware import emulated_dtype
from suite.files import default_data_root
from suite.recipe import FLUSH
from suite.trials.planning import read_names
from suite.trials.spec import DTYPES

log = logging.getLogger(__name__)


def check(arguments: Sequence[str]) -> int:
    """Check a method, print one line per contract, and return 1 if a contract is broken, otherwise 0.

    Raises:
        UsageError: The user can correct an option or a plugin.
    """
    parser = Parser("check", description="Check that a method keeps the contract of suite/method.py.")
    parser.add_argument("method", metavar="METHOD", help="method, with parameters in brackets: sdgp[n=1,m=4]")
    parser.add_plugins(read=str)
    parser.add_argument("--task", metavar="TASK", default="digits", help="task to train on (default: digits)")
    parser.add_argument("--model", metavar="MODEL", default="", help="model to train (default: the task's model)")
    parser.add_argument("--data-root", metavar="DIR", type=read_data_root, help="folder of the data sets, as for run")
    about = "float32, bfloat16 or auto, as for run; methods are checked on the CPU (default: float32)"
    parser.add_argument("--dtype", metavar="TYPE", choices=DTYPES, default="float32", help=about)
    namespace = parser.read(arguments)
    if not namespace.plugin:
        read_names(namespace.method, "method", "check")

    # These import torch, which a wrong name should not cost.
    from suite.engine.cost.torch_hardware import use_arithmetic
    from suite.engine.network.model_files import EQUAL_STARTS
    from suite.engine.training import conformance
    from suite.trials.building import resolve_dtype

    use_arithmetic(FLUSH)  # before a plugin can make torch start threads
    for path in namespace.plugin:
        registry.load_plugin(path)
    dtype = resolve_dtype(namespace.dtype, "cpu")
    if warning := emulated_dtype("cpu", dtype):
        log.warning("%s", warning)
    choice = MethodChoice.read(namespace.method)
    TaskChoice.read(namespace.task)
    if namespace.model:
        ModelChoice.read(namespace.model)
    data_root = namespace.data_root or read_data_root(default_data_root())
    subject = choice.name, choice.typed, namespace.task, namespace.model, data_root, dtype
    results = conformance.check(*subject)
    for result in results:
        line = f"{'ok    ' if result.passed else 'BROKEN'}  {result.name}"
        print(f"{line}: {result.message}" if result.message else line, flush=True)
        if result.place:
            print(f"        {result.place}", flush=True)
    if namespace.model and conformance.Subject(*subject).starts_alike():
        log.warning("%s: %s", namespace.model, EQUAL_STARTS)
    return 0 if all(result.passed for result in results) else 1
