"""Dense training for fewer epochs joins the group of the methods that it is compared with."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from reports.data.groups import BASELINE, MACHINE, TrialGroup, label
from reports.data.trial_files import finite

_MAY_DIFFER = ("epochs", "recipe", *MACHINE)


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
        and (other.pool == group.pool if group.pool else _same_machine(other, group))
        and 0 < epochs(other) < epochs(group)
        and (ours := without_epochs(group)) is not None
        and without_epochs(other) == ours
    )


def _same_machine(one: TrialGroup, other: TrialGroup) -> bool:
    return all(one.key[name] == other.key[name] for name in MACHINE)


def epochs(group: TrialGroup) -> float:
    """Return the number of epochs of a group; 0 if it is not known."""
    return float(group.key["epochs"] or 0)


def share_of_steps(budget: TrialGroup, group: TrialGroup) -> float:
    """Return the steps of a dense training for fewer epochs relative to the whole one."""
    if epochs(budget) % 1 or epochs(group) % 1:  # the last epoch has fewer steps
        steps = [_steps(one) for one in (budget, group)]
        if all(steps):
            return steps[0] / steps[1]
    return epochs(budget) / epochs(group)


def _steps(group: TrialGroup) -> float:
    """Return the steps of dense; 0 if they are not recorded."""
    dense = next((trial for trial in group.trials if trial.done and label(trial) == BASELINE), None)
    steps = [finite(record.get("steps")) or 0.0 for record in dense.epochs] if dense else []
    return math.fsum(steps) if all(steps) else 0.0


def without_epochs(group: TrialGroup) -> dict[str, Any] | None:
    """Return the recipe without its epochs; `None` if it is not known, since anything else could differ too."""
    if not group.key["recipe"]:
        return None
    return {name: value for name, value in json.loads(group.key["recipe"]).items() if name != "epochs"}
