"""Progress of trials: how a trial reports it, its wording, and the time that remains.

A trial writes two files in its folder: `progress.json`, replaced at most twice a second, and `epochs.jsonl`, with one
line per epoch. Errors in reading or writing progress do not affect a run.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from suite import files
from suite.recipe import Recipe
from suite.trials.spec import TrialSpec


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
    """Return one line for an epoch, with the values that the record has.

    Args:
        record: Record of the epoch.
        before: Record of an earlier epoch. The epochs since then give the remaining time.
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
    remaining = remaining_seconds(record, before, trial.make_recipe())
    if remaining is not None:
        parts.append(f"about {duration(remaining)} left")
    return "  ".join(parts)


def remaining_seconds(record: Mapping[str, Any], before: Mapping[str, Any] | None, recipe: Recipe) -> float | None:
    """Estimate the seconds that the remaining epochs will take; `None` if the record does not allow it.

    Training and evaluation count, compilation does not. An epoch is assumed to train as long as the epochs since
    `before`, because the network may have become smaller; without `before`, as long as the mean of all epochs so far.
    The time of epochs with images of another size is assumed to grow with their pixels (`work`). The remaining
    evaluations (`recipe.evaluation.count`) are assumed to take as long as the mean of those so far. Before the first
    evaluation their time is unknown and left out.
    """
    left, epoch, seconds = record.get("epochs_left"), record.get("epoch"), record.get("train_time_s")
    evaluating = record.get("eval_time_s")
    if not isinstance(left, int) or not isinstance(epoch, int) or left <= 0:
        return None
    if not isinstance(seconds, (int, float)) or not isinstance(evaluating, (int, float)):
        return None
    earlier = before or {}
    first, already = earlier.get("epoch", 0), earlier.get("train_time_s", 0.0)
    if not isinstance(first, int) or not 0 <= first < epoch:
        return None
    if not isinstance(already, (int, float)) or seconds < already:
        return None
    evaluated = epoch // recipe.evaluation.eval_every
    to_evaluate = recipe.evaluation.count(epoch + left) - evaluated
    evaluation = evaluating / evaluated if evaluated else 0.0
    # A method may have restarted the schedule. Epochs before that belong to an earlier schedule.
    began = max(0, epoch + left - recipe.whole_epochs)
    done = work(recipe, epoch - began)
    since = done - work(recipe, first - began) if first >= began else done + work(recipe, began) - work(recipe, first)
    return (seconds - already) / since * (work(recipe, epoch - began + left) - done) + evaluation * to_evaluate


def ended_line(trial: TrialSpec, record: dict[str, Any], seconds: float) -> str:
    """Return one line on how a trial ended, from its `trial.json` and the seconds that its process took."""
    line = f"{trial.trial_id}  {record['status']} after {duration(seconds)}"
    if failed := (record.get("provenance") or {}).get("callbacks_failed"):
        line = f"{line}; {'; '.join(failed)}"
    if record.get("message"):
        return f"{line}: {record['message']}"
    result = record.get("result", {})
    training, evaluation, compilation = (result.get(f"{name}_time_s") for name in ("train", "eval", "compile"))
    rest = seconds - (training or 0.0) - (evaluation or 0.0) - (compilation or 0.0)
    if training is None or evaluation is None or rest < 0:
        return line  # an earlier process did a part of this resumed trial
    compiled = f"compilation {duration(compilation)}, " if compilation else ""
    parts = f"training {duration(training)}, evaluation {duration(evaluation)}, {compiled}"
    return f"{line}: {parts}start, files and inference speed {duration(rest)}"


SMALLEST_INTERVAL = 0.5


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
        with contextlib.suppress(OSError):
            files.write(
                self._path, json.dumps(asdict(Position(epoch, epochs, fraction, self.resumed_after))), durable=False
            )

    def read(self) -> Position | None:
        """Return the progress; `None` if the trial has not written any."""
        try:
            position = Position(**json.loads(self._path.read_bytes()))
            return position if 0 <= position.fraction <= 1 else None
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
            try:
                record = json.loads(line)
            except (ValueError, RecursionError):
                continue  # the report names damaged lines
            if isinstance(record, dict):
                records.append(record)
        return records


SMALLEST_SHARE = 0.02
"""Share of a trial after which its time is extrapolated. Earlier, its first steps would count too much."""


@dataclass
class _Running:
    began: float
    stepping: float  # when its first step began, as far as is known
    fraction: float = 0.0
    work: float = 0.0  # finished share of the trial's work
    resumed: float = 0.0  # share of the work that an earlier attempt finished

    @property
    def share(self) -> float:
        """Share of the work that this attempt finished."""
        return self.work - self.resumed

    def whole(self, now: float) -> float:
        """Return the extrapolated seconds of all of its work; the start of its process counts once."""
        return self.stepping - self.began + (now - self.stepping) / self.share

    def left(self, now: float) -> float:
        """Return the extrapolated seconds until it ends."""
        return (now - self.stepping) / self.share * (1 - self.work)


