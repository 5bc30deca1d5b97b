"""The remaining time of a sweep, from the trials that have ended and the shares of those that run."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import mean

from suite.runs.progress.files import Position
from suite.runs.progress.work import share_of_work
from suite.runs.spec import TrialSpec

SMALLEST_SHARE = 0.02
"""Share of a trial after which its time is extrapolated; before, the start of its process would count too much."""


@dataclass
class _Running:
    began: float
    fraction: float = 0.0
    work: float = 0.0  # share of the trial's work that is done
    resumed: float = 0.0  # share of the work that an earlier attempt had done


class Sweep:
    """The remaining time of the trials of a command.

    A waiting trial is expected to take as long as the mean of those with its method, task, model and epochs; if none is
    known, its epochs take as long as those of trials with its task and model, or of all trials. Known are trials that
    are done, and running ones, extrapolated from the share that is done, in pixels (`share_of_work`). As many trials
    are assumed to run at the same time as have done so before.

    Args:
        trials: The trials that will run.
        now: Function that returns seconds.

    Attributes:
        total: Number of trials.
        num_ended: Number of trials that have ended.
    """

    def __init__(self, trials: Sequence[TrialSpec], now: Callable[[], float] = time.monotonic) -> None:
        self.total, self.num_ended, self._now = len(trials), 0, now
        self._waiting = {trial.trial_id: trial for trial in trials}
        self._running: dict[str, tuple[TrialSpec, _Running]] = {}
        self._done: list[tuple[TrialSpec, float]] = []  # with the seconds of the whole trial
        self._most_at_once = 1

    def started(self, trial: TrialSpec) -> None:
        """Note that a trial has started."""
        self._waiting.pop(trial.trial_id, None)
        self._running[trial.trial_id] = trial, _Running(self._now())
        self._most_at_once = max(self._most_at_once, len(self._running))

    def position(self, trial: TrialSpec, position: Position) -> None:
        """Note how far a running trial is."""
        running, recipe = self._running[trial.trial_id][1], trial.make_recipe()
        running.fraction = position.fraction
        running.work = share_of_work(recipe, position.fraction)
        running.resumed = share_of_work(recipe, position.resumed_after / position.epochs) if position.epochs else 0.0

    def ended(self, trial: TrialSpec, status: str, seconds: float) -> None:
        """Note that a trial has ended; one with another status than `done` says nothing about the others."""
        self._waiting.pop(trial.trial_id, None)
        _, running = self._running.pop(trial.trial_id, (trial, _Running(0.0)))
        self.num_ended += 1
        if status == "done" and running.resumed < 1:
            self._done.append((trial, seconds / (1 - running.resumed)))

    @property
    def done(self) -> float:
        """Number of trials that have ended, with the fractions of those that run."""
        return self.num_ended + sum(running.fraction for _, running in self._running.values())

    def remaining(self) -> float | None:
        """Return the estimated seconds until all trials have ended; `None` before anything is known."""
        now = self._now()
        known = list(self._done)
        for trial, running in self._running.values():
            share = running.work - running.resumed
            if share >= SMALLEST_SHARE:
                known.append((trial, (now - running.began) / share))
        if not self._running and not self._waiting:
            return 0.0
        if not known:
            return None
        expected = _Expected(known)
        left = [expected.of(trial) for trial in self._waiting.values()]
        for trial, running in self._running.values():
            share = running.work - running.resumed
            if share >= SMALLEST_SHARE:
                left.append((now - running.began) / share * (1 - running.work))
            else:
                left.append(max(0.0, expected.of(trial) * (1 - running.resumed) - (now - running.began)))
        return max([sum(left) / self._most_at_once, *left])


class _Expected:
    """The seconds that trials are expected to take, from those of others.

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
