"""Whether the measured times of a group can bear a comparison."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby, pairwise
from typing import Any

from reports.records import Trial

# Epochs of one shape do equal work. On an idle machine their times differ by a few percent.
_UNSTEADY = 1.5


def unsteady_times(trials: Sequence[Trial]) -> list[str]:
    """One line where a step took much longer in one epoch than in another of the same trial, with equal work to do.

    Compared are epochs with equal current shapes and batch size; the first epoch is left out, for it warms up.
    """
    found = {trial.name: spread for trial in trials if trial.done and (spread := _spread(trial)) > _UNSTEADY}
    if not found:
        return []
    worst = max(found, key=lambda name: found[name])
    return [
        f"Times are unsteady: in {len(found)} of {sum(trial.done for trial in trials)} trials a step took more than "
        f"{_UNSTEADY} times as long in one epoch as in another with the same work (at most {found[worst]:.1f} times, "
        f"in {worst}). Something other than the method decides such times, load on the machine for example."
    ]


def _spread(trial: Trial) -> float:
    """The longest over the shortest time of a step among epochs of equal work; 1 where none can be compared."""
    epochs: list[tuple[Any, float]] = []
    for before, record in pairwise(trial.epochs):
        times = (before.get("train_time_s"), record.get("train_time_s"), record.get("steps", 1))
        if all(isinstance(value, (int, float)) and value > 0 for value in times):
            began, ended, steps = times
            # Both ends of the epoch, so that one with a reconfiguration is compared with none.
            shapes = tuple((end.get("step_flops") or {}).get("current") for end in (before, record))
            work = (shapes, record.get("batch_size"))
            epochs.append((work, (ended - began) / steps))  # type: ignore[operator]
    spread = 1.0
    for _, equal in groupby(epochs, key=lambda epoch: epoch[0]):
        steps_times = [time for _, time in equal if time > 0]
        if steps_times:
            spread = max(spread, max(steps_times) / min(steps_times))
    return spread
