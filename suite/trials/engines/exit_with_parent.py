"""Ends the processes of a trial when the command that started them ends for any reason.

The engine starts a trial as the leader of a new session, with a pipe as its standard input. Only the engine's process
holds the write end of the pipe, and it never writes. An end-of-file therefore means that the engine has ended.

Two mechanisms are needed. Linux kills the trial itself as soon as its parent ends, but not the processes that the trial
has started, such as data loaders and compilers. A guardian process, forked here, waits for the end-of-file and kills
the whole process group. The guardian also works while the trial is in a long call that blocks all of its threads.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PARENT = "PDT_LIFELINE_PARENT"
"""Environment variable with the process id of the engine."""

_PR_SET_PDEATHSIG = 1


def watch_parent() -> None:
    """End this process, and every process that it starts, when the engine ends. Call this before torch starts threads.

    Nothing happens if no engine started this process. Processes that leave the process group (daemons) survive.

    Raises:
        RuntimeError: This process does not lead its process group. Killing the group would kill other processes.
    """
    parent = os.environ.pop(PARENT, None)
    if parent is None:
        return
    if os.getpgrp() != os.getpid():
        raise RuntimeError(f"{PARENT} is set, but process {os.getpid()} does not lead a process group")
    guardian = os.fork()
    if guardian == 0:
        _guard()
    # Processes that the trial starts must not read from the pipe, because they would wait for input.
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    if sys.platform == "linux" and not die_with(int(parent)):
        os.killpg(os.getpgrp(), signal.SIGKILL)


def die_with(parent: int) -> bool:
    """Ask the kernel to kill this process when the thread that started it ends (Linux only).

    Returns:
        Whether the parent is alive. If it ended before this call, the kernel does not kill this process.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    return os.getppid() == parent


def _guard() -> None:
    """Wait for the end-of-file, then kill the process group, which includes this process. Never returns."""
    try:
        # A copy of the trial's log and pipes in this process would keep them open.
        os.closerange(1, 256)
        while os.read(0, 1):
            pass
    finally:
        os.killpg(os.getpgrp(), signal.SIGKILL)
        os._exit(1)
