"""Methods of a group, with estimates over their seeds, in the order of the report."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import pandas as pd

from reports.data.estimates import Estimate, Missing, Quantity, Ratio, estimate, is_guess, mean_of, paired
from reports.data.records import DISTURBED_RATIO, Look, PageGroup, is_disturbed, is_without_pruning
from reports.data.rule import (
    FEWEST_SEEDS,
    Budget,
    Candidate,
    CostShare,
    Evidence,
    Mean,
    cost_share,
    mean_accuracy,
    mean_of_dense,
    pooled,
)
from suite.measure.times import MethodTime, PassTime
from suite.trials.folder.records import TrialRecord
from suite.trials.folder.table import SCHEMA
from suite.trials.groups import BASELINE, label, seed_of

NOT_MEASURED, TOO_FEW = Missing("not measured"), Missing("too few seeds")


class TimeOfDense(NamedTuple):
    """Training time of a method over that of dense, and its origin.

    Attributes:
        share: The ratio, if it is not disturbed. If it comes from passes, it has no interval; the rule's interval is in
            `MethodRow.cost`.
        passes: Time passes whose mean it is: the undisturbed ones, or else all; empty if it comes from the trials.
        is_disturbed: Whether other programs disturbed it.
    """

    share: Quantity
    passes: tuple[PassTime, ...]
    is_disturbed: bool


@dataclass(frozen=True)
class MethodRow:
    """A method with its parameters in one group, with estimates over its seeds.

    The reference of a time is the dense trial of the same seed. The reference of a counted number is the dense network
    of the same trial (`train_flops_dense`, `params_dense`, ...), which is known even without a dense trial. But the
    training FLOPs of a trial with images or epochs of its own are relative to dense training of the group, if one is
    done.

    Attributes:
        label: Method with its parameters, as a user writes it.
        look: Colour, marker and dashes in figures.
        is_baseline: Whether this is dense training without parameters.
        trials: All trials of the method, including failed ones.
        means: Numbers of the finished trials, with a row for each seed (`seed_means`).
        accuracy: Test accuracy as a fraction; its interval has the spread of the rule (`with_spread`).
        accuracy_difference: Test accuracy minus that of dense, also with that spread. Seeds are not paired.
        spread: Standard deviation over its seeds, as a fraction; for dense, pooled over its lengths.
        train_time: Training time in seconds.
        time_ratio: Training time over that of dense, paired by seed; missing if a time is disturbed. Like all ratios
            here, it is a geometric mean.
        flops_of_dense: Training FLOPs by seed that those of the row are relative to.
        flops_ratio: Effective and executed training FLOPs over `flops_of_dense`.
        inference_ratio: Inference FLOPs of the final model over those of the dense network.
        inference_effective_ratio: `inference_ratio` without multiply-adds of zero weights.
        params_ratio: Parameters of the final model over those of the dense network.
        timed: Training time over that of dense from the time pass; `None` without a time pass.
        cost: `timed` with its interval between passes, which needs three passes; `None` for controls.
        time_is_disturbed: Whether the time of one of the trials is disturbed.
        ratio_is_disturbed: Whether the time of one of the trials, or of one of dense's, is disturbed.
    """

    label: str
    look: Look
    is_baseline: bool
    trials: tuple[TrialRecord, ...]
    means: pd.DataFrame = field(compare=False, repr=False)
    flops_of_dense: pd.Series = field(compare=False, repr=False)
    accuracy: Quantity
    accuracy_difference: Quantity
    train_time: Quantity
    time_ratio: Quantity
    flops_ratio: dict[str, Quantity] = field(default_factory=dict)
    inference_ratio: Quantity = NOT_MEASURED
    inference_effective_ratio: Quantity = NOT_MEASURED
    params_ratio: Quantity = NOT_MEASURED
    timed: MethodTime | None = None
    cost: CostShare | None = None
    spread: Quantity = TOO_FEW
    time_is_disturbed: bool = False
    ratio_is_disturbed: bool = False

    @property
    def is_control(self) -> bool:
        """Whether this is a control of methods, such as a random twin, of which a report claims nothing."""
        return any(trial.spec.control for trial in self.trials) and not self.is_without_pruning

    @property
    def is_without_pruning(self) -> bool:
        """Whether this is a way to train without pruning, which is judged in a family of its own."""
        return any(map(is_without_pruning, self.trials))

    @property
    def is_method(self) -> bool:
        """Whether this is a method: neither dense, nor a control, nor a way to train without pruning."""
        return not (self.is_baseline or self.is_control or self.is_without_pruning)

    @property
    def name(self) -> str:
        """The label, marked if the method does not prune."""
        return self.look.named(self.label)

    @property
    def epochs(self) -> float | None:
        """Its own number of epochs, which may differ from that of the group; `None` if it is not known."""
        return next((trial.number("epochs") for trial in self.trials if trial.number("epochs")), None)

    @property
    def time(self) -> TimeOfDense:
        """Training time over that of dense: of the time passes if there are any, otherwise of the trials."""
        if self.timed is None:
            return TimeOfDense(self.time_ratio, (), self.ratio_is_disturbed)
        ratio = Estimate(self.cost.share if self.cost else self.timed.ratio, None, self.seeds)
        share = ratio if self.sound_time else Missing("other programs disturbed all of its time passes")
        return TimeOfDense(share, self.timed.sound or self.timed.passes, self.timed.is_disturbed)

    @property
    def sound_time(self) -> MethodTime | None:
        """The time passes, if one of them is not disturbed."""
        return None if self.timed is None or self.timed.is_disturbed else self.timed

    @property
    def timed_share(self) -> float | None:
        """Training time over that of dense from undisturbed time passes: the rule's, if there is one; 1 for dense."""
        if self.is_baseline or self.sound_time is None:
            return 1.0 if self.is_baseline else None
        return self.sound_time.ratio if self.cost is None else self.cost.share

    @property
    def done(self) -> tuple[TrialRecord, ...]:
        """Finished trials. Only their numbers count."""
        return tuple(trial for trial in self.trials if trial.done)

    @property
    def seeds(self) -> int:
        """Number of different seeds among the finished trials."""
        return len(self.means)

    @property
    def failures(self) -> str:
        """Number of failed trials by status, `1 diverged, 2 error`; empty if all trials are done."""
        statuses = Counter(trial.text("status") or "without a status" for trial in self.trials if not trial.done)
        return ", ".join(f"{count} {status}" for status, count in sorted(statuses.items()))

    def by_seed(self, column: str) -> dict[int, float]:
        """Return a number of `results.csv` by seed, for the seeds that have it."""
        return _known(self.means[column])


