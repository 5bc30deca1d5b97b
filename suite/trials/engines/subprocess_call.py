"""Calls of a function in a new process with a trial's allocator and threads, so that times can be compared."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

from suite.recipe import FLUSH
from suite.trials.engines.exit_with_parent import PARENT
from suite.trials.engines.local import environment


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
    """Call a function in a new process and wait for its result. On Linux, the process ends with this one.

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
    asked: dict[str, Any] = {"arguments": {**arguments, "device": device}, "plugins": plugins}
    asked |= {"arithmetic": arithmetic, "parent": os.getpid()}
    variables = environment(1) | ({} if threads is None else {"OMP_NUM_THREADS": str(threads)})
    done = subprocess.run(
        [sys.executable, "-P", "-m", "suite.trials.engines.called_process", function],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        env={name: value for name, value in variables.items() if name != PARENT},  # the process has no pipe to watch
    )
    if done.returncode:
        raise RuntimeError(f"{function} failed: {(done.stderr.strip().splitlines() or ['no message'])[-1]}")
    return SubprocessResult(**json.loads(done.stdout.splitlines()[-1]))
