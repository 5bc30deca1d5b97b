"""Calls of functions in a new process with a trial's settings, so that their times can be compared.

python -m suite.measure.calls MODULE:FUNCTION PARENT < arguments.json
"""

from __future__ import annotations

import json
import os
import pkgutil
import subprocess
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

from suite import registry
from suite.recipe import FLUSH
from suite.trials.process import die_with, environment


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
    """Call a function in a new process with a trial's allocator and threads, so that times can be compared.

    On Linux, the process ends with this one.

    Args:
        function: `module:name`. Its arguments and result must be plain data.
        arguments: Arguments by name.
        device: `cpu`, `cuda` or `cuda:N`, whose hardware the result names.
        plugins: Plugin files to load first.
        threads: Number of threads that torch computes with; `None` for that of a trial that runs alone.
        arithmetic: Arithmetic of the trials whose times are compared (`TrialSpec.arithmetic`).

    Raises:
        RuntimeError: The function failed; the message has the last line of its output.
    """
    asked = {"arguments": arguments, "device": device, "plugins": plugins, "arithmetic": arithmetic}
    variables = environment(1) | ({} if threads is None else {"OMP_NUM_THREADS": str(threads)})
    command = [sys.executable, "-P", "-m", "suite.measure.calls", function, str(os.getpid())]
    done = subprocess.run(command, input=json.dumps(asked), capture_output=True, text=True, env=variables)
    if done.returncode:
        raise RuntimeError(f"{function} failed: {(done.stderr.strip().splitlines() or ['no message'])[-1]}")
    return SubprocessResult(*json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    """Call the function that the command line names, and print a `SubprocessResult` as the last line."""
    if not die_with(int(sys.argv[2])):
        sys.exit(1)
    asked = json.loads(sys.stdin.read())
    # Only the new process imports torch.
    from suite.engine.cost.torch_hardware import use_arithmetic, use_threads_of_environment
    from suite.trials.provenance import collect

    use_arithmetic(asked["arithmetic"])  # before torch starts threads
    for plugin in asked["plugins"]:
        registry.load_plugin(plugin)
    use_threads_of_environment()
    facts = collect(asked["device"])
    hardware, busy = facts["hardware"], float(facts["busy_cores"])
    where = hardware.get("gpu") or f"{hardware['cpu']}, {hardware['threads']} threads"
    where = f"{where}; other programs kept {busy:.1f} cores busy as it began"
    value = pkgutil.resolve_name(sys.argv[1])(**asked["arguments"])
    print(json.dumps(SubprocessResult(value, where, busy)))


if __name__ == "__main__":
    main()
