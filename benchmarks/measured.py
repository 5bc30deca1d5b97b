"""What the programs that measure times share: the environment of a trial, and a file with what was measured."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from suite import files
from suite.recipe import FLUSH
from suite.trials.process import environment


def enter_trial_environment(before: Callable[[], object] = lambda: None) -> None:
    """Restart this program in the environment of a trial, with its allocator settings and threads; flush subnormals.

    Args:
        before: Called just before a restart.
    """
    wanted = environment(1)
    if any(os.environ.get(name) != value for name, value in wanted.items() if name != "PYTHONPATH"):
        before()
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], wanted)
    from suite.engine.cost.torch_hardware import use_arithmetic  # imports torch, which the restarted program does again

    use_arithmetic(FLUSH)  # before torch starts threads


class Results:
    """Ratios by name, printed as soon as they are measured, and written to a file with the provenance.

    Args:
        device: Device of the computation.
        path: The file; `None` for none.
    """

    def __init__(self, device: Any, path: Path | None) -> None:
        from suite.trials.provenance import collect

        self._path, self._found = path, {"results": {}, "provenance": collect(device)}
        print(f"{'':60} least median [95 %]              ms", flush=True)

    def add(self, name: str, ratio: Any, repeated: int = 1, **more: Any) -> None:
        """Add a ratio of two times.

        Args:
            name: What is compared with what.
            ratio: A `suite.engine.cost.interleaved.Ratio`.
            repeated: Number of repetitions in a measurement; times are those of one.
            more: Facts about the ratio, for the file.
        """
        first, second = ratio.first_s / repeated, ratio.second_s / repeated
        ratio = dataclasses.replace(ratio, first_s=first, second_s=second)
        print(f"{name:60} {ratio}  {1e3 * first:9.2f} / {1e3 * second:9.2f}", flush=True)
        self._found["results"][name] = {**dataclasses.asdict(ratio), **more}
        if self._path:
            files.write(self._path, json.dumps(self._found, indent=1) + "\n")
