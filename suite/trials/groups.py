"""Groups of trials that may be compared with each other.

Dense training for fewer epochs joins the group of the methods that it is compared with.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from suite.files import canonical_json
from suite.parameters import at_default
from suite.recipe import Recipe
from suite.trials.controls import BASELINE
from suite.trials.estimates import Estimate
from suite.trials.folder.reader import finite
from suite.trials.folder.records import TrialRecord
from suite.trials.folder.times import MethodTime

# Trials of one machine agree in these. Accuracies of several machines may be compared (`reports.data.pooling`).
KEY = (
    *("task", "data_copy", "model", "hardware_id", "threads", "torch", "dtype", "arithmetic", "preset", "recipe"),
    *("epochs", "batch_size", "execution"),
)
MACHINE = ("hardware_id", "threads", "torch")  # what makes times comparable
Machine = tuple[str, ...]  # text for each name in `MACHINE`


@dataclass(frozen=True)
class TrialGroup:
    """Trials with the same key.

    Attributes:
        key: Text of each name of `KEY`.
        trials: The trials, in the order of the table.
        budgets: Dense trainings for fewer epochs that the trials are compared with (`fold_budgets`), one group for each
            number of epochs, ascending.
        times: Training times from the time pass, by label.
        elsewhere: Trials of the same task and model on other machines, and whether they count here.
        pool: Machines whose accuracies count here.
        trained: Machine whose trials have costs here; mostly that of the key.
    """

    key: Mapping[str, str]
    trials: tuple[TrialRecord, ...]
    budgets: tuple[TrialGroup, ...] = ()
    times: Mapping[str, MethodTime] = field(default_factory=dict)
    elsewhere: tuple[Elsewhere, ...] = ()
    pool: frozenset[Machine] = frozenset()
    trained: Machine = ()


@dataclass(frozen=True)
class Elsewhere:
    """Trials on another machine.

    Attributes:
        done: Finished trials.
        differences: Accuracy there minus here, as a fraction, for each method that has three seeds on both machines.
        refused: Why the trials do not count here; empty if they do.
    """

    machine: Machine
    done: int
    differences: Mapping[str, Estimate]
    refused: str = ""


def label(trial: TrialRecord) -> str:
    """Return the method with its parameters as a user writes it: `sdgp[n=2,m=4]`."""
    variant = trial.text("variant")
    return f"{trial.text('method')}[{variant}]" if variant else trial.text("method")


def is_control(trial: TrialRecord) -> bool:
    """Return whether a trial is a control of methods, such as a random twin, of which a report claims nothing."""
    return trial.spec.control


def is_without_pruning(trial: TrialRecord) -> bool:
    """Return whether a trial is a way to save training time without pruning; dense itself and controls are none."""
    known = trial.spec.prunes is False and label(trial) != BASELINE
    return (known or _is_variant_of_dense(trial)) and not is_control(trial)


def _is_variant_of_dense(trial: TrialRecord) -> bool:
    return trial.text("method") == BASELINE and trial.text("variant") != ""


def recipe(trial: TrialRecord) -> str:
    """Return what differs from the recipe's declared defaults as one text.

    A value that a method alone has is part of its label. This text then has the value of the other methods.
    """
    shared = {**trial.spec.recipe, **trial.spec.replaced}
    defaults = at_default(Recipe, shared)
    return canonical_json({name: value for name, value in shared.items() if name not in defaults})


def group_trials(trials: Iterable[TrialRecord]) -> tuple[list[TrialGroup], list[TrialRecord]]:
    """Group trials by key, in the order of the table.

    Parts of a key may be unknown: the trial failed before its hardware was recorded. It joins the only group whose
    known parts match. If there is no group to join, or more than one, a finished trial forms a new group. A failed
    trial forms a new group if none matches.

    Returns:
        The groups, and the trials that were not assigned: failed ones that match several groups.
    """
    trials = list(trials)
    unassigned: list[TrialRecord] = []
    named = [(_key(trial), trial) for trial in trials]
    # Trials with the most complete keys come first, so that later trials find their groups.
    order = sorted(named, key=lambda pair: (not pair[1].done, sum(not part for part in pair[0])))
    trials_by_key: dict[tuple[str, ...], list[TrialRecord]] = {}
    for own, trial in order:
        fits = [own] if own in trials_by_key else [key for key in trials_by_key if not _contradict(own, key)]
        if len(fits) > 1 and not trial.done:
            unassigned.append(trial)
        else:
            trials_by_key.setdefault(fits[0] if len(fits) == 1 else own, []).append(trial)
    places = {id(trial): place for place, trial in enumerate(trials)}
    groups = [
        TrialGroup(dict(zip(KEY, key, strict=True)), tuple(sorted(members, key=lambda trial: places[id(trial)])))
        for key, members in trials_by_key.items()
    ]
    # Groups are in the order of their first finished trial, or of their first trial if none has finished.
    groups.sort(key=lambda group: min((not trial.done, places[id(trial)]) for trial in group.trials))
    return groups, sorted(unassigned, key=lambda trial: places[id(trial)])


def _contradict(one: Sequence[str], other: Sequence[str]) -> bool:
    return any(mine and theirs and mine != theirs for mine, theirs in zip(one, other, strict=True))


def _key(trial: TrialRecord) -> tuple[str, ...]:
    texts = {name: column_text(trial, name) for name in KEY if name != "recipe"}
    shared = finite(trial.spec.replaced.get("epochs"))
    if shared is not None:  # as in `recipe`, its own number of epochs does not part it from others
        texts["epochs"] = f"{shared:g}"
    return tuple(recipe(trial) if name == "recipe" else texts[name] for name in KEY)


def column_text(trial: TrialRecord, name: str) -> str:
    """Return a text or numeric column as text."""
    value = trial.value(name)
    return f"{value:g}" if isinstance(value, (int, float)) else value or ""


def seed_of(trial: TrialRecord) -> int:
    """Return the seed of a trial."""
    return trial.spec.seed


_MAY_DIFFER = ("epochs", "recipe", *MACHINE)


def fold_budgets(groups: Sequence[TrialGroup]) -> list[TrialGroup]:
    """Move groups of dense trainings for fewer epochs into the groups whose methods they are compared with.

    Args:
        groups: Groups of comparable trials. A pair may differ only in the number of epochs.

    Returns:
        The groups that remain, in order, each with the dense trainings for fewer epochs in `budgets`.
    """
    absorbed: set[int] = set()
    kept = []
    for group in groups:
        shorter = [budget for budget in groups if _is_budget(budget, group)]
        absorbed |= {id(budget) for budget in shorter}
        kept.append((group, replace(group, budgets=tuple(sorted(shorter, key=epochs)))))
    return [folded for group, folded in kept if id(group) not in absorbed]


def _is_budget(other: TrialGroup, group: TrialGroup) -> bool:
    names = {label(trial) for trial in group.trials}
    return (
        {label(trial) for trial in other.trials} == {BASELINE}
        and BASELINE in names
        and len(names) > 1
        and all(other.key[name] == group.key[name] for name in group.key if name not in _MAY_DIFFER)
        and (other.pool == group.pool if group.pool else _same_machine(other, group))
        and 0 < epochs(other) < epochs(group)
        and without_epochs(other) == without_epochs(group)
    )


def _same_machine(one: TrialGroup, other: TrialGroup) -> bool:
    return all(one.key[name] == other.key[name] for name in MACHINE)


def epochs(group: TrialGroup) -> float:
    """Return the number of epochs of a group; 0 if it is not known."""
    return float(group.key["epochs"] or 0)


def share_of_steps(budget: TrialGroup, group: TrialGroup) -> float:
    """Return the steps of a dense training for fewer epochs relative to the whole one."""
    if epochs(budget) % 1 or epochs(group) % 1:  # an epoch is partial: the last epoch has fewer steps
        steps = [_steps(item) for item in (budget, group)]
        if all(steps):
            return steps[0] / steps[1]
    return epochs(budget) / epochs(group)


def _steps(group: TrialGroup) -> float:
    dense = next((trial for trial in group.trials if trial.done and label(trial) == BASELINE), None)
    steps = [finite(record.get("steps")) or 0.0 for record in dense.epochs] if dense else []
    return math.fsum(steps) if all(steps) else 0.0


def without_epochs(group: TrialGroup) -> dict[str, Any]:
    """Return the recipe without its epochs."""
    return {name: value for name, value in json.loads(group.key["recipe"]).items() if name != "epochs"}