class Sweep:
    """The remaining time of the trials of a command, or of measurements, each given as the trial that it measures.

    A waiting trial is expected to take as long as the mean of known trials with its method, task, model and epochs. If
    none is known, its epochs take as long as those of trials with its task and model, or of all trials. Done trials are
    known, and so are running trials, extrapolated from their finished share of work (`share_of_work`). The number of
    trials at the same time is assumed to stay as it has been.

    Args:
        trials: The trials that will run.
        now: Function that returns seconds.

    Attributes:
        total: Number of trials.
        num_ended: Number of trials that have ended.
    """

    def __init__(self, trials: Sequence[TrialSpec], now: Callable[[], float] = time.monotonic) -> None:
        self.total, self.num_ended, self._now = len(trials), 0, now
        self._waiting = list(trials)
        self._running: dict[str, tuple[TrialSpec, _Running]] = {}
        self._done: list[tuple[TrialSpec, float]] = []  # with the seconds of the whole trial
        self._most_at_once = 1

    def started(self, trial: TrialSpec) -> None:
        """Note that a trial has started."""
        # The measurement of a trial may turn out to be of another seed, so any waiting trial with this setting will do.
        if same := [other for other in self._waiting if _setting(other) == _setting(trial)]:
            self._waiting.remove(same[0])
        self._running[trial.trial_id] = trial, _Running(self._now(), self._now())
        self._most_at_once = max(self._most_at_once, len(self._running))

    def position(self, trial: TrialSpec, position: Position) -> None:
        """Note how far a running trial is."""
        running, recipe = self._running[trial.trial_id][1], trial.make_recipe()
        running.fraction = position.fraction
        running.work = share_of_work(recipe, position.fraction)
        running.resumed = share_of_work(recipe, position.resumed_after / position.epochs) if position.epochs else 0.0
        if running.share <= 0:
            running.stepping = self._now()

    def ended(self, trial: TrialSpec, status: str, seconds: float) -> None:
        """Note that a trial has ended. A trial that is not `done` tells nothing about the others."""
        if trial.trial_id not in self._running:
            self.started(trial)
        _, running = self._running.pop(trial.trial_id)
        self.num_ended += 1
        if status == "done" and running.resumed < 1:
            self._done.append((trial, seconds / (1 - running.resumed)))

    @property
    def done(self) -> float:
        """Number of trials that have ended, plus the finished fractions of running trials."""
        return self.num_ended + sum(running.fraction for _, running in self._running.values())

    def expected(self, trial: TrialSpec) -> float | None:
        """Return the estimated seconds of a trial that waits; `None` if no trial is done yet."""
        return _Expected(self._done).of(trial) if self._done else None

    def remaining(self) -> float | None:
        """Return the estimated seconds until all trials have ended; `None` if nothing is known yet."""
        now = self._now()
        known = list(self._done)
        for trial, running in self._running.values():
            if running.share >= SMALLEST_SHARE:
                known.append((trial, running.whole(now)))
        if not self._running and not self._waiting:
            return 0.0
        if not known:
            return None
        expected = _Expected(known)
        left = [expected.of(trial) for trial in self._waiting]
        for trial, running in self._running.values():
            if running.share >= SMALLEST_SHARE:
                left.append(running.left(now))
            else:
                left.append(max(0.0, expected.of(trial) * (1 - running.resumed) - (now - running.began)))
        return max([sum(left) / self._most_at_once, *left])


class _Expected:
    """The expected seconds of trials, from those of known trials.

    Args:
        known: Trials with their seconds; at least one.
    """

    def __init__(self, known: Sequence[tuple[TrialSpec, float]]) -> None:
        self._whole: dict[tuple[object, ...], list[float]] = {}
        self._epoch: dict[tuple[object, ...], list[float]] = {}  # seconds per epoch; `()` for all trials
        for trial, seconds in known:
            self._whole.setdefault(_setting(trial), []).append(seconds)
            for key in ((), (trial.task, trial.model)):
                self._epoch.setdefault(key, []).append(seconds / _epochs(trial))

    def of(self, trial: TrialSpec) -> float:
        """Return the seconds of a trial."""
        if same := self._whole.get(_setting(trial)):
            return mean(same)
        return mean(self._epoch.get((trial.task, trial.model)) or self._epoch[()]) * _epochs(trial)


def _setting(trial: TrialSpec) -> tuple[object, ...]:
    return (trial.label, trial.task, trial.model, _epochs(trial), trial.processes)


def _epochs(trial: TrialSpec) -> float:
    return max(1.0, float(trial.recipe.get("epochs", 1)))
