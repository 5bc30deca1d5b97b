"""Trials into groups that may be compared, and into rows of one method each, in the order they are read."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from reports.content.model import BASELINE, MethodRow, mean_of
from reports.data.estimates import Estimate, Missing, Quantity, estimate, paired
from reports.data.records import Trial
from reports.data.steadiness import is_disturbed

# What trials that are ranked together have in common. Their times must be comparable, hence hardware, threads and the
# minor version of torch. The last three are part of the recipe, and known where only the table is left.
KEY = (
    *("task", "data_copy", "model", "hardware_id", "threads", "torch", "dtype", "preset", "recipe"),
    *("epochs", "batch_size", "execution"),
)
FLOPS = ("dense", "current", "effective", "executed")


@dataclass(frozen=True)
class TrialGroup:
    """Trials of one key; `key` maps each name of `KEY` to its text."""

    key: Mapping[str, str]
    trials: tuple[Trial, ...]


def label(trial: Trial) -> str:
    """`sdgp[n=2,m=4]`: the method as typed."""
    variant = trial.text("variant")
    return f"{trial.text('method')}[{variant}]" if variant else trial.text("method")


def recipe(trial: Trial) -> str:
    """The trial's recipe as one comparable text; empty where its `trial.json` has none."""
    return json.dumps(trial.spec["recipe"], sort_keys=True, default=str) if trial.spec.get("recipe") else ""


def group_trials(trials: Iterable[Trial]) -> tuple[list[TrialGroup], list[Trial]]:
    """Trials by key, in the order of the table.

    A trial may not know its whole key: it failed before it knew its hardware, or only its row in the table is left,
    which has no recipe. What is unknown contradicts nothing: such a trial joins the one group that it does not
    contradict. Where several would do, or none, a trial that is done makes its own group; a failed one is returned
    apart in the first case.

    Returns:
        The groups, and the failed trials that belong to no one group.
    """
    trials = list(trials)
    apart = [trial for trial in trials if not trial.text("method")]  # a damaged record does not even know its method
    named = [(_key(trial), trial) for trial in trials if trial.text("method")]
    # Those that know most come first, so that the others find the groups that there are.
    order = sorted(named, key=lambda pair: (not pair[1].done, sum(not part for part in pair[0])))
    found: dict[tuple[str, ...], list[Trial]] = {}
    for own, trial in order:
        fits = [own] if own in found else [key for key in found if not _contradict(own, key)]
        if len(fits) > 1 and not trial.done:
            apart.append(trial)
        else:
            found.setdefault(fits[0] if len(fits) == 1 else own, []).append(trial)
    places = {id(trial): place for place, trial in enumerate(trials)}
    groups = [
        TrialGroup(dict(zip(KEY, key, strict=True)), tuple(sorted(members, key=lambda trial: places[id(trial)])))
        for key, members in found.items()
    ]
    # In the order of the first trial that is done, or else of the first.
    groups.sort(key=lambda group: min((not trial.done, places[id(trial)]) for trial in group.trials))
    return groups, sorted(apart, key=lambda trial: places[id(trial)])


def _contradict(one: Sequence[str], other: Sequence[str]) -> bool:
    return any(mine and theirs and mine != theirs for mine, theirs in zip(one, other, strict=True))


def _key(trial: Trial) -> tuple[str, ...]:
    return tuple(recipe(trial) if name == "recipe" else column_text(trial, name) for name in KEY)


def column_text(trial: Trial, name: str) -> str:
    """A column as text, whether it holds a text or a number."""
    value = trial.number(name)
    return trial.text(name) if value is None else f"{value:g}"


def method_rows(group: TrialGroup, colours: Mapping[str, int]) -> list[MethodRow]:
    """One row a method and variant, in the order of `ranked`.

    Args:
        group: trials that may be compared.
        colours: the index of each label's colour, the same in the whole report.
    """
    members: dict[str, list[Trial]] = {}
    for trial in group.trials:
        members.setdefault(label(trial), []).append(trial)
    dense = members.get(BASELINE, [])
    return ranked([_row(name, colours[name], trials, dense) for name, trials in members.items()])


