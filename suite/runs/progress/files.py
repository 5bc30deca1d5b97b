"""The files by which a trial reports its progress.

The trial writes two files in its folder: `progress.json`, replaced at most twice a second, and `epochs.jsonl`, with one
line per epoch. Errors in reading or writing progress do not affect a run.
"""

from __future__ import annotations

import contextlib
import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from suite import files

SMALLEST_INTERVAL = 0.5


@dataclass(frozen=True)
class Position:
    """Progress of a trial.

    Attributes:
        epoch: Epochs that are done.
        epochs: Epochs of the whole training.
        fraction: Fraction of the whole training that is done, in [0, 1].
        resumed_after: Epoch after which this attempt resumed; 0 if it started from the beginning.
    """

    epoch: int
    epochs: int
    fraction: float
    resumed_after: int = 0


class ProgressFile:
    """`progress.json`, written by the trial and read by the engine."""

    NAME = "progress.json"

    def __init__(self, folder: Path) -> None:
        self._path = folder / self.NAME
        self._next = 0.0
        self.resumed_after = 0

    def write(self, epoch: int, epochs: int, fraction: float) -> None:
        """Write the progress. Calls that follow too soon do nothing, so that this may be called at every step.

        The file is replaced atomically, but not flushed to disk. Errors, for example a full disk, are ignored.
        """
        now = time.monotonic()
        if now < self._next and fraction < 1:
            return
        self._next = now + SMALLEST_INTERVAL
        with contextlib.suppress(OSError):
            files.write(
                self._path, json.dumps(asdict(Position(epoch, epochs, fraction, self.resumed_after))), durable=False
            )

    def read(self) -> Position | None:
        """Return the progress; `None` before the trial wrote any."""
        try:
            found = Position(**json.loads(self._path.read_bytes()))
            return found if 0 <= found.fraction <= 1 else None
        except (OSError, ValueError, TypeError, RecursionError):
            return None


class EpochReader:
    """Reads the records that a trial appends to `epochs.jsonl` after this object was created."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "epochs.jsonl"
        self._offset = self._path.stat().st_size if self._path.is_file() else 0

    def read(self) -> list[dict[str, Any]]:
        """Return the records of all lines that were completed since the last call."""
        try:
            # A resumed trial cuts off what came after its checkpoint.
            self._offset = min(self._offset, self._path.stat().st_size)
            with open(self._path, "rb") as file:
                file.seek(self._offset)
                complete, newline, _ = file.read().rpartition(b"\n")
        except OSError:
            self._offset = 0  # the trial starts from the beginning, or its folder was removed
            return []
        self._offset += len(complete) + len(newline)
        found = []
        for line in complete.splitlines():
            try:
                record = json.loads(line)
            except (ValueError, RecursionError):
                continue  # the report names damaged lines
            if isinstance(record, dict):
                found.append(record)
        return found