def method_rows(group: PageGroup, looks: Mapping[str, Look]) -> list[MethodRow]:
    """Return one row per method and variant, in the order of `ranked`.

    Args:
        group: Trials that may be compared.
        looks: How each label is drawn (`reports.data.records.looks`). It is the same in the whole report.
    """
    members: dict[str, list[TrialRecord]] = {}
    for trial in group.trials:
        members.setdefault(label(trial), []).append(trial)
    means = seed_means(group.trials)
    dense = members.get(BASELINE, [])
    rows = [
        replace(_row(name, looks[name], trials, dense, means), timed=group.times.get(name))
        for name, trials in members.items()
    ]

    def cost(row: MethodRow) -> CostShare | None:
        if row.timed is None or row.is_baseline or row.is_control:
            return None
        times = times_of_dense(group, row.is_without_pruning).values()
        twice = tuple(one.dense_twice for time in times for one in time.sound)
        return cost_share(candidate(row.label, row.trials, time_ratios(row.timed, row.trials)), Evidence((), (), twice))

    rows = [replace(row, cost=cost(row)) for row in rows]
    lengths = [[trial for trial in one.trials if label(trial) == BASELINE] for one in (*group.budgets, group)]
    return ranked(with_spread(rows, [candidate(BASELINE, trials, Ratios(())) for trials in lengths]))


