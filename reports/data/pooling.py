"""Trials of one setting on several machines: their accuracies are one group, and each machine has its own costs.

The rules:

1. The accuracy of a setting (`ACCURACY`) differs from machine to machine only as it does from seed to seed, so that all
   seeds count. This module checks that: if a method, or dense training of one length, has three seeds on each of two
   machines, the difference of their means has an interval. All intervals of two machines hold together at 95 %. If one
   of them excludes 0, the two machines are not pooled. Diverged trainings and guesses are left out.
2. Times, memory and energy belong to a machine (`MACHINE`). So do executed FLOPs, because a measurement chooses the
   backends. A group has the costs of the machine with most of its trials. A machine on which the time pass measured has
   its own group, with the costs of its own trials if it has any.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
from scipy import stats

from reports.data.estimates import CONFIDENCE, Estimate, is_guess
from reports.data.method_rows import by_seed
from reports.data.records import Elsewhere, Machine, PageGroup, without_epochs
from reports.data.records import epochs as epochs_of
from suite.measure.times import GroupTimes, MethodTime
from suite.trials.folder.records import TrialRecord
from suite.trials.folder.table import COLUMNS
from suite.trials.groups import BASELINE, KEY, MACHINE, label

ACCURACY = ("device", *(name for name in KEY if name not in MACHINE))
FEWEST_SEEDS = 3
_OF_ANY_MACHINE = ("test_accuracy", "test_accuracy_one_view", "test_loss", "val_accuracy", "best_epoch_accuracy")
_OF_ONE_MACHINE = (
    *(name for name, one in COLUMNS.items() if one.kind in ("measured", "machine") and name not in _OF_ANY_MACHINE),
    *("train_flops_executed", "flops_to_target"),
)
# The time of reconfigurations stays, because reports use only the share of it that has passed by an epoch.
_EPOCH_OF_ONE_MACHINE = {*_OF_ONE_MACHINE, "step_memory_bytes", "backends", "communication"} - {"reconfigure_time_s"}
_EQUAL = 1e-9  # accuracies are fractions of images


def pool_machines(groups: Sequence[PageGroup], times: Sequence[GroupTimes]) -> list[PageGroup]:
    """Return the groups, in order, with their times, and with the trials of other machines where they may count.

    Args:
        groups: Groups of trials of one machine each.
        times: What the time pass measured, on these machines or on others.
    """
    families: dict[str, list[PageGroup]] = {}
    for number, group in enumerate(groups):
        families.setdefault(_family(group) or str(number), []).append(group)
    pooled = chain(*(_of_family(several, times) for several in families.values()))
    return [replace(group, elsewhere=(*group.elsewhere, *_refused(group, groups))) for group in pooled]


def _family(group: PageGroup) -> str | None:
    """Return the key of a group without machine and epochs; `None` if the machine is not known."""
    if not group.key["hardware_id"]:
        return None
    known = {name: _text(group, name) for name in ACCURACY if name not in ("epochs", "recipe")}
    return json.dumps([known, without_epochs(group)], sort_keys=True)


def _text(group: PageGroup, name: str) -> str:
    return next(filter(None, (one.text("device") for one in group.trials)), "") if name == "device" else group.key[name]


def _machine(key: Mapping[str, str]) -> Machine:
    return tuple(key[name] for name in MACHINE)


def _setting(key: Mapping[str, str]) -> dict[str, str]:
    return {name: key[name] for name in KEY if name not in MACHINE}


def _done(groups: Iterable[PageGroup]) -> int:
    return sum(trial.done for group in groups for trial in group.trials)


def _of_family(groups: Sequence[PageGroup], times: Sequence[GroupTimes]) -> list[PageGroup]:
    """Return the groups of a family: one for each setting, pool of machines and machine that was timed."""
    machines: dict[Machine, list[PageGroup]] = {}
    for group in groups:
        machines.setdefault(_machine(group.key), []).append(group)
    pools, is_known = _pools(machines), _family(groups[0]) is not None
    found = []
    for number, pool in enumerate(pools):
        members = [group for group in groups if _machine(group.key) in pool]
        for setting in {json.dumps(_setting(group.key)): _setting(group.key) for group in members}.values():
            trials = {
                _machine(one.key): one.trials
                for one in sorted(members, key=lambda group: -_done([group]))
                if _setting(one.key) == setting
            }
            # A machine with measured times and no trials belongs to the largest pool.
            timed = {
                _machine(one.key): one.methods
                for one in times
                if all(name in one.key for name in KEY)
                and _setting(one.key) == setting
                and (_machine(one.key) in pool or (is_known and _machine(one.key) not in machines and number == 0))
            }
            for machine, methods in (timed or {next(iter(trials)): {}}).items():
                group = _group(setting, machine, trials, methods)
                seen = (_elsewhere(one, group, pool, machines, trials) for one in machines if one != group.trained)
                found.append(replace(group, pool=frozenset(pool), elsewhere=tuple(one for one in seen if one.done)))
    return found


def _pools(machines: Mapping[Machine, Sequence[PageGroup]]) -> list[list[Machine]]:
    """Return pools of machines that agree with each other, those with most trials first."""
    pools: list[list[Machine]] = []
    for machine in sorted(machines, key=lambda one: -_done(machines[one])):
        for pool in pools:
            if not any(_unequal(_differences(machines[machine], machines[one])) for one in pool):
                pool.append(machine)
                break
        else:
            pools.append([machine])
    return pools


def _group(
    setting: Mapping[str, str],
    machine: Machine,
    trials: Mapping[Machine, Sequence[TrialRecord]],
    methods: Mapping[str, MethodTime],
) -> PageGroup:
    """Return the group of a machine, with the costs of its own trials or else of the most similar machine's."""

    def likeness(one: Machine) -> tuple[bool, bool]:
        return one == machine, one[0] == machine[0]

    similar = max(trials, key=likeness)  # the first of equals, which has most trials
    others = [of_any_machine(trial) for one, several in trials.items() if one != similar for trial in several]
    key = {**setting, **dict(zip(MACHINE, machine, strict=True))}
    return PageGroup({name: key[name] for name in KEY}, (*trials[similar], *others), times=methods, trained=similar)


