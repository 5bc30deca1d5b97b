"""Call a function in a separate process with the allocator and threads of a trial, to compare its times with theirs.

python -m suite.trials.engines.subprocess_call MODULE:FUNCTION < arguments.json
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

from suite import registry
from suite.engine.cost.hardware import use_threads_of_environment
from suite.subnormals import FLUSH, use_arithmetic
from suite.trials.engines.exit_with_parent import PARENT, die_with
from suite.trials.engines.local import environment
from suite.trials.provenance import collect


class SubprocessResult(NamedTuple):
    """Result of `call_in_subprocess`.

    Attributes:
        value: The function's result.
        where: Hardware and threads, in one line.
        busy_cores: Number of cores that other programs used.
    """

    value: Any
    where: str
    busy_cores: float


def call_in_subprocess(
    function: str,
    arguments: Mapping[str, Any],
    device: str,
    plugins: tuple[str, ...] = (),
    threads: int | None = None,
    arithmetic: str = FLUSH,
) -> SubprocessResult:
    """Call a function in a new process and wait for its result. On Linux, the process ends with this one.

    Args:
        function: `module:name`. Its arguments and result must be plain data.
        arguments: Arguments by name; `device` is added.
        device: `cpu`, `cuda` or `cuda:N`.
        plugins: Plugin files to load first.
        threads: Threads that torch computes with; those of a trial that runs alone if `None`.
        arithmetic: That of the trials which the times are compared with (`TrialSpec.arithmetic`).

    Raises:
        RuntimeError: The function failed; the message has the last line of its output.
    """
    asked: dict[str, Any] = {"arguments": {**arguments, "device": device}, "plugins": plugins}
    asked |= {"arithmetic": arithmetic, "parent": os.getpid()}
    variables = environment(1) | ({} if threads is None else {"OMP_NUM_THREADS": str(threads)})
    done = subprocess.run(
        [sys.executable, "-P", "-m", "suite.trials.engines.subprocess_call", function],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        env={name: value for name, value in variables.items() if name != PARENT},  # no parent to end with
    )
    if done.returncode:
        raise RuntimeError(f"{function} failed: {(done.stderr.strip().splitlines() or ['no message'])[-1]}")
    return SubprocessResult(**json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    """Call the function that the command line names and print its result as the last line."""
    module, _, name = sys.argv[1].partition(":")
    asked = json.loads(sys.stdin.read())
    if sys.platform == "linux" and not die_with(asked["parent"]):
        os.kill(os.getpid(), signal.SIGKILL)
    use_arithmetic(asked["arithmetic"])  # before torch starts threads
    for plugin in asked["plugins"]:
        registry.load_plugin(plugin)
    use_threads_of_environment()
    facts = collect(asked["arguments"]["device"])
    hardware = facts["hardware"]
    on = hardware.get("gpu") or f"{hardware['cpu']}, {hardware['threads']} threads"
    where = f"{on}; other programs kept {facts['busy_cores']:.1f} cores busy as it began"
    busy = float(facts["busy_cores"])
    value = getattr(importlib.import_module(module), name)(**asked["arguments"])
    print(json.dumps({"value": value, "where": where, "busy_cores": busy}))


if __name__ == "__main__":
    main()
