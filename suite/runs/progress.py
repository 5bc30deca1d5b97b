"""Progress of trials: how a trial reports it and how the terminal shows it.

The trial writes two files in its folder: `progress.json`, replaced at most twice a second, and `epochs.jsonl`, with one
line per epoch. Errors in reading or writing progress do not affect a run.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from suite import files
from suite.runs.spec import TrialSpec

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


class ProgressListener(Protocol):
    """Receives what happens while an engine runs trials."""

    def started(self, trial: TrialSpec) -> None: ...

    def position(self, trial: TrialSpec, position: Position) -> None: ...

    def epoch(self, trial: TrialSpec, record: dict[str, Any]) -> None: ...

    def ended(self, trial: TrialSpec, record: dict[str, Any], seconds: float) -> None: ...


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


def duration(seconds: float) -> str:
    """Return seconds as `3.2 s`, `2 min 10 s` or `1 h 5 min`."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def epoch_line(trial: TrialSpec, record: Mapping[str, Any], before: Mapping[str, Any] | None = None) -> str:
    """Return one line for an epoch, without the values that the record does not have.

    Args:
        trial: The trial.
        record: Record of the epoch.
        before: Record of an earlier epoch; the remaining time is estimated from the epochs since.
    """
    left = record.get("epochs_left")
    total = record.get("epoch", 0) + left if isinstance(left, int) else trial.recipe.get("epochs", "?")
    parts = [trial.trial_id, f"epoch {record.get('epoch', '?')}/{total}"]
    name = "accuracy" if "test_accuracy" in record else "validation accuracy"
    accuracy = record.get("test_accuracy", record.get("val_accuracy"))
    loss, seconds = record.get("train_loss"), record.get("train_time_s")
    if isinstance(loss, (int, float)):
        parts.append(f"loss {loss:.3f}")
    if isinstance(accuracy, (int, float)):
        parts.append(f"{name} {100 * accuracy:.2f} %")
    if isinstance(seconds, (int, float)):
        parts.append(duration(seconds))
    remaining = remaining_seconds(record, before)
    if remaining is not None:
        parts.append(f"about {duration(remaining)} left")
    return "  ".join(parts)


def remaining_seconds(record: Mapping[str, Any], before: Mapping[str, Any] | None = None) -> float | None:
    """Estimate the seconds that the remaining epochs will take; `None` if the record does not allow it.

    Training and evaluation count, compilation does not. An epoch is assumed to take as long as those since `before`,
    because the network may have become smaller; without `before`, as long as the mean of all epochs so far.
    """
    left, epoch, seconds = record.get("epochs_left"), record.get("epoch"), _spent(record)
    if not isinstance(left, int) or not isinstance(epoch, int) or seconds is None or left <= 0:
        return None
    earlier = before or {}
    first, already = earlier.get("epoch", 0), _spent(earlier) or 0.0
    if not isinstance(first, int) or not 0 <= first < epoch or seconds < already:
        return None
    return (seconds - already) / (epoch - first) * left


def _spent(record: Mapping[str, Any]) -> float | None:
    """Return the seconds of training and evaluation since the trial started."""
    times = [record.get(name) for name in ("train_time_s", "eval_time_s")]
    known = [float(time) for time in times if isinstance(time, (int, float))]
    return sum(known) if len(known) == len(times) else None


def ended_line(trial: TrialSpec, record: dict[str, Any], seconds: float) -> str:
    """Return one line on how a trial ended, from its `trial.json` and the seconds that its process took."""
    line = f"{trial.trial_id}  {record['status']} after {duration(seconds)}"
    if record.get("message"):
        return f"{line}: {record['message']}"
    result = record.get("result", {})
    training, evaluation, compilation = (result.get(f"{name}_time_s") for name in ("train", "eval", "compile"))
    rest = seconds - (training or 0.0) - (evaluation or 0.0) - (compilation or 0.0)
    if training is None or evaluation is None or rest < 0:
        return line  # a resumed trial: an earlier process did a part of it
    compiled = f"compilation {duration(compilation)}, " if compilation else ""
    parts = f"training {duration(training)}, evaluation {duration(evaluation)}, {compiled}"
    return f"{line}: {parts}start, files and inference speed {duration(rest)}"


class Lines:
    """Prints one line per epoch, for files and pipes."""

    def __init__(self, total: int, console: Console) -> None:
        self._total, self._begun, self._console = total, 0, console
        self._resumed: set[str] = set()
        self._before: dict[str, Mapping[str, Any]] = {}  # latest record of each trial

    def started(self, trial: TrialSpec) -> None:
        self._begun += 1
        self._print(f"{trial.trial_id}  trial {self._begun}/{self._total}: {trial.label}")

    def position(self, trial: TrialSpec, position: Position) -> None:
        """Print once where a resumed trial continues."""
        if position.resumed_after and trial.trial_id not in self._resumed:
            self._resumed.add(trial.trial_id)
            self._print(f"{trial.trial_id}  resumed after epoch {position.resumed_after}/{position.epochs}")

    def epoch(self, trial: TrialSpec, record: dict[str, Any]) -> None:
        self._print(epoch_line(trial, record, self._before.get(trial.trial_id)))
        self._before[trial.trial_id] = record

    def ended(self, trial: TrialSpec, record: dict[str, Any], seconds: float) -> None:
        self._before.pop(trial.trial_id, None)
        self._print(ended_line(trial, record, seconds))

    def __enter__(self) -> Lines:
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def _print(self, line: str) -> None:
        # Not printed with rich, which would wrap the line and read brackets as markup.
        print(line, file=self._console.file, flush=True)


class Bars:
    """Shows a bar per running trial with its remaining time, for terminals."""

    def __init__(self, total: int, console: Console) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[note]}"))
        self._progress = Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=console)
        self._total, self._begun = total, 0
        self._bars: dict[str, TaskID] = {}
        self._before: dict[str, Mapping[str, Any]] = {}  # latest record of each trial

    def started(self, trial: TrialSpec) -> None:
        self._begun += 1
        text = f"{self._begun}/{self._total} {trial.trial_id}"
        self._bars[trial.trial_id] = self._progress.add_task(text, total=1.0, note="")

    def position(self, trial: TrialSpec, position: Position) -> None:
        bar = self._bars[trial.trial_id]
        self._progress.update(bar, completed=position.fraction)
        if position.resumed_after and not self._progress.tasks[self._progress.task_ids.index(bar)].fields["note"]:
            self._progress.update(bar, note=f"resumed after epoch {position.resumed_after}/{position.epochs}")

    def epoch(self, trial: TrialSpec, record: dict[str, Any]) -> None:
        note = epoch_line(trial, record, self._before.get(trial.trial_id)).partition("  ")[2]
        self._before[trial.trial_id] = record
        self._progress.update(self._bars[trial.trial_id], note=note)

    def ended(self, trial: TrialSpec, record: dict[str, Any], seconds: float) -> None:
        self._before.pop(trial.trial_id, None)
        self._progress.remove_task(self._bars.pop(trial.trial_id))
        self._progress.console.print(ended_line(trial, record, seconds), markup=False, highlight=False)

    def __enter__(self) -> Bars:
        self._progress.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._progress.stop()


def listener_for(console: Console, total: int) -> Lines | Bars:
    """Return a listener that shows bars on a terminal and lines elsewhere."""
    return Bars(total, console) if console.is_terminal else Lines(total, console)
