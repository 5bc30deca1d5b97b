"""One row per method of a group: what its seeds say together, in the order of the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from reports.data.disturbed_times import is_disturbed
from reports.data.estimates import Estimate, Missing, Quantity, estimate, mean_of, paired
from reports.data.groups import BASELINE, TrialGroup, label, seed_of
from reports.data.records import Trial

FLOPS = ("dense", "current", "effective", "executed")

NOT_MEASURED = Missing("not measured")


@dataclass(frozen=True)
class MethodRow:
    """A method with its parameters, in one group: what its seeds say together.

    Times are compared with the dense trials of the same seeds; counted numbers with the dense net of the trial itself
    (`train_flops_dense`, `params_dense`, ...), which is there even where no dense trial was run. A time is disturbed
    where the records of one of its trials say so (`reports.data.disturbed_times`); a ratio of times also where those of
    dense do.
    """

    label: str
    colour: int
    is_baseline: bool
    trials: tuple[Trial, ...]
    accuracy: Quantity
    accuracy_difference: Quantity
    train_time: Quantity
    time_ratio: Quantity
    flops: dict[str, Quantity] = field(default_factory=dict)
    flops_ratio: dict[str, Quantity] = field(default_factory=dict)
    inference_ratio: Quantity = NOT_MEASURED
    inference_effective_ratio: Quantity = NOT_MEASURED
    params_ratio: Quantity = NOT_MEASURED
    time_is_disturbed: bool = False
    ratio_is_disturbed: bool = False

    @property
    def done(self) -> tuple[Trial, ...]:
        """The trials whose numbers count."""
        return tuple(trial for trial in self.trials if trial.done)

    @property
    def seeds(self) -> int:
        """How many different seeds are done."""
        return len({trial.number("seed") for trial in self.done})

    @property
    def failures(self) -> str:
        """`1 diverged, 2 error`; empty where all trials are done."""
        statuses = [trial.text("status") or "without a status" for trial in self.trials if not trial.done]
        return ", ".join(f"{statuses.count(status)} {status}" for status in sorted(set(statuses)))


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
