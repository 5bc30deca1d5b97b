"""Calls of functions in a forked process, whose memory is free again at its end."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from suite.errors import UsageError
from suite.trials.process import die_with

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