def _elsewhere(
    machine: Machine,
    group: PageGroup,
    pool: Sequence[Machine],
    machines: Mapping[Machine, Sequence[PageGroup]],
    trials: Mapping[Machine, Sequence[TrialRecord]],
) -> Elsewhere:
    """Return what another machine of the family has, and the reason if its trials do not count in a group."""
    differences = _differences(machines[machine], machines[group.trained])
    if machine in pool:
        return Elsewhere(machine, sum(trial.done for trial in trials.get(machine, ())), differences)
    against = (_unequal(_differences(machines[machine], machines[one])) for one in (group.trained, *pool))
    reason = next(filter(None, against), "")
    why = f"the accuracy of {reason} differs" if reason else "their accuracies differ from others of this table"
    return Elsewhere(machine, _done(machines[machine]), differences, why)


def _unequal(differences: Mapping[str, Estimate]) -> str:
    """Return the first setting whose interval excludes 0; empty if there is none."""
    unequal = (name for name, one in differences.items() if abs(one.mean) > (one.half_width or 0.0) + _EQUAL)
    return next(unequal, "")


def _differences(there: Sequence[PageGroup], here: Sequence[PageGroup]) -> dict[str, Estimate]:
    """Return the differences of the accuracies of two machines, with intervals that hold together."""
    theirs, ours = _accuracies(there), _accuracies(here)
    both = [one for one in ours if len(ours[one]) >= FEWEST_SEEDS and len(theirs.get(one, ())) >= FEWEST_SEEDS]
    return {
        f"{name}, {epochs} epochs": _difference(theirs[name, epochs], ours[name, epochs], len(both))
        for name, epochs in both
    }


def _accuracies(groups: Iterable[PageGroup]) -> dict[tuple[str, str], list[float]]:
    accuracies = {}
    for group in groups:
        for name in dict.fromkeys(map(label, group.trials)):
            sound = [trial for trial in group.trials if trial.done and label(trial) == name and not is_guess(trial)]
            accuracies[name, group.key["epochs"]] = [*by_seed(sound, "test_accuracy").values()]
    return accuracies


