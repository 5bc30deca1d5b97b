"""Run a compiler and all of its child processes with a time limit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass

# A leader of a separate process group, in which the compiler driver and its passes (cc1plus, as, ld) run. The parent
# holds the pipe of its standard input, so an end-of-file means that the parent has ended, for whatever reason.
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
    """Exit status of a program (128 + N for signal N), and its output."""

    status: int
    output: str
    errors: str


def run(command: list[str], limit_s: float) -> Finished:
    """Run a program; kill its whole process group after the time limit, or when this process ends.

    Args:
        command: Program and arguments.
        limit_s: Time limit in seconds.

    Raises:
        TimeoutError: The program exceeded the limit. All of its processes have been killed.
        OSError: The program cannot be started.
    """
    # Files instead of pipes, because a pipe stays open as long as any descendant holds it.
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
            except BaseException as error:  # includes Ctrl-C, which does not reach another session
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                if isinstance(error, subprocess.TimeoutExpired):
                    raise TimeoutError(f"{command[0]} was stopped after {limit_s:g} s") from None
                raise
        output.seek(0)
        errors.seek(0)
        return Finished(status, output.read().decode(errors="replace"), errors.read().decode(errors="replace"))
