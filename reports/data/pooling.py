"""Trials of one setting on several machines: their accuracies are one group, and each machine has costs of its own.

The rules:

1. The accuracy of a setting (`ACCURACY`) differs from machine to machine only as it does from seed to seed, so that all
   seeds count. This is checked: where a method, or dense training of one length, has three seeds on both of two
   machines, the difference of their means has an interval. The intervals hold together at 95 %. If one of them excludes
   0, the machines are not pooled.
2. Times, memory and energy belong to a machine (`MACHINE`), and so do executed FLOPs, since backends are chosen by
   measurement. A group has those of one machine; a machine on which the time pass measured has a group of its own.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np
from scipy import stats

from reports.data.budget import without_epochs
from reports.data.estimates import CONFIDENCE, Estimate
from reports.data.groups import KEY, MACHINE, Elsewhere, TrialGroup, label
from reports.data.method_rows import by_seed
from reports.data.records import Trial
from suite.runs.folder.columns import COLUMNS
from suite.runs.folder.times import GroupTimes

ACCURACY = ("device", *(name for name in KEY if name not in MACHINE))
FEWEST_SEEDS = 3
_OF_ANY_MACHINE = ("test_accuracy", "test_accuracy_one_view", "test_loss", "val_accuracy", "best_epoch_accuracy")
_OF_ONE_MACHINE = (
    *(name for name, one in COLUMNS.items() if one.kind in ("measured", "machine") and name not in _OF_ANY_MACHINE),
    *("train_flops_executed", "flops_to_target"),
)
_EPOCH_OF_ONE_MACHINE = (*_OF_ONE_MACHINE, "step_memory_bytes", "backends", "communication")
_Machine = tuple[str, ...]


@dataclass(frozen=True)
class _Family:
    """Groups that agree in all of `ACCURACY` but the epochs, by machine, and the machines that were timed."""

    groups: Mapping[_Machine, Sequence[TrialGroup]]
    timed: frozenset[_Machine]


def pool_machines(groups: Sequence[TrialGroup], times: Sequence[GroupTimes]) -> list[TrialGroup]:
    """Return the groups, in order, in which trials of other machines count where they may.

    Args:
        groups: Groups of trials of one machine each.
        times: What the time pass measured, on these machines or on others.
    """
    families: dict[str, list[TrialGroup]] = {}
    for number, group in enumerate(groups):
        families.setdefault(_family(group) or str(number), []).append(group)
    found = [_pooled(_by_machine(several, times)) for several in families.values()]
    return [replace(group, elsewhere=(*group.elsewhere, *_refused(group, groups))) for group in chain(*found)]


def _family(group: TrialGroup) -> str | None:
    """Return what the groups of a family have in common; `None` if the machine or the recipe is not known."""
    recipe = without_epochs(group)
    if recipe is None or not group.key["hardware_id"]:
        return None
    known = {name: _text(group, name) for name in ACCURACY if name not in ("epochs", "recipe")}
    return json.dumps([known, recipe], sort_keys=True)


def _text(group: TrialGroup, name: str) -> str:
    return next(filter(None, (one.text("device") for one in group.trials)), "") if name == "device" else group.key[name]


def _machine(key: Mapping[str, str]) -> _Machine:
    return tuple(key[name] for name in MACHINE)


def _setting(key: Mapping[str, str]) -> dict[str, str]:
    return {name: key[name] for name in KEY if name not in MACHINE}


def _by_machine(groups: Sequence[TrialGroup], times: Sequence[GroupTimes]) -> _Family:
    settings = [_setting(group.key) for group in groups]
    timed = {
        _machine(one.key) for one in times if all(name in one.key for name in KEY) and _setting(one.key) in settings
    }
    machines = dict.fromkeys([*(_machine(group.key) for group in groups), *sorted(timed)])
    return _Family(
        {machine: [group for group in groups if _machine(group.key) == machine] for machine in machines},
        frozenset(timed),
    )


def _pooled(family: _Family) -> list[TrialGroup]:
    def order(machine: _Machine) -> tuple[bool, int]:
        done = sum(trial.done for group in family.groups[machine] for trial in group.trials)
        return machine not in family.timed, -done

    left, found = sorted(family.groups, key=order), []
    while left:
        first, groups = left[0], family.groups
        refused = {one for one in left[1:] if _elsewhere(one, groups[one], groups[first]).refused}
        together = [one for one in left if one not in refused]
        for own in [first, *(one for one in together[1:] if one in family.timed)]:
            others = [one for one in groups if one != own]
            seen = [_elsewhere(one, groups[one], groups[own]) for one in others]
            seen = [
                replace(one, refused="" if one.machine in together else one.refused or "they count elsewhere")
                for one in seen
                if one.done
            ]
            members = [(one, groups[one]) for one in others if one in together]
            found += _groups_of(own, groups[own], members, tuple(seen))
        left = [one for one in left if one in refused]
    return found


def _groups_of(
    machine: _Machine,
    own: Sequence[TrialGroup],
    others: Sequence[tuple[_Machine, Sequence[TrialGroup]]],
    seen: tuple[Elsewhere, ...],
) -> list[TrialGroup]:
    """Return one group for each setting, with the costs of a machine and the accuracies of all."""
    everywhere = [*own, *(group for _, groups in others for group in groups)]
    settings = {json.dumps(_setting(group.key)): _setting(group.key) for group in everywhere}
    found = []
    for setting in settings.values():
        trials = [trial for group in own if _setting(group.key) == setting for trial in group.trials]
        for _, groups in others:
            trials += [
                of_any_machine(trial)
                for group in groups
                if _setting(group.key) == setting
                for trial in group.trials
                if trial.done or trial.text("status") == "diverged"
            ]
        key = {**setting, **dict(zip(MACHINE, machine, strict=True))}
        if trials:
            found.append(TrialGroup({name: key[name] for name in KEY}, tuple(trials), elsewhere=seen))
    return found


def _elsewhere(machine: _Machine, there: Sequence[TrialGroup], here: Sequence[TrialGroup]) -> Elsewhere:
    """Compare the accuracies of two machines."""
    theirs, ours = _accuracies(there), _accuracies(here)
    both = [one for one in ours if len(ours[one]) >= FEWEST_SEEDS and len(theirs.get(one, ())) >= FEWEST_SEEDS]
    differences = {
        f"{name}, {epochs} epochs": _difference(theirs[name, epochs], ours[name, epochs], len(both))
        for name, epochs in both
    }
    unequal = [name for name, one in differences.items() if not one.covers(0.0)]
    count = sum(trial.done for group in there for trial in group.trials)
    return Elsewhere(machine, count, differences, f"the accuracy of {unequal[0]} differs" if unequal else "")


def _accuracies(groups: Iterable[TrialGroup]) -> dict[tuple[str, str], list[float]]:
    found = {}
    for group in groups:
        for name in dict.fromkeys(map(label, group.trials)):
            done = [trial for trial in group.trials if trial.done and label(trial) == name]
            found[name, group.key["epochs"]] = [*by_seed(done, "test_accuracy").values()]
    return found


def _difference(there: Sequence[float], here: Sequence[float], count: int) -> Estimate:
    """Return the difference of two means, whose interval holds together with those of `count` settings."""
    freedom = len(there) + len(here) - 2
    squares = sum(float(np.var(values)) * len(values) for values in (there, here))
    error = np.sqrt(squares / freedom * (1 / len(there) + 1 / len(here)))
    width = float(stats.t.ppf(1 - (1 - CONFIDENCE) / (2 * count), freedom) * error)
    return Estimate(float(np.mean(there) - np.mean(here)), width, min(len(there), len(here)))


def _refused(group: TrialGroup, groups: Sequence[TrialGroup]) -> list[Elsewhere]:
    """Return the machines whose trials of the same task and model have another setting, with its name."""
    found: dict[_Machine, Elsewhere] = {}
    for other in groups:
        machine, hardware = _machine(other.key), other.key["hardware_id"]
        if hardware in ("", group.key["hardware_id"]) or any(one.machine == machine for one in group.elsewhere):
            continue
        if all(other.key[name] == group.key[name] for name in ("task", "model")) and _family(other) != _family(group):
            count = sum(trial.done for trial in other.trials)
            found.setdefault(
                machine, Elsewhere(machine, count, {}, f"their {' and '.join(_names(group, other))} differ")
            )
    return [*found.values()]


def _names(group: TrialGroup, other: TrialGroup) -> list[str]:
    names = [name for name in ACCURACY if name not in ("recipe", "epochs") and _text(group, name) != _text(other, name)]
    ours, theirs = (without_epochs(one) or {} for one in (group, other))
    fields = [f"recipe.{name}" for name in sorted({*ours, *theirs}) if ours.get(name) != theirs.get(name)]
    return [*names, *(field for field in fields if field.removeprefix("recipe.") not in names)] or ["machine"]


def of_any_machine(trial: Trial) -> Trial:
    """Return a trial without what belongs to the machine that it ran on."""
    return replace(
        trial,
        texts={name: text for name, text in trial.texts.items() if name not in _OF_ONE_MACHINE},
        numbers={name: value for name, value in trial.numbers.items() if name not in _OF_ONE_MACHINE},
        provenance={},
        epochs=tuple(_epoch(record) for record in trial.epochs),
        elsewhere=True,
    )


def _epoch(record: Mapping[str, Any]) -> dict[str, Any]:
    found = {name: value for name, value in record.items() if name not in _EPOCH_OF_ONE_MACHINE}
    for name in ("step_flops", "train_flops"):
        if isinstance(found.get(name), Mapping):
            found[name] = {kind: value for kind, value in found[name].items() if kind != "executed"}
    return found