def _difference(there: Sequence[float], here: Sequence[float], count: int) -> Estimate:
    """Return the difference of two means, whose interval holds together with those of `count` settings."""
    freedom = len(there) + len(here) - 2
    squares = sum(float(np.var(values)) * len(values) for values in (there, here))
    error = math.sqrt(squares / freedom * (1 / len(there) + 1 / len(here)))
    width = float(stats.t.ppf(1 - (1 - CONFIDENCE) / (2 * count), freedom)) * error
    return Estimate(float(np.mean(there) - np.mean(here)), width, min(len(there), len(here)))


def _refused(group: PageGroup, groups: Sequence[PageGroup]) -> list[Elsewhere]:
    """Return the machines whose trials of the same task and model have another setting, with that setting."""
    refused: dict[Machine, Elsewhere] = {}
    for other in groups:
        machine, count = _machine(other.key), _done([other])
        is_here = other.key["hardware_id"] in ("", group.key["hardware_id"], group.trained[0])
        if is_here or not count or machine in group.pool or any(one.machine == machine for one in group.elsewhere):
            continue
        if all(other.key[name] == group.key[name] for name in ("task", "model")) and _family(other) != _family(group):
            refused.setdefault(machine, Elsewhere(machine, count, {}, _reason(group, other)))
    return [*refused.values()]


def _reason(group: PageGroup, other: PageGroup) -> str:
    names = [name for name in ACCURACY if name not in ("recipe", "epochs") and _text(group, name) != _text(other, name)]
    ours, theirs = (without_epochs(one) for one in (group, other))
    fields = sorted(name for name in {*ours, *theirs} - {*names} if ours.get(name) != theirs.get(name))
    return f"their {' and '.join([*names, *(f'recipe.{name}' for name in fields)])} differ"


def of_any_machine(trial: TrialRecord) -> TrialRecord:
    """Return a trial without what belongs to the machine that it ran on."""
    return trial.model_copy(
        update={
            "result": {name: value for name, value in trial.result.items() if name not in _OF_ONE_MACHINE},
            "provenance": {},
            "epochs": tuple(_epoch(record) for record in trial.epochs),
            "elsewhere": True,
        }
    )


def _epoch(record: Mapping[str, Any]) -> dict[str, Any]:
    kept = {name: value for name, value in record.items() if name not in _EPOCH_OF_ONE_MACHINE}
    for name in ("step_flops", "train_flops"):
        if isinstance(kept.get(name), Mapping):
            kept[name] = {kind: value for kind, value in kept[name].items() if kind != "executed"}
    return kept


def fold_budgets(groups: Sequence[PageGroup]) -> list[PageGroup]:
    """Move groups of dense trainings for fewer epochs into the groups whose methods they are compared with.

    Args:
        groups: Groups of comparable trials. A pair may differ only in the number of epochs.

    Returns:
        The groups that remain, in order, each with the dense trainings for fewer epochs in `budgets`.
    """
    shorter = [sorted((budget for budget in groups if _is_budget(budget, group)), key=epochs_of) for group in groups]
    absorbed = {id(budget) for budgets in shorter for budget in budgets}
    pairs = zip(groups, shorter, strict=True)
    return [replace(group, budgets=tuple(budgets)) for group, budgets in pairs if id(group) not in absorbed]


def _is_budget(shorter: PageGroup, group: PageGroup) -> bool:
    names = {label(trial) for trial in group.trials}
    may_differ = {"epochs", "recipe", *(MACHINE if group.pool else ())}
    return (
        {label(trial) for trial in shorter.trials} == {BASELINE}
        and BASELINE in names
        and len(names) > 1
        and all(shorter.key[name] == text for name, text in group.key.items() if name not in may_differ)
        and (not group.pool or shorter.pool == group.pool)
        and 0 < epochs_of(shorter) < epochs_of(group)
        and without_epochs(shorter) == without_epochs(group)
    )
