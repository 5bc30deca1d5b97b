"""Calls in a forked process. The memory of the process is free again when it ends."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from typing import TypeVar

from suite.errors import UsageError
from suite.trials.engines.exit_with_parent import die_with

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
    reader, writer = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        os.close(reader)
        if not die_with(parent):  # the call may take long, for example to fetch a data set
            os._exit(1)
        _answer(call, writer)
    os.close(writer)
    try:
        with os.fdopen(reader, "rb") as file:
            content = file.read()
    except BaseException:  # includes Ctrl-C
        import psutil  # `--help` needs none

        # A terminal has interrupted the call too, and a killed call would leave the part of a file that it downloads.
        process = psutil.Process(child)
        for number in (0, signal.SIGINT, signal.SIGKILL):
            process.send_signal(number)
            with contextlib.suppress(psutil.TimeoutExpired):
                process.wait(PATIENCE_S)
                break
        raise
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status in (130, -signal.SIGINT):
        raise KeyboardInterrupt
    if status:
        if status < 0:
            print(f"pdt: planning was killed by signal {-status}", file=sys.stderr)
        raise SystemExit(1)
    result = pickle.loads(content)  # safe: this program's own process wrote it
    if isinstance(result, UsageError):
        raise result
    return result


def _answer(call: Callable[[], object], writer: int) -> None:
    """Call the function, write its pickled result, and end this process."""
    status = 1
    try:
        result: object
        try:
            result = call()
        except UsageError as error:
            result = error
        with os.fdopen(writer, "wb") as file:
            pickle.dump(result, file)
        sys.stdout.flush()
        status = 0
    except KeyboardInterrupt:
        status = 130
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)
