"""What the terminal shows while trials run, or measurements: bars, or lines where the output is not a terminal."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from suite.trials.progress import Position, Sweep, duration, ended_line, epoch_line
from suite.trials.spec import TrialSpec

SWEEP_INTERVAL = 60.0
"""Seconds between two lines about all trials while no trial ends."""


class ProgressListener(Protocol):
    """Receives what happens while an engine runs trials."""

    def started(self, trial: TrialSpec) -> None: ...

    def position(self, trial: TrialSpec, position: Position) -> None: ...

    def epoch(self, trial: TrialSpec, record: dict[str, Any]) -> None: ...

    def ended(self, trial: TrialSpec, record: dict[str, Any], seconds: float) -> None: ...


class _AllTrials:
    """The line about all trials of a command."""

    def __init__(self, trials: Sequence[TrialSpec], now: Callable[[], float] = time.monotonic) -> None:
        self.sweep = Sweep(trials, now)
        self._now, self._next = now, now() + SWEEP_INTERVAL

    def line(self, at_once: bool) -> str:
        """Return how many trials have ended, and the remaining time of the others.

        The line is empty for a single trial, after the last trial and before the time can be estimated. Without
        `at_once` it is also empty if the last line was printed less than `SWEEP_INTERVAL` ago.
        """
        sweep, now = self.sweep, self._now()
        if sweep.total < 2 or sweep.num_ended == sweep.total or (now < self._next and not at_once):
            return ""
        if (left := sweep.remaining()) is None:
            return ""
        self._next = now + SWEEP_INTERVAL
        return f"{sweep.num_ended} of {sweep.total} trials have ended, about {duration(left)} left for all of them"


class Lines:
    """Prints one line per epoch, for files and pipes."""

    def __init__(self, trials: Sequence[TrialSpec], console: Console) -> None:
        self._total, self._begun, self._console = len(trials), 0, console
        self._all = _AllTrials(trials)
        self._resumed: set[str] = set()
        self._before: dict[str, Mapping[str, Any]] = {}  # latest record of each trial

    def started(self, trial: TrialSpec) -> None:
        self._begun += 1
        self._all.sweep.started(trial)
        self._print(f"{trial.trial_id}  trial {self._begun}/{self._total}: {trial.label}")

    def position(self, trial: TrialSpec, position: Position) -> None:
        """Print once where a resumed trial continues, and from time to time a line about all trials."""
        self._all.sweep.position(trial, position)
        if position.resumed_after and trial.trial_id not in self._resumed:
            self._resumed.add(trial.trial_id)
            self._print(f"{trial.trial_id}  resumed after epoch {position.resumed_after}/{position.epochs}")
        if line := self._all.line(at_once=False):  # an epoch may take minutes
            self._print(line)

    def epoch(self, trial: TrialSpec, record: dict[str, Any]) -> None:
        self._print(epoch_line(trial, record, self._before.get(trial.trial_id)))
        self._before[trial.trial_id] = record

    def ended(self, trial: TrialSpec, record: dict[str, Any], seconds: float) -> None:
        self._before.pop(trial.trial_id, None)
        self._all.sweep.ended(trial, record["status"], seconds)
        self._print(ended_line(trial, record, seconds))
        if line := self._all.line(at_once=True):
            self._print(line)

    def __enter__(self) -> Lines:
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def _print(self, line: str) -> None:
        # rich would wrap the line and read its brackets as markup.
        print(line, file=self._console.file, flush=True)


class Bars:
    """Shows a bar per running trial with its remaining time, and one for all trials, for terminals."""

    def __init__(self, trials: Sequence[TrialSpec], console: Console) -> None:
        self._progress = _bars(console)
        self._total, self._begun = len(trials), 0
        self._all = _AllTrials(trials)
        self._whole = (
            self._progress.add_task("all trials", total=float(len(trials)), note="") if len(trials) > 1 else None
        )
        self._bars: dict[str, TaskID] = {}
        self._before: dict[str, Mapping[str, Any]] = {}  # latest record of each trial

    def started(self, trial: TrialSpec) -> None:
        self._begun += 1
        self._all.sweep.started(trial)
        text = f"{self._begun}/{self._total} {trial.trial_id}"
        self._bars[trial.trial_id] = self._progress.add_task(text, total=1.0, note="")

    def position(self, trial: TrialSpec, position: Position) -> None:
        bar = self._bars[trial.trial_id]
        self._all.sweep.position(trial, position)
        self._show_all()
        self._progress.update(bar, completed=position.fraction)
        if position.resumed_after and not self._progress.tasks[self._progress.task_ids.index(bar)].fields["note"]:
            self._progress.update(bar, note=f"resumed after epoch {position.resumed_after}/{position.epochs}")

    def epoch(self, trial: TrialSpec, record: dict[str, Any]) -> None:
        note = epoch_line(trial, record, self._before.get(trial.trial_id)).partition("  ")[2]
        self._before[trial.trial_id] = record
        self._progress.update(self._bars[trial.trial_id], note=note)

    def ended(self, trial: TrialSpec, record: dict[str, Any], seconds: float) -> None:
        self._before.pop(trial.trial_id, None)
        self._all.sweep.ended(trial, record["status"], seconds)
        self._show_all()
        self._progress.remove_task(self._bars.pop(trial.trial_id))
        self._progress.console.print(ended_line(trial, record, seconds), markup=False, highlight=False)

    def _show_all(self) -> None:
        if self._whole is not None:
            left = self._all.sweep.remaining()
            note = "" if left is None else f"about {duration(left)} left"
            self._progress.update(self._whole, completed=self._all.sweep.done, note=note)

    def __enter__(self) -> Bars:
        self._progress.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._progress.stop()


class Measurements:
    """Prints before each measurement what comes, how long it and all others may take, and shows a bar on a terminal.

    Args:
        trials: The trial of each measurement that comes.
        console: Where they are shown; by default the standard output.
    """

    def __init__(self, trials: Sequence[TrialSpec], console: Console | None = None) -> None:
        # A bar that is drawn more often takes time from what is measured.
        self._progress = _bars(console or Console(), transient=True, refresh_per_second=1)
        self._bar = self._progress.add_task("all measurements", total=float(len(trials)), note="")
        self._sweep, self._begun, self._lock = Sweep(trials), 0, threading.Lock()

    @contextmanager
    def measuring(self, trial: TrialSpec, what: str) -> Iterator[None]:
        """Announce a measurement, and note its end. Several threads may measure at the same time."""
        with self._lock:
            self._begun += 1
            line = f"measurement {self._begun}/{self._sweep.total}: {what}"
            if (seconds := self._sweep.expected(trial)) is not None:
                line += f"; about {duration(seconds)}"
            self._sweep.started(trial)
            if (left := self._sweep.remaining()) is not None and self._begun < self._sweep.total:
                line += f", about {duration(left)} left for all of them"
            self._progress.console.print(line, markup=False, highlight=False, soft_wrap=True)
            self._progress.start()
        began, status = time.monotonic(), "error"
        try:
            yield
            status = "done"
        finally:
            with self._lock:
                self._sweep.ended(trial, status, time.monotonic() - began)
                self._progress.update(self._bar, completed=self._sweep.num_ended)
                if self._sweep.num_ended == self._begun:  # what is printed between measurements needs no care for a bar
                    self._progress.stop()


def _bars(console: Console, **options: Any) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[note]}"))
    times = (TimeElapsedColumn(), TimeRemainingColumn())
    return Progress(*columns, *times, console=console, disable=not console.is_terminal, **options)


def listener_for(console: Console, trials: Sequence[TrialSpec]) -> Lines | Bars:
    """Return a listener that shows bars on a terminal and lines elsewhere, for the trials that will run."""
    return Bars(trials, console) if console.is_terminal else Lines(trials, console)
