"""Runs a compiler for a bounded time, with everything that it starts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass

# Leads a process group of its own, in which the compiler's driver and its passes (cc1plus, as, ld) run. Its standard
# input is a pipe that the starting process holds: the end-of-file says that this process is gone, however it ended.
_GUARD = """
import os, signal, subprocess, sys, threading

def watch():
    os.read(0, 1)
    os.killpg(0, signal.SIGKILL)

threading.Thread(target=watch, daemon=True).start()
try:
    status = subprocess.call(sys.argv[1:], stdin=subprocess.DEVNULL)
except OSError as error:
    sys.exit(f"error: {error}")
sys.stdout.flush()
os._exit(status if status >= 0 else 128 - status)
"""


@dataclass(frozen=True)
class Finished:
    """What a program left: its exit status (128 + N for signal N) and what it printed."""

    status: int
    output: str
    errors: str


def run(command: list[str], limit_s: float) -> Finished:
    """Runs a program; when the time is over, or this process ends, its whole process group is killed.

    Args:
        command: the program and its arguments.
        limit_s: seconds.

    Raises:
        TimeoutError: it did not end in time; nothing of it runs any more.
        OSError: it cannot be started.
    """
    # Files, not pipes: a pipe stays open as long as any descendant holds it.
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _GUARD, *command],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=errors,
            start_new_session=True,
        )
        assert process.stdin is not None
        with process.stdin:
            try:
                status = process.wait(timeout=limit_s)
            except BaseException as error:  # Ctrl-C too, which does not reach another session
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                if isinstance(error, subprocess.TimeoutExpired):
                    raise TimeoutError(f"{command[0]} was stopped after {limit_s:g} s") from None
                raise
        output.seek(0)
        errors.seek(0)
        return Finished(status, output.read().decode(errors="replace"), errors.read().decode(errors="replace"))
