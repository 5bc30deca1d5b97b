"""Turn the records of a page into evidence for the rule (`reports.data.rule`), and return the rule's answers."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any, Literal

import pandas as pd

from reports.data.estimates import Estimate
from reports.data.method_rows import (
    MethodRow,
    Ratios,
    candidate,
    method_rows,
    seed_of,
    sound_accuracies,
    time_ratios,
    times_of_dense,
)
from reports.data.pooling import fold_budgets, pool_machines
from reports.data.records import PageGroup, Records, looks_of, page_groups, share_of_steps
from reports.data.rule import Answer, Budget, Evidence, Judged, judge
from suite.parameters import without_lists
from suite.recipe import Phase, Recipe
from suite.trials.groups import BASELINE, label

Cost = Literal["time", "flops"]
Answers = Mapping[Cost, Answer]

SMOKE = "smoke"  # the preset that trains for seconds to show that everything runs
COSTS: tuple[Cost, ...] = ("time", "flops")
MARGIN = 0.005  # the default, 0.5 points of accuracy, for commands that record no margin


def margins(suite: Mapping[str, Any]) -> tuple[float, ...]:
    """Return the margins that the commands of a folder declared, in order and without repetitions.

    Args:
        suite: Content of `suite.json`.
    """
    declared = [command["spec"].get("margin", MARGIN) for command in suite.get("commands", ())]
    return tuple(margin for margin, _ in groupby(declared)) or (MARGIN,)


def exploratory(suite: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the reasons for which the commands of a folder, a `suite.json`, call its answers exploratory."""
    reasons = [command["spec"].get("exploratory", "") for command in suite.get("commands", ())]
    return tuple(dict.fromkeys(filter(None, reasons)))


JudgedGroup = tuple[PageGroup, list[MethodRow], Answers | None]
"""A group, its rows, and what the rule says; `None` for a smoke test."""


def judged_groups(records: Records) -> list[JudgedGroup]:
    """Return the groups of a folder with their rows, and what the rule says."""
    groups = fold_budgets(pool_machines(page_groups(records.trials)[0], records.times))
    drawn_as = looks_of(records.trials)
    pairs = [(group, method_rows(group, drawn_as)) for group in groups]
    # The correction for the number of methods covers all groups of a page together.
    page = [(group, rows) for group, rows in pairs if group.key["preset"] != SMOKE]
    answers = iter(answer(page, margins(records.suite)[-1]))
    return [(group, rows, None if group.key["preset"] == SMOKE else next(answers)) for group, rows in pairs]


def answer(page: Sequence[tuple[PageGroup, Sequence[MethodRow]]], margin: float) -> list[Answers]:
    """Return what the rule says about each group of a page, for each cost, with one correction for all groups.

    Methods and ways without pruning are judged apart, so that no way without pruning changes what is said of a method.

    Args:
        page: The groups with their rows.
        margin: Smallest difference in accuracy that matters, as a fraction.
    """
    families = [
        [(group, [row for row in rows if is_one(row)]) for group, rows in page]
        for is_one in (lambda row: row.is_method, lambda row: row.is_without_pruning)
    ]
    by_cost: dict[Cost, list[Answer]] = {}
    for cost in COSTS:
        judged = (judge([evidence(*group, cost) for group in family], 100 * margin) for family in families)
        by_cost[cost] = [replace(one, without_pruning=ways.judged) for one, ways in zip(*judged, strict=True)]
    return [{cost: answers[number] for cost, answers in by_cost.items()} for number in range(len(page))]


def gain_of(judged: Judged) -> Estimate | None:
    """Return a method's gain at equal cost with its interval for all claims of its family together, in points."""
    if judged.gain is None:
        return None
    half_width = judged.gain.half_width(judged.level)
    return Estimate(judged.gain.value, half_width, len(judged.candidate.accuracies))


def gain_shown(judged: Judged) -> Estimate | None:
    """Return the gain of a method in points, as the table has it; `None` without an outcome."""
    return None if judged.at_equal_cost == "not measured" else gain_of(judged)


