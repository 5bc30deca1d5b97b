"""Whether a method pays: its accuracy against that of dense training at the same cost.

The rules, which depend on no method's name:

1. The gain of a method is its accuracy minus the accuracy that dense training reaches for the same cost, paired by
   seed. The cost is the measured training time, or the executed training FLOPs, relative to dense. The time is that of
   the time pass where it was run, otherwise that of the trials. Dense training for
   fewer epochs gives the accuracy at a smaller cost (`reports.data.budget`). The spread of the costs over seeds is part
   of the gain's spread. A method that costs more than dense is compared with the whole dense training, which costs
   less: this can show that it does not pay, but never that it pays. A cost that cannot be told from dense's is compared
   with the whole dense training, too, where dense was not trained for less.
2. A method *pays* if its gain is shown to be above 0. It *does not pay* if its gain is shown to be below the margin.
   Both are one-sided t-tests, corrected by Holm's method over all methods of a group and both costs, each at `LEVEL`
   divided by the number of groups on the page. Controls such as random twins count as methods, since the page says of
   them, too, whether they pay. Otherwise the outcome is *undecided*, with the number of seeds that would decide if
   mean and spread stayed as they are.
3. There is no outcome with fewer than `FEWEST_SEEDS` seeds, for disturbed times, and where dense was not trained for so
   small or so large a share of the cost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, Literal

from reports.data.budget import BudgetCurve
from reports.data.disturbed_times import is_disturbed_pass
from reports.data.estimates import Estimate, Missing, Quantity, estimate
from reports.data.method_rows import MethodRow, by_seed
from reports.data.significance import holm, p_value, seeds_needed
from reports.data.trial_files import finite

Cost = Literal["time", "flops"]
Outcome = Literal["pays", "does not pay", "undecided", "none"]

COSTS: tuple[Cost, ...] = ("time", "flops")
MARGIN = 0.005  # of commands that do not record one; 0.5 points of accuracy
FEWEST_SEEDS = 3
SAME_COST = 0.02  # a cost that is larger than dense's by at most this share counts as the same; see `_same`
LEVEL = 0.025  # of all claims of a page that a method pays, and of all claims that one does not pay


@dataclass(frozen=True)
class Finding:
    """What is known about a method at one cost.

    Attributes:
        label: Method with its parameters.
        cost: The cost that is equal.
        outcome: `none` if there is no outcome, for the reason in `gain` or `reason`.
        gain: Accuracy minus that of dense training at the same cost, as a fraction.
        share: Cost relative to dense.
        seeds_needed: For `undecided`, the number of seeds that would decide; `None` if even `MOST_SEEDS` would not, and
            if all seeds have the same gain, so that there is no spread to compute it from.
        p_value: For `pays` and `does not pay`, the corrected p-value of the test that showed it, at most `LEVEL`.
        reason: Why there is no outcome.
        seeds: Number of seeds that the method shares with dense, or has alone if dense was not run; those for which
            dense was trained at this cost if there are too few of them.
    """

    label: str
    cost: Cost
    outcome: Outcome
    gain: Quantity
    share: Quantity
    seeds_needed: int | None = None
    p_value: float | None = None
    reason: str = ""
    seeds: int = 0


def margins(suite: Mapping[str, Any]) -> tuple[float, ...]:
    """Return the margins that the commands of a folder declared, in order and without repetitions.

    Args:
        suite: Content of `suite.json`, of any version.
    """
    commands = suite.get("commands")
    found = []
    for command in commands if isinstance(commands, list) else ():
        spec = command.get("spec") if isinstance(command, Mapping) else None
        margin = finite(spec.get("margin")) if isinstance(spec, Mapping) else None
        found.append(margin if margin is not None and margin > 0 else MARGIN)
    return tuple(margin for margin, _ in groupby(found)) or (MARGIN,)


def findings(rows: Sequence[MethodRow], curve: BudgetCurve, margin: float, groups: int = 1) -> list[Finding]:
    """Return the findings about all methods but dense training itself, for each cost, in the order of the rows.

    Args:
        rows: Rows of one group, with the dense trainings among them.
        curve: Dense training for shares of the epochs.
        margin: Smallest gain in accuracy that matters, as a fraction.
        groups: Number of groups on the page, which share `LEVEL`.
    """
    dense = next((row for row in rows if row.is_baseline), None)
    found = [_gain(row, dense, curve, cost) for row in rows if not is_dense(row) for cost in COSTS]
    tested = [one for one in found if not one.reason]
    above = holm([1.0 if _costs_more(one) else p_value(one.gain, 0.0, "above") for one in tested])
    below = holm([p_value(one.gain, margin, "below") for one in tested])
    outcomes = {
        id(one): _decided(one, pays * groups, pays_not * groups, margin, LEVEL / groups, len(tested))
        for one, pays, pays_not in zip(tested, above, below, strict=True)
    }
    return [outcomes.get(id(one), one) for one in found]


def is_dense(row: MethodRow) -> bool:
    """Return whether a row is a dense training: the baseline, or a control such as a narrower dense network."""
    return row.label.partition("[")[0] == "dense"


def _decided(finding: Finding, above: float, below: float, margin: float, level: float, claims: int) -> Finding:
    gain = finding.gain
    assert isinstance(gain, Estimate)
    if above <= LEVEL:
        return replace(finding, outcome="pays", p_value=above)
    if below <= LEVEL:
        return replace(finding, outcome="does not pay", p_value=below)
    # More seeds with the same mean would show that the gain is above 0, or below the margin, or both.
    bounds = [0.0] if gain.mean > 0 and not _costs_more(finding) else []
    bounds += [margin] if gain.mean < margin else []
    if not bounds:
        return replace(finding, outcome="none", reason=_not_trained(finding.share))
    # The largest correction of Holm's method, so that the number does not depend on the other methods' outcomes.
    counts = [seeds_needed(gain, bound, level / claims) for bound in bounds]
    needed = min((count for count in counts if count is not None), default=None)
    return replace(finding, seeds_needed=needed)


def _costs_more(finding: Finding) -> bool:
    return isinstance(finding.share, Estimate) and finding.share.mean > 1 + SAME_COST


def _not_trained(share: Quantity) -> str:
    assert isinstance(share, Estimate)
    # As many decimals as show that the cost differs from dense's.
    decimals = next((count for count in range(2, 6) if round(share.mean, count) != 1), 6)
    return f"dense was not trained for {share.mean:.{decimals}f} × its cost"


def _same(row: MethodRow, share: Estimate, cost: Cost) -> bool:
    """Return whether a cost below dense's has an interval that reaches it, and differs by at most `SAME_COST`.

    To differ from dense, the interval of the time pass has to be outside that of dense timed against itself, too.
    Without an interval, as for counted FLOPs that are equal for all seeds, any difference is one.
    """
    high, least = share.high, 1.0
    if cost == "time" and row.timed is not None:
        high, least = row.timed.high, min(1.0, row.timed.dense_twice.low)
    return high >= least and share.mean >= 1 - SAME_COST


def _gain(row: MethodRow, dense: MethodRow | None, curve: BudgetCurve, cost: Cost) -> Finding:
    share = row.flops_ratio["executed"] if cost == "flops" else row.time_share

    accuracies = by_seed(row.done, "test_accuracy")
    common = sorted(set(accuracies) & set(curve.points)) if dense is not None and dense.done else sorted(accuracies)

    def without(reason: str, gain: Quantity | None = None, seeds: int = len(common)) -> Finding:
        return Finding(row.label, cost, "none", gain or Missing(reason), share, reason=reason, seeds=seeds)

    if not row.done:
        return without("no trial is done")
    if dense is None:
        return without("dense was not run")
    if not dense.done:
        return without("no dense trial is done")
    if isinstance(share, Missing):
        return without(share.reason)
    if cost == "time" and row.ratio_is_disturbed and row.timed is None:
        return without("the training times are disturbed")
    if cost == "time" and is_disturbed_pass(row.timed):
        return without("the time pass was disturbed by other programs")
    if not common:
        return without("no seed in common with dense")
    reached = {seed: accuracy for seed in common if (accuracy := curve.at(seed, share.mean)) is not None}
    if not reached and _same(row, share, cost):
        reached = {seed: accuracy for seed in common if (accuracy := curve.at(seed, 1.0)) is not None}
    if not reached:
        return without(_not_trained(share))
    # The accuracy of dense at the mean cost is as uncertain as this cost: to first order, by the slope of the curve.
    slope = sum(curve.slope(seed, share.mean) for seed in reached) / len(reached)
    costs = _costs(row, dense, cost) if cost == "flops" or row.timed is None else {}
    further = {seed: costs.get(seed, share.mean) - share.mean for seed in reached}
    # Rounding leaves differences of 1e-16 between equal gains, which are no spread.
    gains = [round(accuracies[seed] - reached[seed] - slope * further[seed], 12) for seed in reached]
    gain = estimate(gains, "not measured")
    if len(gains) < FEWEST_SEEDS:
        return without(f"{len(gains)} of at least {FEWEST_SEEDS} seeds", gain, len(gains))
    return Finding(row.label, cost, "undecided", gain, share, seeds=len(gains))


def _costs(row: MethodRow, dense: MethodRow, cost: Cost) -> dict[int, float]:
    """Return the cost relative to dense of each seed that has both."""
    column, base = ("train_time_s",) * 2 if cost == "time" else ("train_flops_executed", "train_flops_dense")
    own, other = by_seed(row.done, column), by_seed((dense if cost == "time" else row).done, base)
    return {seed: own[seed] / other[seed] for seed in own if other.get(seed, 0.0) > 0}
