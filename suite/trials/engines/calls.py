"""Calls of functions in other processes: in a fork, whose memory is free again at its end, or with a trial's settings.

python -m suite.trials.engines.calls MODULE:FUNCTION PARENT < arguments.json
"""

from __future__ import annotations

import json
import multiprocessing
import os
import pkgutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from typing import Any, NamedTuple, TypeVar

from suite import registry
from suite.errors import UsageError
from suite.recipe import FLUSH
from suite.trials.process import die_with, environment

Result = TypeVar("Result")
PATIENCE_S = 1.0
"""Seconds in which an interrupted process ends."""


def forked(call: Callable[[], Result]) -> Result:
    """Return the result of `call`, computed in a forked process.

    torch takes hundreds of megabytes, which a command that waits for trials does not need. `call` runs in this process
    if torch is already imported, or if this process cannot be forked safely (it has threads, or is not on Linux).

    Args:
        call: Function whose result can be pickled.

    Raises:
        UsageError: `call` raised it.
        SystemExit: `call` raised another exception, and its traceback was printed.
    """
    if sys.platform != "linux" or "torch" in sys.modules or threading.active_count() > 1:
        return call()
    fork = multiprocessing.get_context("fork")
    reader, writer = fork.Pipe(duplex=False)
    process = fork.Process(target=_answer, args=(call, writer, os.getpid()))
    process.start()
    writer.close()
    try:
        result: Any = reader.recv()  # this program's own process wrote it
    except EOFError:
        result = SystemExit(1)
    except KeyboardInterrupt:
        # A terminal has interrupted the call too, and a killed call would leave the part of a file that it downloads.
        for number in (0, signal.SIGINT, signal.SIGKILL):
            if process.is_alive():
                os.kill(process.ident or 0, number)
                process.join(PATIENCE_S)
        raise
    process.join()
    if process.exitcode and process.exitcode < 0:
        print(f"pdt: planning was killed by signal {-process.exitcode}", file=sys.stderr)
    if isinstance(result, BaseException):
        raise result
    return result  # type: ignore[no-any-return]


def _answer(call: Callable[[], object], writer: Connection, parent: int) -> None:
    """Call the function in the forked process, and send its result."""
    if not die_with(parent):  # the call may take long, for example to fetch a data set
        return
    try:
        writer.send(call())
    except (UsageError, KeyboardInterrupt) as error:
        writer.send(error)


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
        arguments: Arguments by name; `device` is added.
        device: `cpu`, `cuda` or `cuda:N`.
        plugins: Plugin files to load first.
        threads: Number of threads that torch computes with; `None` for that of a trial that runs alone.
        arithmetic: Arithmetic of the trials whose times are compared (`TrialSpec.arithmetic`).

    Raises:
        RuntimeError: The function failed; the message has the last line of its output.
    """
    asked = {"arguments": {**arguments, "device": device}, "plugins": plugins, "arithmetic": arithmetic}
    variables = environment(1) | ({} if threads is None else {"OMP_NUM_THREADS": str(threads)})
    command = [sys.executable, "-P", "-m", "suite.trials.engines.calls", function, str(os.getpid())]
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
    facts = collect(asked["arguments"]["device"])
    hardware, busy = facts["hardware"], float(facts["busy_cores"])
    where = hardware.get("gpu") or f"{hardware['cpu']}, {hardware['threads']} threads"
    where = f"{where}; other programs kept {busy:.1f} cores busy as it began"
    value = pkgutil.resolve_name(sys.argv[1])(**asked["arguments"])
    print(json.dumps(SubprocessResult(value, where, busy)))


if __name__ == "__main__":
    main()