def times_of_dense(group: PageGroup, without_pruning: bool = False) -> dict[str, MethodTime]:
    """Return the time passes that tell what dense training costs, by label.

    Passes of ways without pruning count for these alone, so that a method's numbers do not depend on them.

    Args:
        group: Trials that may be compared.
        without_pruning: Whether the costs are those of ways without pruning. Passes of others come first.
    """
    ways = {label(trial) for trial in group.trials if is_without_pruning(trial)}
    others = {name: time for name, time in group.times.items() if name not in ways}
    return {**others, **group.times} if without_pruning or not others else others


class Ratios(NamedTuple):
    """Costs of a method relative to dense, as `reports.data.rule.Candidate` has them."""

    values: tuple[float, ...]
    by_seed: bool = False
    passes: int = 1


def candidate(name: str, trials: Sequence[TrialRecord], ratios: Ratios) -> Candidate:
    """Return what the rule gets to know about a method."""
    lost = {seed_of(trial) for trial in trials if trial.text("status") == "diverged" or is_guess(trial)}
    sound = sound_accuracies(trials)
    return Candidate(name, tuple(sound.values()), ratios.values, len(lost - set(sound)), ratios.by_seed, ratios.passes)


def sound_accuracies(trials: Iterable[TrialRecord]) -> dict[int, float]:
    """Return the accuracy of each seed that learned something, in points, by seed in order."""
    sound = by_seed([trial for trial in trials if trial.done and not is_guess(trial)], "test_accuracy")
    return {seed: 100 * sound[seed] for seed in sorted(sound)}


def time_ratios(timed: MethodTime, trials: Iterable[TrialRecord]) -> Ratios:
    """Return the relative training time of each seed if all have equally many undisturbed passes, or of each pass."""
    known = list(trials)
    seeds, finished = {trial.name: seed_of(trial) for trial in known}, sound_accuracies(known)
    counted = [one for one in timed.sound if one.trial not in seeds or seeds[one.trial] in finished]
    passes = {seed: [one.ratio for one in counted if seeds.get(one.trial) == seed] for seed in finished}
    counts = {len(ratios) for ratios in passes.values()}
    each = max(counts, default=0)
    if len(finished) < FEWEST_SEEDS or len(counts) > 1 or each * len(finished) != len(counted) or not each:
        return Ratios(tuple(one.ratio for one in counted))
    return Ratios(tuple(map(statistics.geometric_mean, passes.values())), by_seed=True, passes=each)


def with_spread(rows: Sequence[MethodRow], lengths: Sequence[Candidate]) -> list[MethodRow]:
    """Give accuracies, and their differences to dense, intervals with the spread of the rule (`reports.data.rule`).

    Few seeds may agree by chance. A method therefore has at least the spread of dense, which is pooled over its
    lengths.

    Args:
        rows: Rows of one group.
        lengths: Dense trainings of each length. Those with few or lost seeds tell nothing about the spread.
    """
    cells = {row.label: [value / 100 for value in sound_accuracies(row.trials).values()] for row in rows}
    baseline = next((row.label for row in rows if row.is_baseline), "")
    variance, freedom = spread_of_dense(lengths)
    of_dense = (variance / 100**2, freedom)
    means = {name: mean_accuracy(values, of_dense) for name, values in cells.items() if values}
    if baseline in means:
        means[baseline] = mean_of_dense(cells[baseline], of_dense)

    def changed(row: MethodRow) -> MethodRow:
        if row.label not in means:
            return replace(row, spread=row.accuracy) if isinstance(row.accuracy, Missing) else row
        values, mean = cells[row.label], means[row.label]
        variance, freedom = of_dense if row.is_baseline else pooled([values])
        spread = Estimate(math.sqrt(variance), None, len(values)) if freedom else row.spread
        own = replace(row, accuracy=with_interval(mean, len(values)), spread=spread)
        if row.is_baseline or baseline not in means:
            return own
        dense = means[baseline]
        difference = Mean(mean.value - dense.value, (*mean.parts, *dense.parts))
        count = min(len(values), len(cells[baseline]))
        return replace(own, accuracy_difference=with_interval(difference, count))

    return [changed(row) for row in rows]


