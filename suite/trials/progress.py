"""Progress of trials: the files that report it, the time that remains, and the bars or lines that show both.

A trial writes two files in its folder: `progress.json`, replaced at most twice a second, and `epochs.jsonl`, with one
line per epoch. Errors in reading or writing progress do not affect a run.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Protocol, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from suite import files
from suite.recipe import Recipe
from suite.trials.spec import TrialSpec

SMALLEST_INTERVAL = 0.5
"""Seconds between two versions of `progress.json`."""


@dataclass(frozen=True)
class Position:
    """Progress of a trial.

    Attributes:
        epoch: Number of finished epochs.
        epochs: Number of epochs of the whole training.
        fraction: Finished fraction of the whole training, in [0, 1].
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
        """Write the progress. Calls that follow too soon do nothing, so this may be called at every step.

        The file is replaced atomically, but not flushed to disk. Errors, for example a full disk, are ignored.
        """
        now = time.monotonic()
        if now < self._next and fraction < 1:
            return
        self._next = now + SMALLEST_INTERVAL
        content = json.dumps(asdict(Position(epoch, epochs, fraction, self.resumed_after)))
        with contextlib.suppress(OSError):
            files.write(self._path, content, durable=False)

    def read(self) -> Position | None:
        """Return the progress; `None` if the trial has not written any."""
        try:
            return Position(**json.loads(self._path.read_bytes()))
        except (OSError, ValueError):
            return None


class EpochReader:
    """Reads the records that a trial appends to `epochs.jsonl` after this object was created."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "epochs.jsonl"
        self._offset = self._path.stat().st_size if self._path.is_file() else 0

    def read(self) -> list[dict[str, Any]]:
        """Return the records of all lines that were completed since the last call."""
        try:
            # A resumed trial truncates the file to its checkpoint.
            self._offset = min(self._offset, self._path.stat().st_size)
            with open(self._path, "rb") as file:
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


def work(recipe: Recipe, epochs: float) -> float:
    """Return the epochs of a schedule so far, each times the pixels of its images; `epochs` if all sizes are equal.

    The time of a step is assumed to grow with the pixels of its images.

    Args:
        epochs: Number of epochs, of which the last may be partial. Epochs after the schedule count as its last.
    """
    if len(recipe.growing.train_sizes) < 2:
        return epochs
    whole = int(epochs)
    sides = [phase.image_size or 0 for phase in recipe.phases()]
    sides += sides[-1:] * (whole + 1 - len(sides))
    return float(sum(side**2 for side in sides[:whole]) + (epochs - whole) * sides[whole] ** 2)


def share_of_work(recipe: Recipe, fraction: float) -> float:
    """Return the share of a training's work that is done after a fraction of its epochs."""
    return work(recipe, fraction * recipe.epochs) / work(recipe, recipe.epochs)


def remaining_seconds(record: Mapping[str, Any], before: Mapping[str, Any] | None, recipe: Recipe) -> float | None:
    """Estimate the seconds that the remaining epochs will take; `None` if there are none.

    Training and evaluation count, compilation does not. An epoch is assumed to train as long as the epochs since
    `before`, because the network may have become smaller; without `before`, as long as the mean of all epochs so far.
    The time of epochs with images of another size is assumed to grow with their pixels (`work`). The remaining
    evaluations (`recipe.evaluation.count`) are assumed to take as long as the mean of those so far. Before the first
    evaluation their time is unknown and left out.
    """
    if not (left := record.get("epochs_left")):
        return None
    epoch, first, already = record["epoch"], 0, 0.0
    if before and before["epoch"] < epoch:  # otherwise the trial was repeated
        first, already = before["epoch"], before["train_time_s"]
    evaluated = epoch // recipe.evaluation.eval_every
    to_evaluate = recipe.evaluation.count(epoch + left) - evaluated
    evaluation = record["eval_time_s"] / evaluated if evaluated else 0.0
    # A method may have restarted the schedule. Epochs before that belong to an earlier schedule.
    began = max(0, epoch + left - recipe.whole_epochs)
    done = work(recipe, epoch - began)
    since = done - work(recipe, first - began) if first >= began else done + work(recipe, began) - work(recipe, first)
    ahead = work(recipe, epoch - began + left) - done
    return float((record["train_time_s"] - already) / since * ahead + evaluation * to_evaluate)


