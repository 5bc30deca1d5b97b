"""The environment of a trial for programs that measure times."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from suite.recipe import FLUSH
from suite.trials.engines.local import environment


def enter_trial_environment(before: Callable[[], object] = lambda: None) -> None:
    """Restart this program in the environment of a trial, with its allocator settings and threads; flush subnormals.

    Args:
        before: Called just before a restart.
    """
    wanted = environment(1)
    if any(os.environ.get(name) != value for name, value in wanted.items() if name != "PYTHONPATH"):
        before()
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], wanted)
    from suite.subnormals import use_arithmetic  # imports torch, which the restarted program does again

    use_arithmetic(FLUSH)  # before torch starts threads