def spread_of_dense(lengths: Iterable[Candidate | Budget]) -> tuple[float, int]:
    """Return the variance over seeds in points², pooled over the lengths of dense, and its degrees of freedom."""
    known = list(lengths)
    sound = [one.accuracies for one in known if not one.diverged and len(one.accuracies) >= FEWEST_SEEDS]
    return pooled(sound or [one.accuracies for one in known])


def with_interval(mean: Mean, count: int) -> Estimate:
    """Return a mean of `count` seeds with its 95 % interval, or without one if no spread is known."""
    known = all(freedom for _, freedom in mean.parts) and mean.error > 0
    return Estimate(mean.value, mean.half_width() if known else None, count)


def _row(
    name: str, look: Look, trials: Sequence[TrialRecord], dense: Sequence[TrialRecord], all_means: pd.DataFrame
) -> MethodRow:
    done, dense_done = ([trial for trial in several if trial.done] for several in (trials, dense))
    means, dense_means = (_of_method(all_means, method) for method in (name, BASELINE))
    is_baseline = name == BASELINE
    no_baseline = "no dense trial is done" if dense else "dense was not run here"

    def against_dense(column: str, combine: str) -> Quantity:
        if not done:
            return Missing(NONE_DONE)
        if not dense_done:
            return Missing(no_baseline)
        values, of_dense = (_known(one[column]) for one in (means, dense_means))
        return paired(values, of_dense, combine, not_measured(column))

    flops_of_dense = means["train_flops_dense"]
    own_recipe = any(is_without_pruning(trial) or "epochs" in trial.spec.replaced for trial in trials)
    if own_recipe and len(of_dense := dense_means["train_flops_dense"].dropna()):  # equal in all its trials
        flops_of_dense = flops_of_dense.where(flops_of_dense.isna(), of_dense.iloc[0])
    own_disturbed, dense_disturbed = (any(map(is_disturbed, several)) for several in (done, dense_done))
    ratio_is_disturbed = not is_baseline and (own_disturbed or dense_disturbed)  # dense over dense is always 1
    time_ratio = against_dense("train_time_s", "ratio")
    if is_baseline and isinstance(time_ratio, Estimate):
        # Dense over dense is 1 by definition. An interval of width 0 would look like a measurement.
        time_ratio = Ratio(time_ratio.mean, None, time_ratio.count)
    if ratio_is_disturbed and isinstance(time_ratio, Estimate):
        time_ratio = Missing(DISTURBED_RATIO)
    difference = Missing("dense is the baseline of the differences")
    return MethodRow(
        label=name,
        look=look,
        is_baseline=is_baseline,
        trials=tuple(trials),
        means=means,
        accuracy=_over_seeds(means, "test_accuracy"),
        accuracy_difference=difference if is_baseline else against_dense("test_accuracy", "difference"),
        train_time=_over_seeds(means, "train_time_s"),
        time_ratio=time_ratio,
        flops_of_dense=flops_of_dense,
        flops_ratio={
            kind: _own_ratio(means, f"train_flops_{kind}", flops_of_dense) for kind in ("effective", "executed")
        },
        inference_ratio=_of_networks(means, "inference_flops", "inference_flops_dense"),
        inference_effective_ratio=_of_networks(means, "inference_flops_effective", "inference_flops_dense"),
        params_ratio=_of_networks(means, "params", "params_dense"),
        time_is_disturbed=own_disturbed,
        ratio_is_disturbed=ratio_is_disturbed,
    )


NONE_DONE = "no trial of this method is done"
NUMBER_COLUMNS = [column.name for column in SCHEMA if column.type is not str]


def seed_means(trials: Iterable[TrialRecord]) -> pd.DataFrame:
    """Return the numeric columns of `results.csv` for finished trials, with a row for each method and seed.

    A seed that was run twice is one sample, and counts with its mean.
    """
    done = [trial for trial in trials if trial.done]
    index = pd.MultiIndex.from_arrays([[*map(label, done)], [*map(seed_of, done)]], names=["method", "seed"])
    numbers = [[trial.number(name) for name in NUMBER_COLUMNS] for trial in done]
    frame = pd.DataFrame(numbers, index, NUMBER_COLUMNS, dtype=float)
    return frame.groupby(level=["method", "seed"], sort=False).mean()