SMALLEST_SHARE = 0.02
"""Share of a trial after which its time is extrapolated. Earlier, its first steps would count too much."""


@dataclass
class _Running:
    trial: TrialSpec
    began: float
    stepping: float  # when its first step began, as far as is known
    work: float = 0.0  # finished share of the trial's work
    resumed: float = 0.0  # share of the work that an earlier attempt finished


class TimeLeft:
    """The remaining time of the trials of a command, or of measurements, each given as the trial that it measures.

    A waiting trial is expected to take as long as the mean of known trials with its method, task, model and epochs. If
    none is known, its epochs take as long as those of trials with its task and model, or of all trials. Done trials are
    known, and so are running trials, extrapolated from their finished share of work (`share_of_work`). The number of
    trials at the same time is assumed to stay as it has been.

    Args:
        trials: The trials that will run.

    Attributes:
        total: Number of trials.
        num_ended: Number of trials that have ended.
    """

    def __init__(self, trials: Sequence[TrialSpec]) -> None:
        self.total, self.num_ended = len(trials), 0
        self._waiting = list(trials)
        self._running: dict[str, _Running] = {}
        self._done: list[tuple[TrialSpec, float]] = []  # with the seconds of the whole trial
        self._most_at_once = 1

    @property
    def num_started(self) -> int:
        """Number of trials that run or have ended."""
        return self.num_ended + len(self._running)

    @property
    def done(self) -> float:
        """Number of trials that have ended, plus the finished shares of running trials."""
        return self.num_ended + sum(running.work for running in self._running.values())

    def started(self, trial: TrialSpec) -> None:
        """Note that a trial has started."""
        # The measurement of a trial may turn out to be of another seed, so any waiting trial with this setting will do.
        if same := [waiting for waiting in self._waiting if _likeness(waiting)[0] == _likeness(trial)[0]]:
            self._waiting.remove(same[0])
        self._running[trial.trial_id] = _Running(trial, time.monotonic(), time.monotonic())
        self._most_at_once = max(self._most_at_once, len(self._running))

    def position(self, trial: TrialSpec, position: Position) -> None:
        """Note how far a running trial is."""
        running, recipe = self._running[trial.trial_id], trial.make_recipe()
        running.work = share_of_work(recipe, position.fraction)
        running.resumed = share_of_work(recipe, position.resumed_after / position.epochs)
        if running.work <= running.resumed:
            running.stepping = time.monotonic()

    def ended(self, trial: TrialSpec, status: str, seconds: float) -> None:
        """Note that a trial has ended. A trial that is not `done` tells nothing about the others."""
        running = self._running.pop(trial.trial_id)
        self.num_ended += 1
        if status == "done" and running.resumed < 1:
            self._done.append((trial, seconds / (1 - running.resumed)))

    def expected(self, trial: TrialSpec) -> float | None:
        """Return the estimated seconds of a trial that waits; `None` if no trial is done yet."""
        return _expectation(self._done)(trial) if self._done else None

    def remaining(self) -> float | None:
        """Return the estimated seconds until all trials have ended; `None` if nothing is known yet."""
        now, known, begun = time.monotonic(), list(self._done), []
        left: list[float] = []
        for running in self._running.values():
            share = running.work - running.resumed
            if share < SMALLEST_SHARE:
                begun.append(running)
                continue
            stepping = (now - running.stepping) / share  # of all work; the start of the process counts once
            known.append((running.trial, running.stepping - running.began + stepping))
            left.append(stepping * (1 - running.work))
        if not known:
            return None if self._waiting or begun else 0.0
        expected = _expectation(known)
        left += [expected(trial) for trial in self._waiting]
        left += [max(0.0, expected(running.trial) * (1 - running.resumed) - (now - running.began)) for running in begun]
        return max([sum(left) / self._most_at_once, *left])


