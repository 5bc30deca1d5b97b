"""The environment of a trial for programs that measure times."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from suite.runs.engines.local import environment


def restart_in_trial_environment(before: Callable[[], object] = lambda: None) -> None:
    """Restart this program in the environment of a trial, with its allocator settings and threads.

    Args:
        before: Called just before a restart.
    """
    wanted = environment(1)
    if any(os.environ.get(name) != value for name, value in wanted.items() if name != "PYTHONPATH"):
        before()
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], wanted)