def _row(name: str, colour: int, trials: Sequence[Trial], dense: Sequence[Trial]) -> MethodRow:
    done, dense_done = ([trial for trial in several if trial.done] for several in (trials, dense))
    is_baseline = name == BASELINE
    no_baseline = "no dense trial is done" if dense else "dense was not run here"
    no_baseline += ", so there is nothing to compare with"

    def against_dense(column: str, combine: str) -> Quantity:
        if not done:
            return Missing(NONE_DONE)
        if not dense_done:
            return Missing(no_baseline)
        return paired(by_seed(done, column), by_seed(dense_done, column), combine, _not_measured(column))

    own_doubt, dense_doubt = (any(map(is_disturbed, several)) for several in (done, dense_done))
    difference = Missing("dense itself is what the others are compared with")
    return MethodRow(
        label=name,
        colour=colour,
        is_baseline=is_baseline,
        trials=tuple(trials),
        accuracy=_over_seeds(done, "test_accuracy"),
        accuracy_difference=difference if is_baseline else against_dense("test_accuracy", "difference"),
        train_time=_over_seeds(done, "train_time_s"),
        time_ratio=_without_interval(against_dense("train_time_s", "ratio"), is_baseline),
        flops={kind: _over_seeds(done, f"train_flops_{kind}") for kind in FLOPS},
        flops_ratio={kind: _own_ratio(done, f"train_flops_{kind}", "train_flops_dense") for kind in FLOPS},
        inference_ratio=_own_ratio(done, "inference_flops", "inference_flops_dense"),
        inference_effective_ratio=_own_ratio(done, "inference_flops_effective", "inference_flops_dense"),
        params_ratio=_own_ratio(done, "params", "params_dense"),
        time_is_disturbed=own_doubt,
        ratio_is_disturbed=not is_baseline and (own_doubt or dense_doubt),  # dense over dense is 1 whatever happened
    )


NONE_DONE = "no trial of this method is done"


def by_seed(trials: Sequence[Trial], column: str) -> dict[int, float]:
    """One value a seed: of a seed that was run twice in a group, the mean, since its trials are no two samples."""
    values: dict[int, list[float]] = {}
    for trial in trials:
        value = trial.number(column)
        if value is not None:
            values.setdefault(seed_of(trial), []).append(value)
    return {seed: sum(several) / len(several) for seed, several in values.items()}


def seed_of(trial: Trial) -> int:
    """The trial's seed; -1 where the table has none."""
    return int(trial.numbers.get("seed", -1))


def repeated_seeds(group: TrialGroup) -> list[str]:
    """One line for each method whose done trials have a seed more than once."""
    lines = []
    for name in dict.fromkeys(label(trial) for trial in group.trials):
        seeds = [seed_of(trial) for trial in group.trials if trial.done and label(trial) == name]
        for seed in sorted({seed for seed in seeds if seeds.count(seed) > 1}):
            lines.append(
                f"{name} was run {seeds.count(seed)} times with seed {seed}; the runs count as one seed, by mean."
            )
    return lines


def _over_seeds(done: Sequence[Trial], column: str) -> Quantity:
    return estimate(list(by_seed(done, column).values()), _not_measured(column) if done else NONE_DONE)


def _own_ratio(done: Sequence[Trial], column: str, dense_column: str) -> Quantity:
    if not done:
        return Missing(NONE_DONE)
    reason = _not_measured(column)
    return paired(by_seed(done, column), by_seed(done, dense_column), "ratio", reason)


def _not_measured(column: str) -> str:
    return f"not measured: {column} is empty"


def _without_interval(quantity: Quantity, is_baseline: bool) -> Quantity:
    # Dense over dense is 1 by definition: an interval of no width would look like a measurement.
    return Estimate(quantity.mean, None, quantity.count) if is_baseline and isinstance(quantity, Estimate) else quantity


def ranked(rows: Sequence[MethodRow]) -> list[MethodRow]:
    """Dense first, then by best measured trade.

    The trade is test accuracy against training time, both measured: of the rows, those come first that no other row
    beats in one without losing in the other (the first front, dense being one of the rows), then those that only they
    beat, and so on; within a front the more accurate comes first. Compared are the means of the paired differences and
    ratios where dense was run, else the means themselves. Rows without both numbers come last, by name. No counted,
    modelled or published number takes part.
    """
    points: dict[str, tuple[float, float]] = {}
    compared = any(row.is_baseline and row.done for row in rows)
    for row in rows:
        gain = mean_of(row.accuracy_difference) if compared else mean_of(row.accuracy)
        cost = mean_of(row.time_ratio) if compared else mean_of(row.train_time)
        if row.is_baseline and cost is not None:
            gain = 0.0
        if gain is not None and cost is not None:
            points[row.label] = (gain, cost)
    fronts = _fronts(points)
    last = len(rows)
    return sorted(
        rows,
        key=lambda row: (
            not row.is_baseline,
            fronts.get(row.label, last),
            -points.get(row.label, (0.0, 0.0))[0],
            points.get(row.label, (0.0, 0.0))[1],
            row.label,
        ),
    )


def _fronts(points: Mapping[str, tuple[float, float]]) -> dict[str, int]:
    fronts: dict[str, int] = {}
    left = dict(points)
    while left:
        best = [
            name
            for name, (gain, cost) in left.items()
            if not any(g >= gain and c <= cost and (g, c) != (gain, cost) for g, c in left.values())
        ]
        number = len(set(fronts.values()))
        fronts.update(dict.fromkeys(best, number))
        left = {name: point for name, point in left.items() if name not in best}
    return fronts
