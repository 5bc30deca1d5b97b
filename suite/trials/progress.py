"""Progress of trials: the files that report it, the time that remains, and the bars or lines that show both.

A trial writes two files in its folder: `progress.json`, replaced at most twice a second, and `epochs.jsonl`, with one
line per epoch. Errors in reading or writing progress do not affect a run.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from suite.recipe import Recipe
from suite.trials.process import Position
from suite.trials.spec import TrialSpec


class EpochReader:
    """Reads the records that a trial appends to `epochs.jsonl` after this object was created."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "epochs.jsonl"
        self._offset = self._path.stat().st_size if self._path.is_file() else 0

    def read(self) -> list[dict[str, Any]]:
        """Return the records of all lines that were completed since the last call."""
        try:
            with open(self._path, "rb") as file:
                # A resumed trial truncates the file to its checkpoint.
                self._offset = min(self._offset, file.seek(0, os.SEEK_END))
                file.seek(self._offset)
                complete, newline, _ = file.read().rpartition(b"\n")
        except OSError:
            self._offset = 0  # the trial starts from the beginning, or its folder was removed
            return []
        self._offset += len(complete) + len(newline)
        records = []
        for line in complete.splitlines():
            with contextlib.suppress(ValueError):  # the report names damaged lines
                records.append(json.loads(line))
        return records


def share_of_work(recipe: Recipe, fraction: float) -> float:
    """Return the share of a training's work that is done after a fraction of its epochs.

    The time of a step is assumed to grow with the pixels of its images.
    """
    pixels = [(phase.image_size or 1) ** 2 for phase in recipe.phases()]

    def work(epochs: float) -> float:
        return sum(count * min(max(epochs - epoch, 0.0), 1.0) for epoch, count in enumerate(pixels))

    return work(fraction * recipe.epochs) / work(recipe.epochs)


class TimeLeft:
    """The remaining time of the trials of a command, or of measurements, each given as the trial that it measures.

    A trial whose pace is not known is expected to take as long as the mean of known trials with its method, task, model
    and epochs. If none is known, its epochs take as long as those of trials with its task and model, or of all trials.
    The number of trials at the same time is assumed to stay as it has been.

    Args:
        trials: The trials that will run.

    Attributes:
        total: Number of trials.
        num_ended: Number of trials that have ended.
        running: Seconds that each running trial still takes, by its id; `None` as long as its pace is not known.
    """

    def __init__(self, trials: Sequence[TrialSpec]) -> None:
        self.total, self.num_ended = len(trials), 0
        self.running: dict[str, float | None] = {}
        self._waiting, self._started = list(trials), dict[str, TrialSpec]()
        self._whole: dict[str, float] = {}  # seconds of whole trials, as far as they are known
        self._most_at_once = 1

    @property
    def num_started(self) -> int:
        """Number of trials that run or have ended."""
        return self.num_ended + len(self.running)

    def started(self, trial: TrialSpec) -> None:
        """Note that a trial has started."""
        # The measurement of a trial may turn out to be of another seed, so any waiting trial with this setting will do.
        if same := [waiting for waiting in self._waiting if _likeness(waiting)[0] == _likeness(trial)[0]]:
            self._waiting.remove(same[0])
        self._started[trial.trial_id], self.running[trial.trial_id] = trial, None
        self._most_at_once = max(self._most_at_once, len(self.running))

    def pace(self, trial: TrialSpec, whole: float, share: float) -> None:
        """Note that a running trial takes `whole` seconds at its present pace, and that a share of its work is done."""
        self._whole[trial.trial_id], self.running[trial.trial_id] = whole, (1 - share) * whole

    def ended(self, trial: TrialSpec, seconds: float | None, *, failed: bool) -> None:
        """Note that a trial has ended. A failed one tells nothing about the others.

        Args:
            seconds: Time of the whole trial; `None` if a part of it was done before, so that its pace tells more.
        """
        del self.running[trial.trial_id]
        self.num_ended += 1
        if failed:
            self._whole.pop(trial.trial_id, None)
        elif seconds is not None:
            self._whole[trial.trial_id] = seconds

    def expected(self, trial: TrialSpec) -> float | None:
        """Return the estimated seconds of a trial that waits; `None` if nothing is known yet."""
        return self._expectation()(trial) if self._whole else None

    def remaining(self) -> float | None:
        """Return the estimated seconds until all trials have ended; `None` if nothing is known yet."""
        unknown = self._waiting + [self._started[name] for name, left in self.running.items() if left is None]
        if unknown and not self._whole:
            return None
        left = [seconds for seconds in self.running.values() if seconds is not None]
        left += map(self._expectation(), unknown)
        return max([sum(left) / self._most_at_once, *left])

    def _expectation(self) -> Callable[[TrialSpec], float]:
        """Return a function that gives the expected seconds of a trial, from those of known trials."""
        per_epoch: dict[tuple[object, ...], list[float]] = defaultdict(list)
        for name, seconds in self._whole.items():
            for key in _likeness(self._started[name]):
                per_epoch[key].append(seconds / _epochs(self._started[name]))
        means = {key: fmean(values) for key, values in per_epoch.items()}
        return lambda trial: next(means[key] for key in _likeness(trial) if key in means) * _epochs(trial)


