"""What the verb `check` does once its options are read."""

from __future__ import annotations

import argparse
import logging

from suite import files, registry
from suite.choices import MethodChoice, ModelChoice
from suite.engine.cost.hardware import emulated_dtype
from suite.engine.network.model_files import EQUAL_STARTS
from suite.engine.training import conformance
from suite.errors import UsageError
from suite.recipe import FLUSH
from suite.subnormals import use_arithmetic
from suite.trials.devices import resolve_dtype
from suite.trials.planning import read_choices, read_names

log = logging.getLogger(__name__)


def check_method(namespace: argparse.Namespace) -> int:
    """Check the method of the options, and return the exit status of `check`.

    Raises:
        UsageError: The user can correct an option or a plugin.
    """
    use_arithmetic(FLUSH)  # before a plugin can make torch start threads
    for path in namespace.plugin:
        registry.load_plugin(path)
    read_names(namespace.method, "method", "check")
    dtype = resolve_dtype(namespace.dtype, "cpu")
    if warning := emulated_dtype("cpu", dtype):
        log.warning("%s", warning)
    choice = MethodChoice.read(namespace.method)
    read_names(namespace.task, "task", "--task")
    if namespace.model and len(read_choices(namespace.model, ModelChoice, "--model")) > 1:
        raise UsageError(f"--model '{namespace.model}': expected one model")
    data_root = files.read_path(namespace.data_root or files.default_data_root(), "--data-root")
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
