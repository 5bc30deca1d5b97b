"""A trial's processes die with the command that started them, however it ends.

The engine starts a trial as the leader of a session of its own, with a pipe as its standard input. Only the engine's
process holds the pipe's write end, and never writes: the end-of-file says that the engine is gone, killed or not.

Two mechanisms, because each alone has a hole. Linux kills the trial itself at once when its parent dies, but not what
the trial has started (data loaders, compilers). A guardian, forked here, waits for the end-of-file and kills the whole
process group; it works where the trial is stuck in a long call and could not run a thread of its own.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PARENT = "PDT_LIFELINE_PARENT"
"""Variable in which the engine tells the trial its own process id."""

_PR_SET_PDEATHSIG = 1


def watch_parent() -> None:
    """Tie this process, and all it will start, to the engine. Call it first, before torch starts threads.

    Does nothing in a process that no engine started. Processes that leave the process group (daemons) escape.

    Raises:
        RuntimeError: if this process leads no process group: killing the group would reach others.
    """
    parent = os.environ.pop(PARENT, None)
    if parent is None:
        return
    if os.getpgrp() != os.getpid():
        raise RuntimeError(f"{PARENT} is set, but process {os.getpid()} does not lead a process group")
    guardian = os.fork()
    if guardian == 0:
        _guard()
    # What the trial starts must neither take the pipe's end-of-file for input nor wait for input that never comes.
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    if sys.platform == "linux" and not die_with(int(parent)):
        os.killpg(os.getpgrp(), signal.SIGKILL)


def die_with(parent: int) -> bool:
    """Ask the kernel to kill this process when the thread that started it ends; Linux.

    Returns:
        Whether the parent is alive. One that died before the request was made is never reported by the kernel.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    return os.getppid() == parent


def _guard() -> None:
    """Wait for the end-of-file and kill the group, this process included. Never returns."""
    try:
        # An open log or pipe of the trial must not outlive it in here.
        os.closerange(1, 256)
        while os.read(0, 1):
            pass
    finally:
        os.killpg(os.getpgrp(), signal.SIGKILL)
        os._exit(1)
