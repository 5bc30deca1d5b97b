"""Dense training for fewer epochs: the accuracy that dense training reaches for a share of the cost.

A step of dense training costs the same in every epoch, so dense training for 6 of 7 epochs takes 6/7 of the time and of
the FLOPs. This share is exact; the measured times of these trials are not used. With growing images it is exact up to
the epochs in which the size changes, since these are shares of all epochs, rounded to whole ones.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from reports.data.groups import BASELINE, TrialGroup, label, seed_of

_MAY_DIFFER = ("epochs", "recipe")


@dataclass(frozen=True)
class BudgetCurve:
    """Accuracy of dense training by share of the epochs.

    Attributes:
        points: For each seed, the share of the epochs and the accuracy of its trials, ascending; the last share is 1.
    """

    points: Mapping[int, tuple[tuple[float, float], ...]]

    def at(self, seed: int, share: float) -> float | None:
        """Return the accuracy of dense training for a share of the cost, interpolated between two trainings.

        A share above 1 gives the accuracy of the whole training, which costs less. The result is `None` if the seed has
        no dense training for so small a share.
        """
        points = self.points.get(seed, ())
        if not points or share < points[0][0]:
            return None
        if share >= points[-1][0]:
            return points[-1][1]
        place = next(index for index, (known, _) in enumerate(points) if known > share)
        (low, below), (high, above) = points[place - 1], points[place]
        return below + (above - below) * (share - low) / (high - low)

    def slope(self, seed: int, share: float) -> float:
        """Return how fast the accuracy rises with the share where `at` interpolates; 0 where it does not."""
        points = self.points.get(seed, ())
        for (low, below), (high, above) in pairwise(points):
            if low <= share < high:
                return (above - below) / (high - low)
        return 0.0

    @property
    def shares(self) -> list[float]:
        """All shares for which some seed has a dense training, ascending."""
        return sorted({share for points in self.points.values() for share, _ in points})

    def with_share(self, share: float) -> dict[int, float]:
        """Return the accuracy of each seed that has a dense training for exactly this share."""
        return {seed: dict(points)[share] for seed, points in self.points.items() if share in dict(points)}


def fold_budgets(groups: Sequence[TrialGroup]) -> list[TrialGroup]:
    """Move groups of dense trainings for fewer epochs into the groups whose methods they are compared with.

    Args:
        groups: Groups of comparable trials. Two of them may differ only in the number of epochs. Groups whose recipe is
            not known, because only their rows in the table are left, are not moved.

    Returns:
        The groups that remain, in order, each with the dense trainings for fewer epochs in `budgets`.
    """
    absorbed: set[int] = set()
    found = []
    for group in groups:
        shorter = [other for other in groups if _is_budget(other, group)]
        absorbed |= {id(other) for other in shorter}
        found.append((group, replace(group, budgets=tuple(sorted(shorter, key=epochs)))))
    return [folded for group, folded in found if id(group) not in absorbed]


def budget_curve(group: TrialGroup) -> BudgetCurve:
    """Return the dense trainings of a group and of its budgets."""
    accuracies: dict[int, dict[float, list[float]]] = {}
    for one in (*group.budgets, group):
        share = 1.0 if one is group else epochs(one) / epochs(group)  # the epochs of a group may be unknown
        for trial in one.trials:
            accuracy = trial.number("test_accuracy")
            if trial.done and label(trial) == BASELINE and accuracy is not None:
                accuracies.setdefault(seed_of(trial), {}).setdefault(share, []).append(accuracy)
    return BudgetCurve(
        {
            seed: tuple((share, sum(several) / len(several)) for share, several in sorted(by_share.items()))
            for seed, by_share in accuracies.items()
            if 1.0 in by_share
        }
    )


def _is_budget(other: TrialGroup, group: TrialGroup) -> bool:
    names = {label(trial) for trial in group.trials}
    return (
        {label(trial) for trial in other.trials} == {BASELINE}
        and BASELINE in names
        and len(names) > 1
        and all(other.key[name] == group.key[name] for name in group.key if name not in _MAY_DIFFER)
        and 0 < epochs(other) < epochs(group)
        and (ours := _without_epochs(group)) is not None
        and _without_epochs(other) == ours
    )


def epochs(group: TrialGroup) -> float:
    """Return the number of epochs of a group; 0 if it is not known."""
    return float(group.key["epochs"] or 0)


def _without_epochs(group: TrialGroup) -> dict[str, Any] | None:
    """Return the recipe without its epochs; `None` if it is not known, since anything else could differ too."""
    if not group.key["recipe"]:
        return None
    return {name: value for name, value in json.loads(group.key["recipe"]).items() if name != "epochs"}