def _expectation(known: Sequence[tuple[TrialSpec, float]]) -> Callable[[TrialSpec], float]:
    """Return a function that gives the expected seconds of a trial, from known trials with theirs; at least one."""
    per_epoch: dict[tuple[object, ...], list[float]] = defaultdict(list)
    for trial, seconds in known:
        for key in _likeness(trial):
            per_epoch[key].append(seconds / _epochs(trial))
    means = {key: fmean(values) for key, values in per_epoch.items()}
    return lambda trial: next(means[key] for key in _likeness(trial) if key in means) * _epochs(trial)


def _likeness(trial: TrialSpec) -> tuple[tuple[object, ...], ...]:
    """Return what trials share whose epochs take as long as those of this one, the closest likeness first."""
    network = (trial.task, trial.model)
    return ((*network, trial.label, _epochs(trial), trial.processes), network, ())


def _epochs(trial: TrialSpec) -> float:
    return max(1.0, float(trial.recipe.get("epochs", 1)))


def duration(seconds: float) -> str:
    """Return seconds as `3.2 s`, `2 min 10 s` or `1 h 5 min`."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if minutes else f"{rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def epoch_text(trial: TrialSpec, record: Mapping[str, Any], before: Mapping[str, Any] | None = None) -> str:
    """Return a text about an epoch, with the values that the record has.

    Args:
        record: Record of the epoch.
        before: Record of an earlier epoch. The epochs since then give the remaining time.
    """
    total = record["epoch"] + record["epochs_left"] if "epochs_left" in record else trial.recipe["epochs"]
    parts = [f"epoch {record['epoch']}/{total}"]
    name = "accuracy" if "test_accuracy" in record else "validation accuracy"
    accuracy = record.get("test_accuracy", record.get("val_accuracy"))
    if (loss := record.get("train_loss")) is not None:
        parts.append(f"loss {loss:.3f}")
    if accuracy is not None:
        parts.append(f"{name} {100 * accuracy:.2f} %")
    if (seconds := record.get("train_time_s")) is not None:
        parts.append(duration(seconds))
    if (remaining := remaining_seconds(record, before, trial.make_recipe())) is not None:
        parts.append(f"about {duration(remaining)} left")
    return "  ".join(parts)


def ended_text(record: Mapping[str, Any], seconds: float) -> str:
    """Return a text on how a trial ended, from its `trial.json` and the seconds that its process took."""
    text = f"{record['status']} after {duration(seconds)}"
    if failed := record.get("provenance", {}).get("callbacks_failed"):
        text = f"{text}; {'; '.join(failed)}"
    if record.get("message"):
        return f"{text}: {record['message']}"
    names = ("train_time_s", "eval_time_s", "compile_time_s")
    training, evaluation, compilation = (record["result"].get(name) or 0.0 for name in names)
    rest = seconds - training - evaluation - compilation
    if rest < 0:
        return text  # an earlier process did a part of this resumed trial
    compiled = f"compilation {duration(compilation)}, " if compilation else ""
    parts = f"training {duration(training)}, evaluation {duration(evaluation)}, {compiled}"
    return f"{text}: {parts}start, files and inference speed {duration(rest)}"


class ProgressListener(Protocol):
    """Receives what happens while an engine runs trials."""

    def started(self, trial: TrialSpec) -> None: ...

    def position(self, trial: TrialSpec, position: Position) -> None: ...

    def epoch(self, trial: TrialSpec, record: dict[str, Any]) -> None: ...

    def ended(self, trial: TrialSpec, record: dict[str, Any], seconds: float) -> None: ...


LINE_INTERVAL = 60.0
"""Seconds between two lines about all trials while no trial ends."""


class _Display(Progress):
    """Bars on a terminal, each with a note; elsewhere only lines."""

    def __init__(self, console: Console, **options: Any) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[note]}", markup=False))
        times = (TimeElapsedColumn(), TimeRemainingColumn())
        super().__init__(*columns, *times, console=console, disable=not console.is_terminal, **options)

    def say(self, line: str) -> None:
        """Print a line above the bars as it is; rich would wrap it, and read its brackets as markup."""
        if self.disable:
            print(line, file=self.console.file, flush=True)
        else:
            self.console.print(line, markup=False, highlight=False, emoji=False, soft_wrap=True)


class TrialProgress:
    """A listener that shows trials and their remaining time, with bars on a terminal and lines elsewhere.

    Args:
        trials: The trials that will run.
        console: Where they are shown.
    """

    def __init__(self, trials: Sequence[TrialSpec], console: Console) -> None:
        self._left, self._display = TimeLeft(trials), _Display(console)
        self._all = self._display.add_task("all trials", total=len(trials), visible=len(trials) > 1, note="")
        self._bars: dict[str, TaskID] = {}
        self._before: dict[str, Mapping[str, Any]] = {}  # latest record of each trial
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
        self._left.position(trial, position)
        self._display.update(self._bars[trial.trial_id], completed=position.fraction)
        if position.resumed_after and trial.trial_id not in self._resumed:
            self._resumed.add(trial.trial_id)
            self._note(trial, f"resumed after epoch {position.resumed_after}/{position.epochs}")
        if not self._display.disable or time.monotonic() >= self._next_line:  # an epoch may take minutes
            self._show_all()

    def epoch(self, trial: TrialSpec, record: dict[str, Any]) -> None:
        """Show an epoch."""
        self._note(trial, epoch_text(trial, record, self._before.get(trial.trial_id)))
        self._before[trial.trial_id] = record

    def ended(self, trial: TrialSpec, record: dict[str, Any], seconds: float) -> None:
        """Print a line, and show the remaining time of the others."""
        self._left.ended(trial, record["status"], seconds)
        self._display.remove_task(self._bars.pop(trial.trial_id))
        self._display.say(f"{trial.trial_id}  {ended_text(record, seconds)}")
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
        self._display.update(self._all, completed=left.done, note=note)
        if note and left.num_ended < left.total > 1:
            self._next_line = time.monotonic() + LINE_INTERVAL
            self._line(f"{left.num_ended} of {left.total} trials have ended, {note} for all of them")

    def _note(self, trial: TrialSpec, text: str) -> None:
        self._display.update(self._bars[trial.trial_id], note=text)
        self._line(f"{trial.trial_id}  {text}")

    def _line(self, line: str) -> None:
        """Print what bars show on a terminal."""
        if self._display.disable:
            self._display.say(line)


class Measurements:
    """Prints before each measurement what comes, how long it and all others may take, and shows a bar on a terminal.

    Args:
        trials: The trial of each measurement that comes.
        console: Where they are shown; by default the standard output.
    """

    def __init__(self, trials: Sequence[TrialSpec], console: Console | None = None) -> None:
        # A bar that is drawn more often takes time from what is measured.
        self._display = _Display(console or Console(), transient=True, refresh_per_second=1)
        self._bar = self._display.add_task("all measurements", total=len(trials), note="")
        self._left, self._lock = TimeLeft(trials), threading.Lock()

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
            self._display.say(line)
            self._display.start()
        began, status = time.monotonic(), "error"
        try:
            yield
            status = "done"
        finally:
            with self._lock:
                left.ended(trial, status, time.monotonic() - began)
                self._display.update(self._bar, completed=left.num_ended)
                if left.num_ended == left.num_started:  # what is printed in between needs no care for a bar
                    self._display.stop()
