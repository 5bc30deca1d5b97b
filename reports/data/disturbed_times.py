"""Find signs in the records that the measured times of a trial are unreliable. `run` uses this without pandas."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from itertools import groupby, pairwise
from typing import Any

from suite.trials.folder.records import TrialRecord
from suite.trials.folder.times import BUSY

# Epochs with equal shapes do equal work. On an idle machine their times differ by a few percent.
UNSTEADY = 1.5

DISTURBED = "disturbed"
DISTURBED_RATIO = "one of the times was disturbed, so that their ratio says nothing"
DISTURBED_NOTE = "Disturbed: something other than the method affected this time (see the remarks). Do not rely on it."


def is_disturbed(trial: TrialRecord) -> bool:
    """Return whether the records show that a trial's times were disturbed. Records cannot prove the opposite."""
    return trial.done and (spread(trial) > UNSTEADY or busy_share(trial) >= BUSY or shared_with(trial) > 0)


def mark_disturbed(text: str, disturbed: bool) -> str:
    """Return the text of a time, marked if it is disturbed: `6 min 12 s (disturbed)`."""
    return f"{text} ({DISTURBED})" if disturbed else text


def attempts(trial: TrialRecord) -> list[Mapping[str, Any]]:
    """Return the attempts before the one that finished the trial."""
    known: list[Mapping[str, Any]] = trial.provenance.get("attempts", [])
    return known


def busy_share(trial: TrialRecord) -> float:
    """Return the largest number of busy cores before an attempt, divided by the number of cores of the trial."""
    threads = trial.provenance.get("hardware", {}).get("threads")
    loads = [record.get("busy_cores") or 0.0 for record in (trial.provenance, *attempts(trial))]
    return max(loads) / threads if threads else 0.0


def shared_with(trial: TrialRecord) -> float:
    """Return the largest number of other trials on the device during an attempt; 0 if the record names none."""
    places = [record.get("place") or {} for record in (trial.provenance, *attempts(trial))]
    return max(place.get("shared_with") or 0.0 for place in places)


@cache  # tables and figures of a report ask for the same trials many times
def spread(trial: TrialRecord) -> float:
    """Return the longest over the shortest time per step among epochs of equal work; 1 if no two can be compared."""
    epochs: list[tuple[Any, float]] = []
    for before, record in pairwise(trial.epochs):
        began, ended, steps = before.get("train_time_s"), record.get("train_time_s"), record.get("steps")
        if began and ended and steps:
            # The shapes before and after an epoch tell one with a reconfiguration from one without.
            shapes = tuple(end.get("step_flops", {}).get("current") for end in (before, record))
            epochs.append(((shapes, record.get("batch_size")), (ended - began) / steps))
    largest = 1.0
    for _, equal in groupby(epochs, key=lambda epoch: epoch[0]):
        steps_times = [time for _, time in equal if time > 0]
        if steps_times:
            largest = max(largest, max(steps_times) / min(steps_times))
    return largest