def _of_method(means: pd.DataFrame, name: str) -> pd.DataFrame:
    return means[means.index.get_level_values("method") == name].droplevel("method")


def _known(values: pd.Series) -> dict[int, float]:
    known = values.dropna()
    return dict(zip(known.index.to_list(), known.to_list(), strict=True))


def by_seed(trials: Iterable[TrialRecord], column: str) -> dict[int, float]:
    """Return one value per seed of trials of one method. A seed that was run twice counts with its mean."""
    values = [(seed_of(trial), trial.number(column)) for trial in trials]
    return _known(pd.DataFrame(values, columns=["seed", "value"]).groupby("seed", sort=False)["value"].mean())


def _over_seeds(means: pd.DataFrame, column: str) -> Quantity:
    return estimate(means[column].dropna().to_list(), not_measured(column) if len(means) else NONE_DONE)


def _own_ratio(means: pd.DataFrame, column: str, of_dense: pd.Series) -> Quantity:
    if means.empty:
        return Missing(NONE_DONE)
    return paired(_known(means[column]), _known(of_dense), "ratio", not_measured(column))


def _of_networks(means: pd.DataFrame, column: str, dense_column: str) -> Quantity:
    """Return a ratio that is counted in the final networks, with their range in place of an interval."""
    found = _own_ratio(means, column, means[dense_column])
    if isinstance(found, Missing):
        return found
    ratios = means[column] / means[dense_column]
    low, high = float(ratios.min()), float(ratios.max())
    is_range = high - low > 1e-9
    return Ratio(found.mean, (high - low) / 2, found.count, (low, high)) if is_range else replace(found, bounds=None)


def not_measured(column: str) -> str:
    return f"not measured: {column} is empty"


def ranked(rows: Sequence[MethodRow]) -> list[MethodRow]:
    """Sort rows: dense first, then methods by the measured trade-off of test accuracy and training time.

    Ways without pruning follow in the same order, with fronts of their own, and controls come last.

    Rows are sorted by Pareto front. The first front has the rows that no other row beats in one number without losing
    in the other, the second front those that only rows of the first front beat, and so on. Within a front, the more
    accurate row comes first. The numbers are means of differences and ratios to dense, or the means themselves without
    dense. Rows that lack a number come last, sorted by name. Counted, modelled and published numbers have no influence.
    Times have none if one of them is disturbed.
    """
    points: dict[str, tuple[float, float]] = {}
    compared, by_time = _with_dense(rows), times_rank(rows)
    for row in rows:
        gain = mean_of(row.accuracy_difference) if compared else mean_of(row.accuracy)
        cost = (mean_of(row.time.share) if compared else mean_of(row.train_time)) if by_time else 0.0
        if row.is_baseline and cost is not None:
            gain = 0.0
        if gain is not None and cost is not None:
            points[row.label] = (gain, cost)
    ways = {row.label for row in rows if row.is_without_pruning}
    fronts = _fronts({name: point for name, point in points.items() if name not in ways})
    fronts |= _fronts({name: point for name, point in points.items() if name in ways})
    last = len(rows)
    return sorted(
        rows,
        key=lambda row: (
            not row.is_baseline,
            row.is_control,
            row.label in ways,
            fronts.get(row.label, last),
            -points.get(row.label, (0.0, 0.0))[0],
            points.get(row.label, (0.0, 0.0))[1],
            row.label,
        ),
    )


def times_rank(rows: Sequence[MethodRow]) -> bool:
    """Return whether times influence the order of rows, because none of the compared times is disturbed."""
    compared = _with_dense(rows)
    return not any(row.time.is_disturbed if compared else row.time_is_disturbed for row in rows if row.done)


def _with_dense(rows: Sequence[MethodRow]) -> bool:
    """Return whether rows can be compared with dense."""
    return any(row.is_baseline and row.done for row in rows)


def _fronts(points: Mapping[str, tuple[float, float]]) -> dict[str, int]:
    """Return the number of the Pareto front of each point (accuracy, time)."""
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