def _likeness(trial: TrialSpec) -> tuple[tuple[object, ...], ...]:
    """Return what trials share whose epochs take as long as those of this one, the closest likeness first."""
    network = (trial.task, trial.model)
    return ((*network, trial.label, _epochs(trial), trial.processes), network, ())


def _epochs(trial: TrialSpec) -> float:
    return max(1.0, float(trial.recipe["epochs"]))


def duration(seconds: float) -> str:
    """Return seconds as `3.2 s`, `2 min 10 s` or `1 h 5 min`."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if minutes else f"{rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def epoch_text(record: Mapping[str, Any], left: float | None = None) -> str:
    """Return a text about an epoch, with the values that its record has.

    Args:
        record: Record of the epoch.
        left: Seconds that the trial still takes.
    """
    text = f"epoch {record['epoch']}/{record['epoch'] + record['epochs_left']}"
    if (loss := record.get("train_loss")) is not None:
        text += f"  loss {loss:.3f}"
    for column, name in (("test_accuracy", "accuracy"), ("val_accuracy", "validation accuracy")):
        if record.get(column) is not None:
            text += f"  {name} {100 * record[column]:.2f} %"
    if (seconds := record.get("train_time_s")) is not None:
        text += f"  {duration(seconds)}"
    return f"{text}  about {duration(left)} left" if left else text


def ended_text(record: Mapping[str, Any], seconds: float) -> str:
    """Return a text on how a trial ended, from its `trial.json` and the seconds that its process took."""
    failed = record.get("provenance", {}).get("callbacks_failed", ())
    text = "; ".join([f"{record['status']} after {duration(seconds)}", *failed])
    if record.get("message"):
        return f"{text}: {record['message']}"
    times = {"training": "train_time_s", "evaluation": "eval_time_s", "compilation": "compile_time_s"}
    parts = [f"{name} {duration(spent)}" for name, column in times.items() if (spent := record["result"].get(column))]
    return f"{text}: {', '.join(parts)}" if parts else text


class ProgressListener:
    """Receives what happens while an engine runs trials. A subclass overrides what it needs; the rest does nothing."""

    def started(self, trial: TrialSpec) -> None: ...

    def position(self, trial: TrialSpec, position: Position) -> None: ...

    def epoch(self, trial: TrialSpec, record: dict[str, Any]) -> None: ...

    def ended(self, trial: TrialSpec, record: dict[str, Any], seconds: float) -> None: ...


LINE_INTERVAL = 60.0
"""Seconds between two lines about all trials while no trial ends."""
PACE_INTERVAL = 600.0
"""Seconds of which the pace of a trial is the mean: its network may become smaller, and evaluations count."""


class TrialProgress(ProgressListener):
    """A listener that shows trials and their remaining time, with bars on a terminal and lines elsewhere.

    Args:
        trials: The trials that will run.
        console: Where they are shown.
    """

    def __init__(self, trials: Sequence[TrialSpec], console: Console) -> None:
        self._left = TimeLeft(trials)
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[note]}", markup=False))
        self._display = Progress(
            *columns,
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
            speed_estimate_period=PACE_INTERVAL,
            get_time=time.monotonic,
        )
        self._all = self._display.add_task("all trials", total=len(trials), visible=len(trials) > 1, note="")
        self._bars: dict[str, TaskID] = {}
        self._resumed: set[str] = set()
        self._next_line = time.monotonic() + LINE_INTERVAL

    def started(self, trial: TrialSpec) -> None:
        """Add a bar, or print a line."""
        self._left.started(trial)
        count = f"{self._left.num_started}/{self._left.total}"
        self._bars[trial.trial_id] = self._display.add_task(f"{count} {trial.trial_id}", total=1.0, note="")
        self._line(f"{trial.trial_id}  trial {count}: {trial.label}")

    def position(self, trial: TrialSpec, position: Position) -> None:
        """Show how far a trial is, and once where a resumed trial continues."""
        bar, share = self._bars[trial.trial_id], share_of_work(trial.make_recipe(), position.fraction)
        self._display.update(bar, completed=share)
        (task,) = (task for task in self._display.tasks if task.id == bar)
        if task.speed:
            self._left.pace(trial, 1 / task.speed, share)
        if position.resumed_after and trial.trial_id not in self._resumed:
            self._resumed.add(trial.trial_id)
            self._note(trial, f"resumed after epoch {position.resumed_after}/{position.epochs}")
        if not self._display.disable or time.monotonic() >= self._next_line:  # an epoch may take minutes
            self._show_all()

    def epoch(self, trial: TrialSpec, record: dict[str, Any]) -> None:
        """Show an epoch."""
        self._note(trial, epoch_text(record, self._left.running[trial.trial_id]))

    def ended(self, trial: TrialSpec, record: dict[str, Any], seconds: float) -> None:
        """Print a line, and show the remaining time of the others."""
        whole = None if trial.trial_id in self._resumed else seconds
        self._left.ended(trial, whole, failed=record["status"] != "done")
        self._display.remove_task(self._bars.pop(trial.trial_id))
        self._display.console.out(f"{trial.trial_id}  {ended_text(record, seconds)}", highlight=False)
        self._show_all()

    def __enter__(self) -> Self:
        self._display.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._display.stop()

    def _show_all(self) -> None:
        """Show how many trials have ended, and the remaining time of the others as soon as it can be estimated."""
        left, seconds = self._left, self._left.remaining()
        note = "" if seconds is None else f"about {duration(seconds)} left"
        running = sum(task.completed for task in self._display.tasks if task.id != self._all)
        self._display.update(self._all, completed=left.num_ended + running, note=note)
        if note and left.num_ended < left.total > 1:
            self._next_line = time.monotonic() + LINE_INTERVAL
            self._line(f"{left.num_ended} of {left.total} trials have ended, {note} for all of them")

    def _note(self, trial: TrialSpec, text: str) -> None:
        self._display.update(self._bars[trial.trial_id], note=text)
        self._line(f"{trial.trial_id}  {text}")

    def _line(self, line: str) -> None:
        """Print what bars show on a terminal."""
        if self._display.disable:
            self._display.console.out(line, highlight=False)


class Measurements:
    """Prints before each measurement what comes, and how long it and all others may take.

    Args:
        trials: The trial of each measurement that comes.
        console: Where they are shown; by default the standard output.
    """

    def __init__(self, trials: Sequence[TrialSpec], console: Console | None = None) -> None:
        self._left, self._lock = TimeLeft(trials), threading.Lock()
        self._console = console or Console()

    @contextlib.contextmanager
    def measuring(self, trial: TrialSpec, what: str) -> Iterator[None]:
        """Announce a measurement, and note its end. Several threads may measure at the same time."""
        left = self._left
        with self._lock:
            expected = left.expected(trial)
            left.started(trial)
            line = f"measurement {left.num_started}/{left.total}: {what}"
            if expected is not None:
                line += f"; about {duration(expected)}"
            if (seconds := left.remaining()) is not None and left.num_started < left.total:
                line += f", about {duration(seconds)} left for all of them"
            self._console.out(line, highlight=False)
        began, failed = time.monotonic(), True
        try:
            yield
            failed = False
        finally:
            with self._lock:
                left.ended(trial, time.monotonic() - began, failed=failed)