def evidence(group: PageGroup, rows: Sequence[MethodRow], cost: Cost) -> Evidence:
    """Return what is known about a group.

    Args:
        group: Trials that may be compared.
        rows: Its methods, or its ways without pruning.
        cost: The cost.
    """
    group = replace(group, times=times_of_dense(group, any(row.is_without_pruning for row in rows)))
    fixed = _fixed(group, cost)
    budgets = [(one, _share(one, group, cost, fixed)) for one in (*group.budgets, group)]
    return Evidence(
        budgets=tuple(
            Budget(share, dense.accuracies, dense.diverged)
            for one, share in budgets
            if (trials := [trial for trial in one.trials if label(trial) == BASELINE])
            for dense in [candidate(BASELINE, trials, Ratios(()))]
        ),
        candidates=tuple(
            candidate(row.label, row.trials, _times(row) if cost == "time" else _flops(row, fixed)) for row in rows
        ),
        twice=tuple(one.dense_twice for time in group.times.values() for one in time.sound),
        measured=cost == "time",
    )


def _times(row: MethodRow) -> Ratios:
    """Return the relative training times of the time pass. Times of trials do not count: they are not paired."""
    return Ratios(()) if row.timed is None else time_ratios(row.timed, row.trials)


def _flops(row: MethodRow, fixed: float) -> Ratios:
    """Return the relative executed FLOPs of each seed; of this machine's seeds if others were trained elsewhere."""
    flops = pd.DataFrame({"executed": row.means["train_flops_executed"], "dense": row.flops_of_dense})
    known = flops[(flops > 0).all(axis="columns")].sort_index()
    ratios = (known["executed"] / known["dense"] / (1 + fixed)).to_dict()
    seeds = sound_accuracies(row.trials)
    if seeds and seeds.keys() <= ratios.keys():
        return Ratios(tuple(ratios[seed] for seed in seeds), by_seed=True)
    here = {seed_of(trial) for trial in row.done if not trial.elsewhere}
    return Ratios(tuple(ratios.values()) if len(ratios) == len(here) else ())


def _fixed(group: PageGroup, cost: Cost) -> float:
    """Return what dense training costs whatever its length, for `precise_bn`, relative to its steps."""
    if cost == "time":
        known = [one.fixed for time in group.times.values() for one in time.sound]
    else:
        dense = [trial for trial in group.trials if trial.done and label(trial) == BASELINE]
        pairs = [(trial.number("train_flops_executed"), trial.number("train_flops_dense")) for trial in dense]
        known = [executed / steps - 1 for executed, steps in pairs if executed and steps]
    return max(0.0, math.fsum(known) / len(known)) if known else 0.0


def _share(budget: PageGroup, group: PageGroup, cost: Cost, fixed: float) -> float:
    """Return the cost of a dense training for fewer epochs, relative to the whole one.

    With one phase, the cost is the share of the steps, because all steps are equal. With several phases, each epoch
    counts with the FLOPs, or the measured time, of its steps.
    """
    if budget is group:
        return 1.0
    share = share_of_steps(budget, group)
    timed = next(iter(group.times.values()), None)
    if cost == "flops":
        flops = [_dense_flops(training) for training in (budget, group)]
        share = flops[0] / flops[1] if all(flops) else share
    elif timed is not None and len(timed.passes[0].seconds) > 1:
        times = [
            math.fsum(part * timed.passes[0].relative_step(phase) for phase, part in _phases(training))
            for training in (budget, group)
        ]
        share = times[0] / times[1]
    return (share + fixed) / (1 + fixed)


def _dense_flops(group: PageGroup) -> float:
    """Return the training FLOPs of dense; 0 if they are not recorded."""
    known = (trial.number("train_flops_dense") for trial in group.trials if trial.done and label(trial) == BASELINE)
    return next(filter(None, known), 0.0)


def _phases(group: PageGroup) -> list[tuple[Phase, float]]:
    """Return the phase of each epoch, and how much of a whole epoch it is."""
    recipe = Recipe(**without_lists(json.loads(group.key["recipe"])))
    return [(phase, min(1.0, recipe.epochs - epoch)) for epoch, phase in enumerate(recipe.phases())]
