"""Callbacks in the process of a command, called with what an engine reports. `suite.run` uses them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from suite.trials.callbacks.calls import CallbackTrial, Calls
from suite.trials.folder.records import read_record
from suite.trials.process import Position
from suite.trials.progress import ProgressListener
from suite.trials.spec import TrialSpec

Callback = Callable[[CallbackTrial, dict[str, Any]], object]


class CallingListener(ProgressListener):
    """Passes every report of an engine to another listener, and calls functions after each epoch and each trial.

    If a function raises an exception, it is not called again for that trial. Trials and other functions go on.

    Args:
        shown: The other listener.
        trials: Folder of the trials.
        functions: Functions by name, `on_epoch` and `on_trial`. Each is called with the trial and a record, as a
            plugin's callbacks are.
    """

    def __init__(self, shown: ProgressListener, trials: Path, functions: Mapping[str, Callback]) -> None:
        self._shown, self._trials, self._functions = shown, trials, functions
        self._calls: dict[str, Calls] = {}

    def started(self, trial: TrialSpec) -> None:
        """Pass the report on."""
        self._shown.started(trial)

    def position(self, trial: TrialSpec, position: Position) -> None:
        """Pass the report on."""
        self._shown.position(trial, position)

    def epoch(self, trial: TrialSpec, record: dict[str, Any]) -> None:
        """Pass the report on, and call `on_epoch`."""
        self._shown.epoch(trial, record)
        self._of(trial).epoch(record)

    def ended(self, trial: TrialSpec, record: dict[str, Any], seconds: float) -> None:
        """Pass the report on, and call `on_trial` with the record in the folder, or else with how the trial ended."""
        self._shown.ended(trial, record, seconds)
        written = read_record(self._trials / trial.trial_id)
        self._of(trial).end(written.to_json() if written else record)
        self._calls.pop(trial.trial_id, None)

    def _of(self, trial: TrialSpec) -> Calls:
        if trial.trial_id not in self._calls:
            called = CallbackTrial.of(trial, self._trials / trial.trial_id)
            single = [SimpleNamespace(**{hook: function}) for hook, function in self._functions.items()]
            names = list(self._functions)
            self._calls[trial.trial_id] = Calls(names, called, lambda name: single[names.index(name)])
        return self._calls[trial.trial_id]
