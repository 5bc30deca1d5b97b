"""Dense training for fewer epochs joins the group of the methods that it is compared with."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from reports.data.groups import BASELINE, TrialGroup, label

_MAY_DIFFER = ("epochs", "recipe")


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
