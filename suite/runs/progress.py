"""What a trial says about how far it is, and how that is shown.

Between the processes stand two files in the trial's folder: `progress.json`, replaced at most twice a second, and
`epochs.jsonl`, one line an epoch. Neither is needed for anything else, so that showing progress cannot break a run.
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
    """`fraction` of the whole training that is done, in [0, 1]; `epoch` of `epochs` that ended."""

    epoch: int
    epochs: int
    fraction: float


class ProgressFile:
    """`progress.json`, written by the trial and read by the engine."""

    NAME = "progress.json"

    def __init__(self, folder: Path) -> None:
        self._path = folder / self.NAME
        self._next = 0.0

    def write(self, epoch: int, epochs: int, fraction: float) -> None:
        """Say where the trial is; calls that follow too soon do nothing, so that it may be called at every step.

        Atomic, but not flushed to the disk: after a power failure nobody asks. A disk that is full for a moment costs
        the bar a step, not the trial its life.
        """
        now = time.monotonic()
        if now < self._next and fraction < 1:
            return
        self._next = now + SMALLEST_INTERVAL
        with contextlib.suppress(OSError):
            files.write(self._path, json.dumps(asdict(Position(epoch, epochs, fraction))), durable=False)

    def read(self) -> Position | None:
        """Where the trial is; `None` before it said so."""
        try:
            found = Position(**json.loads(self._path.read_bytes()))
            return found if 0 <= found.fraction <= 1 else None
        except (OSError, ValueError, TypeError, RecursionError):
            return None


class Shown(Protocol):
    """What an engine tells while it runs trials."""

    def started(self, trial: TrialSpec) -> None: ...

    def position(self, trial: TrialSpec, position: Position) -> None: ...

    def epoch(self, trial: TrialSpec, record: dict[str, Any]) -> None: ...

    def ended(self, trial: TrialSpec, record: dict[str, Any], seconds: float) -> None: ...


class EpochReader:
    """The records that a trial adds to `epochs.jsonl` from now on."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "epochs.jsonl"
        self._offset = self._path.stat().st_size if self._path.is_file() else 0

    def read(self) -> list[dict[str, Any]]:
        """The records of all lines that were completed since the last call."""
        try:
            # A resumed trial cuts off what came after its checkpoint.
            self._offset = min(self._offset, self._path.stat().st_size)
            with open(self._path, "rb") as file:
                file.seek(self._offset)
                complete, newline, _ = file.read().rpartition(b"\n")
        except OSError:
            self._offset = 0  # there is none: the trial starts from the beginning, or its folder was removed
            return []
        self._offset += len(complete) + len(newline)
        found = []
        for line in complete.splitlines():
            try:
                record = json.loads(line)
            except (ValueError, RecursionError):
                continue  # a line that is damaged is the report's to name, not the progress bar's
            if isinstance(record, dict):
                found.append(record)
        return found


def duration(seconds: float) -> str:
    """`2 min 10 s`, `1 h 5 min`, `3.2 s`."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def epoch_line(trial: TrialSpec, record: Mapping[str, Any], before: Mapping[str, Any] | None = None) -> str:
    """One epoch in one line; what the record does not have is left out.

    Args:
        trial: whose epoch it is.
        record: of the epoch.
        before: the record of an earlier epoch, where one was seen: what remains is told by the epochs since.
    """
    left = record.get("epochs_left")
    total = record.get("epoch", 0) + left if isinstance(left, int) else trial.recipe.get("epochs", "?")
    parts = [trial.trial_id, f"epoch {record.get('epoch', '?')}/{total}"]
    loss, accuracy, seconds = (record.get(key) for key in ("train_loss", "test_accuracy", "train_time_s"))
    if isinstance(loss, (int, float)):
        parts.append(f"loss {loss:.3f}")
    if isinstance(accuracy, (int, float)):
        parts.append(f"accuracy {100 * accuracy:.2f} %")
    if isinstance(seconds, (int, float)):
        parts.append(duration(seconds))
    remaining = remaining_seconds(record, before)
    if remaining is not None:
        parts.append(f"about {duration(remaining)} left")
    return "  ".join(parts)


def remaining_seconds(record: Mapping[str, Any], before: Mapping[str, Any] | None = None) -> float | None:
    """How long the epochs that are left will take, training and evaluation; `None` where the record does not say.

    They are taken to be as long as those since `before`, so that a network which became smaller is not judged by the
    time that it took when it was larger; without `before`, as long as the mean of all epochs so far. The time of
    compilation is not in it, since it does not come again with every epoch.
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
    """Seconds of training and evaluation since the trial began."""
    times = [record.get(name) for name in ("train_time_s", "eval_time_s")]
    known = [float(time) for time in times if isinstance(time, (int, float))]
    return sum(known) if len(known) == len(times) else None


def ended_line(trial: TrialSpec, record: dict[str, Any], seconds: float) -> str:
    """How a trial ended, in one line, from its `trial.json`; `seconds` are those that its process took."""
    line = f"{trial.trial_id}  {record['status']} after {duration(seconds)}"
    if record.get("message"):
        return f"{line}: {record['message']}"
    result = record.get("result", {})
    training, evaluation, compilation = (result.get(f"{name}_time_s") for name in ("train", "eval", "compile"))
    rest = seconds - (training or 0.0) - (evaluation or 0.0) - (compilation or 0.0)
    if training is None or evaluation is None or rest < 0:
        return line  # resumed: most of it was done by an earlier process
    compiled = f"compilation {duration(compilation)}, " if compilation else ""
    parts = f"training {duration(training)}, evaluation {duration(evaluation)}, {compiled}"
    return f"{line}: {parts}start, files and inference speed {duration(rest)}"


class Lines:
    """A line an epoch, for files and pipes."""

    def __init__(self, total: int, console: Console) -> None:
        self._total, self._begun, self._console = total, 0, console
        self._before: dict[str, Mapping[str, Any]] = {}  # the latest record of each trial

    def started(self, trial: TrialSpec) -> None:
        self._begun += 1
        self._print(f"{trial.trial_id}  trial {self._begun}/{self._total}: {trial.label}")

    def position(self, trial: TrialSpec, position: Position) -> None:
        """Nothing: a line is for what is finished."""

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
        # Written as it is: rich would wrap it at 80 columns and read brackets as markup.
        print(line, file=self._console.file, flush=True)


class Bars:
    """A bar a running trial, with the time it will still take, for terminals."""

    def __init__(self, total: int, console: Console) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[note]}"))
        self._progress = Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=console)
        self._total, self._begun = total, 0
        self._bars: dict[str, TaskID] = {}
        self._before: dict[str, Mapping[str, Any]] = {}  # the latest record of each trial

    def started(self, trial: TrialSpec) -> None:
        self._begun += 1
        text = f"{self._begun}/{self._total} {trial.trial_id}"
        self._bars[trial.trial_id] = self._progress.add_task(text, total=1.0, note="")

    def position(self, trial: TrialSpec, position: Position) -> None:
        self._progress.update(self._bars[trial.trial_id], completed=position.fraction)

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


def shown_on(console: Console, total: int) -> Lines | Bars:
    """Bars on a terminal, lines elsewhere."""
    return Bars(total, console) if console.is_terminal else Lines(total, console)
