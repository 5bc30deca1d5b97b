"""The rule that says what a method is worth: accuracy at equal cost, and whether it is as good as dense in less time.

The rule uses only numbers: accuracies of seeds in points, and costs relative to the whole dense training. It asks two
questions about a method, with accuracies m of its seeds, a cost c and a margin δ of accuracy:

1. *At equal cost*: the gain G is the mean of m minus the accuracy d(c) of dense training for the cost c. The method is
   `better` if the data show G > 0, `worse` if they show G < 0, `same` if they show -δ < G < δ, and otherwise
   `undecided`.
2. *As good as dense in less time*: `yes` if the data show m - d(1) > -δ and c < 1, `no` if they show m - d(1) < -δ or
   c > 1, and otherwise `undecided`.

**Dense for a cost.** d(c) is a parabola in ln c through dense trainings of several lengths, fitted by least squares.
The rule does not extrapolate to costs below the shortest of them.

**Spread.** Seeds are not paired, because accuracies of a method and of dense with the same seed are not correlated. The
spread of dense is pooled over its lengths, and that of the methods over the methods. A method with a larger spread
keeps its own. The error of a cost enters by the slope of d. Satterthwaite's formula combines degrees of freedom.

**Many claims.** Holm's method corrects each kind of claim over all methods of a page, at `LEVEL`.

**Diverged seeds** are not missing values: a method that has one can be `worse` or `unstable`, and never `better`.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import fdtrc, ndtr, ndtri, stdtr, stdtrit

from suite.recipe import FEWEST_BUDGETS, WIDEST_GAP

LEVEL = 0.025
"""Largest probability of a false claim of each kind on a page."""
FEWEST_SEEDS = 3
"""Fewest seeds of a method, or of dense training of one length, with which it enters a test."""
FEWEST_PASSES = 3
NOT_SMOOTH = 0.01
"""Smallest p-value of the lack of fit with which a parabola counts."""
MOST_SEEDS = 100
POWER = 0.8
CLAIMS = ("better", "worse", "above", "below", "yes", "lossy", "slower")
"""Each is a separate family: gain > 0, gain < 0, gain > -δ, gain < δ; as good in less time, loss < -δ, cost > 1."""
_ROUNDING = 1e-9

AtEqualCost = Literal["better", "worse", "same", "undecided", "unstable", "not measured"]
AsGood = Literal["yes", "no", "undecided", "not measured"]
Need = Literal["seeds", "controls", "between", "shorter", "longer", "passes", "none"]
"""What would give a missing outcome; `between`, `shorter` and `longer` are dense trainings."""


@dataclass(frozen=True)
class Budget:
    """Dense training of one length.

    Attributes:
        share: Its cost, relative to the whole dense training.
        accuracies: Accuracies of its finished seeds, in points.
        diverged: Number of seeds that diverged or learned nothing.
    """

    share: float
    accuracies: tuple[float, ...]
    diverged: int = 0


@dataclass(frozen=True)
class Candidate:
    """A method, or a method with parameters.

    Attributes:
        label: Its name.
        accuracies: Accuracies of its finished seeds, in points.
        ratios: Its cost relative to the whole dense training, for each time pass, or for each seed for FLOPs.
        diverged: Number of seeds that diverged or learned nothing.
    """

    label: str
    accuracies: tuple[float, ...]
    ratios: tuple[float, ...]
    diverged: int = 0


@dataclass(frozen=True)
class Evidence:
    """What is known about one group of comparable trials at one cost.

    Attributes:
        budgets: Dense trainings.
        candidates: Methods.
        twice: Ratios of dense training to itself, one for each time pass.
        measured: Whether the costs are times. Then `ratios` has a value for each pass, and their error is pooled.
            Otherwise the costs are counted FLOPs, one for each seed.
    """

    budgets: tuple[Budget, ...]
    candidates: tuple[Candidate, ...]
    twice: tuple[float, ...] = ()
    measured: bool = True


@dataclass(frozen=True)
class CostShare:
    """The cost of a method relative to the whole dense training.

    Attributes:
        log: Natural logarithm of the cost.
        error: Standard error of `log`; 0 for a cost that is exact.
        freedom: Degrees of freedom of `error`.
        half_width: Half of the 95 % interval of `log`.
    """

    log: float
    error: float = 0.0
    freedom: float = math.inf
    half_width: float = 0.0

    @property
    def share(self) -> float:
        """The cost."""
        return math.exp(self.log)

    @property
    def low(self) -> float:
        """Lower end of its 95 % interval."""
        return math.exp(self.log - self.half_width)

    @property
    def high(self) -> float:
        """Upper end of its 95 % interval."""
        return math.exp(self.log + self.half_width)

    @property
    def is_same(self) -> bool:
        """Whether it cannot be told from the cost of dense."""
        return abs(self.log) <= self.half_width + _ROUNDING

    @property
    def of_dense(self) -> float:
        """Cost of the dense training to compare with: this cost, or 1 if it is above 1 or cannot be told from 1."""
        return 1.0 if self.is_same else min(self.share, 1.0)


@dataclass(frozen=True)
class Mean:
    """A mean of accuracies, or a difference of two, in points.

    Attributes:
        value: The mean.
        parts: Variance and degrees of freedom of each independent part of its error.
    """

    value: float
    parts: tuple[tuple[float, float], ...]

    @cached_property
    def error(self) -> float:
        """Standard error."""
        return math.sqrt(sum(variance for variance, _ in self.parts))

    @cached_property
    def freedom(self) -> float:
        """Degrees of freedom (Satterthwaite)."""
        known = sum(variance**2 / freedom for variance, freedom in self.parts if math.isfinite(freedom))
        return sum(variance for variance, _ in self.parts) ** 2 / known if known else math.inf

    def p_above(self, bound: float) -> float:
        """Return the p-value of the hypothesis that the mean is not above a bound."""
        return _p_above((self.value - bound) / self.error, self.freedom)

    def half_width(self, claims: int = 1) -> float:
        """Return the half-width of its interval; all `claims` such intervals hold together with 95 %."""
        return _quantile(1 - LEVEL / claims, self.freedom) * self.error


@dataclass(frozen=True)
class Judged:
    """What the rule says about one method.

    Attributes:
        candidate: The method.
        at_equal_cost, as_good: The answers to both questions.
        cost: Its cost; `None` if it is not known.
        accuracy: Mean accuracy.
        dense: Accuracy of the dense training that it is compared with at equal cost; `None` if not known.
        gain: Accuracy minus that of dense at equal cost.
        loss: Accuracy minus that of the whole dense training.
        p_value: p-value of the claim at equal cost, corrected for the page; `None` without a claim.
        reason: Why there is no outcome.
        need: What would give an outcome.
        seeds_needed: For `undecided`, the number of seeds that would show the present gain or loss.
    """

    candidate: Candidate
    at_equal_cost: AtEqualCost = "not measured"
    as_good: AsGood = "not measured"
    cost: CostShare | None = None
    accuracy: Mean | None = None
    dense: float | None = None
    gain: Mean | None = None
    loss: Mean | None = None
    p_value: float | None = None
    reason: str = ""
    need: Need = "none"
    seeds_needed: int | None = None


@dataclass(frozen=True)
class DenseCurve:
    """A parabola in ln c through the mean accuracies of dense training of several lengths.

    Attributes:
        budgets: The trainings that it goes through, ascending.
        coefficients: (3,): coefficients of 1, x and x², with x = ln c.
        weights: (3, J): weights with which the means of the J trainings give the coefficients.
        spread: Variance of an accuracy over seeds, pooled over the trainings, with its degrees of freedom.
        lack_of_fit: p-value of the hypothesis that the means lie on a parabola.
    """

    budgets: tuple[Budget, ...]
    coefficients: NDArray[np.float64]
    weights: NDArray[np.float64]
    spread: tuple[float, int]
    lack_of_fit: float

    def at(self, log: float) -> Mean:
        """Return the accuracy of dense training for a cost, with its error."""
        return self._mean(np.array([1.0, log, log * log]))

    def slope(self, log: float) -> float:
        """Return the derivative of the accuracy by ln c."""
        return float(self.coefficients @ (0.0, 1.0, 2.0 * log))

    def less(self, share: float) -> Mean:
        """Return the accuracy of dense training for a cost minus that of the whole training, with its error."""
        log = math.log(share)
        return self._mean(np.array([0.0, log, log * log]))

    def _mean(self, powers: NDArray[np.float64]) -> Mean:
        shares = powers @ self.weights
        counts = [len(budget.accuracies) for budget in self.budgets]
        variance, freedom = self.spread
        return Mean(float(powers @ self.coefficients), ((variance * float((shares * shares / counts).sum()), freedom),))


@dataclass(frozen=True)
class NoCurve:
    """Why the accuracy of dense training by cost is not known.

    Attributes:
        reason: The reason, in words.
        need: What would give the accuracy.
        gap: Costs of two neighbouring lengths between which a length is missing.
    """

    reason: str
    need: Need
    gap: tuple[float, float] | None = None


@dataclass(frozen=True)
class Answer:
    """What the rule says about one group of comparable trials at one cost.

    Attributes:
        judged: The methods, in the order of the evidence.
        curve: Dense training by cost; `None` if there are too few dense trainings.
        shortest: Cost of the shortest dense training that is as good as the whole one.
        pass_error: Standard deviation of ln of a time ratio between passes; `None` for FLOPs and without passes.
        without_curve: Why there is no curve, and what would give a curve.
        claims: Number of methods on the page for which something was tested.
    """

    judged: tuple[Judged, ...]
    curve: DenseCurve | None = None
    shortest: float | None = None
    pass_error: float | None = None
    without_curve: NoCurve | None = None
    claims: int = 0

    @property
    def smallest_gain(self) -> float | None:
        """The smallest gain, in points, that would have been shown with a probability of `POWER` for each method."""
        gains = [one.gain for one in self.judged if one.gain is not None and one.at_equal_cost != "not measured"]
        return max(
            (
                (_quantile(1 - LEVEL / self.claims, one.freedom) + _quantile(POWER, one.freedom)) * one.error
                for one in gains
            ),
            default=None,
        )


def judge(page: Sequence[Evidence], margin: float) -> list[Answer]:
    """Apply the rule to all groups of a page at one cost.

    Args:
        page: The groups. Their order, and that of methods and seeds, changes nothing.
        margin: δ, in points.
    """
    answers = [_answer(one) for one in page]
    tested = [one for answer in answers for one in answer.judged if _is_testable(one)]
    decided = iter(_decide(tested, margin))
    return [
        replace(
            answer,
            judged=tuple(next(decided) if _is_testable(one) else one for one in answer.judged),
            shortest=None if answer.curve is None else shortest_dense(answer.curve, margin),
            claims=len(tested),
        )
        for answer in answers
    ]


def dense_curve(budgets: Iterable[Budget]) -> DenseCurve | NoCurve:
    """Return the accuracy of dense training by cost, or why it is not known and what would give it.

    Args:
        budgets: Dense trainings. Those with fewer than `FEWEST_SEEDS` seeds, or with diverged ones, are left out.
    """
    known = sorted(budgets, key=lambda one: one.share)
    whole = next((one for one in known if abs(one.share - 1) < _ROUNDING), None)
    if whole is None:
        return NoCurve("dense was not trained", "controls")
    if whole.diverged:
        total = whole.diverged + len(whole.accuracies)
        return NoCurve(f"{whole.diverged} of {total} seeds of dense diverged or learned nothing", "none")
    sound = [one for one in known if not one.diverged]
    used = tuple(one for one in sound if len(one.accuracies) >= FEWEST_SEEDS)
    needs: tuple[tuple[Sequence[Budget], str, Need], ...] = (
        (known, "", "controls"),
        (sound, " without diverged seeds", "none"),
        (used, f" with {FEWEST_SEEDS} seeds", "seeds"),
    )
    for several, which, need in needs:
        if several is used and len(whole.accuracies) < FEWEST_SEEDS:
            return NoCurve(f"dense has {len(whole.accuracies)} of at least {FEWEST_SEEDS} seeds", "seeds")
        count = len({round(one.share, 9) for one in several})  # only different costs determine a parabola
        if count < FEWEST_BUDGETS:
            lengths = "1 length" if count == 1 else f"{count} lengths"
            return NoCurve(f"dense was trained for {lengths}{which}, and at least {FEWEST_BUDGETS} are needed", need)
    shares = np.array([one.share for one in used])
    widest = int(np.diff(shares).argmax())
    low, high = used[widest].share, used[widest + 1].share
    if high - low > WIDEST_GAP + _ROUNDING:
        reason = f"two lengths of dense training differ by {high - low:.2f} of the whole, more than {WIDEST_GAP}"
        return NoCurve(reason, "between", (low, high))
    counts = np.array([len(one.accuracies) for one in used], dtype=float)
    means = np.array([math.fsum(one.accuracies) / len(one.accuracies) for one in used])
    variance, freedom = pooled(one.accuracies for one in used)
    if variance <= _ROUNDING**2:
        return NoCurve("all seeds of dense have the same accuracy, which tells nothing about their spread", "none")
    logs = np.log(shares)
    design = np.stack([np.ones_like(logs), logs, logs * logs], axis=1)
    weights = np.linalg.solve(design.T @ (counts[:, None] * design), design.T * counts)
    coefficients = weights @ means
    residuals = means - design @ coefficients
    others = len(used) - 3
    lack = _p_of_ratio(float((counts * residuals**2).sum()) / others / variance, others, freedom)
    if lack < NOT_SMOOTH:
        return NoCurve(f"the dense curve is not smooth (p = {lack:.2g} for a parabola)", "none")
    return DenseCurve(used, coefficients, weights, (variance, freedom), lack)


def shortest_dense(curve: DenseCurve, margin: float) -> float:
    """Return the cost of the shortest dense training that is shown to lose less than the margin.

    The search begins with the longest training, and ends at the first for which this is not shown.
    """
    shortest = 1.0
    for budget in reversed(curve.budgets):
        if abs(budget.share - 1) < _ROUNDING:
            continue
        if curve.less(budget.share).p_above(-margin) > LEVEL:
            break
        shortest = budget.share
    return shortest


def pooled(cells: Iterable[Sequence[float]]) -> tuple[float, int]:
    """Return the pooled variance within cells, and its degrees of freedom; (0, 0) if no cell has two values."""
    total, freedom = 0.0, 0
    for cell in cells:
        mean = math.fsum(cell) / len(cell) if cell else 0.0
        total += math.fsum((value - mean) ** 2 for value in cell)
        freedom += max(0, len(cell) - 1)
    return (total / freedom if freedom else 0.0), freedom


def holm(p_values: Sequence[float]) -> list[float]:
    """Return the p-values after Holm's correction, in the same order, to compare with the level of all claims together.

    Source: S. Holm, "A Simple Sequentially Rejective Multiple Test Procedure", Scandinavian Journal of Statistics 1979.
    """
    corrected = [1.0] * len(p_values)
    largest = 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        corrected[index] = largest
    return corrected


def cost_shares(evidence: Evidence) -> tuple[dict[str, CostShare], float | None]:
    """Return the cost of each method that has one, and for times the standard deviation between passes."""
    logs = {candidate.label: [math.log(ratio) for ratio in candidate.ratios] for candidate in evidence.candidates}
    if not evidence.measured:
        return {label: _counted(values) for label, values in logs.items() if values}, None
    enough = {label: values for label, values in logs.items() if len(values) >= FEWEST_PASSES}
    twice = [math.log(ratio) for ratio in evidence.twice]
    variance, freedom = pooled([*enough.values(), *([twice] if len(twice) >= FEWEST_PASSES else [])])
    if not freedom:
        return {}, None
    deviation, quantile = math.sqrt(variance), _quantile(1 - LEVEL, freedom)
    shares = {}
    for label, values in enough.items():
        error = deviation / math.sqrt(len(values))
        shares[label] = CostShare(math.fsum(values) / len(values), error, freedom, quantile * error)
    return shares, deviation


def _counted(logs: Sequence[float]) -> CostShare:
    mean = math.fsum(logs) / len(logs)
    error = math.sqrt(pooled([logs])[0] / len(logs))
    if error <= _ROUNDING:
        return CostShare(mean)
    return CostShare(mean, error, len(logs) - 1, _quantile(1 - LEVEL, len(logs) - 1) * error)


def _answer(evidence: Evidence) -> Answer:
    """Return what is known of each method before any claim is tested."""
    costs, pass_error = cost_shares(evidence)
    curve = dense_curve(evidence.budgets)
    # The spread leaves out methods with diverged seeds, whose other seeds may not be typical either.
    sound = [one.accuracies for one in evidence.candidates if not one.diverged and len(one.accuracies) >= FEWEST_SEEDS]
    spread = pooled(sound)
    judged = tuple(_before_tests(one, costs.get(one.label), curve, spread, evidence) for one in evidence.candidates)
    if isinstance(curve, DenseCurve):
        return Answer(judged, curve, pass_error=pass_error)
    return Answer(judged, pass_error=pass_error, without_curve=curve)


def _before_tests(
    candidate: Candidate,
    cost: CostShare | None,
    curve: DenseCurve | NoCurve,
    spread: tuple[float, int],
    evidence: Evidence,
) -> Judged:
    """Return the means that the claims about a method are tested with, or why there are none."""
    count = len(candidate.accuracies)
    judged = Judged(candidate, cost=cost)
    if candidate.diverged:
        unstable = f"{candidate.diverged} of {candidate.diverged + count} seeds diverged or learned nothing"
        judged = replace(judged, at_equal_cost="unstable", reason=unstable)
    if count < FEWEST_SEEDS:
        return (
            judged
            if candidate.diverged
            else replace(judged, reason=f"it has {count} of at least {FEWEST_SEEDS} seeds", need="seeds")
        )
    accuracy = mean_accuracy(candidate.accuracies, spread)
    judged = replace(judged, accuracy=accuracy)
    if not isinstance(curve, DenseCurve):
        return replace(judged, reason=judged.reason or curve.reason, need=curve.need)
    if accuracy.error <= _ROUNDING:
        same = "all seeds of the methods have the same accuracy, which tells nothing about their spread"
        return replace(judged, reason=judged.reason or same)
    whole = curve.at(0.0)
    judged = replace(judged, loss=Mean(accuracy.value - whole.value, (*accuracy.parts, *whole.parts)))
    if cost is None:
        passes = f"it has {len(candidate.ratios)} of at least {FEWEST_PASSES} time passes"
        counted = "its executed FLOPs are not known"
        return replace(
            judged,
            reason=judged.reason or (passes if evidence.measured else counted),
            need="passes" if evidence.measured else "none",
        )
    log = math.log(cost.of_dense)
    if log < math.log(curve.budgets[0].share) - _ROUNDING:
        reason = f"it costs {cost.share:.3f} of dense, and the shortest dense training {curve.budgets[0].share:.3f}"
        return replace(judged, reason=judged.reason or reason, need="shorter")
    dense = curve.at(log)
    slope = max(curve.slope(log), 0.0)
    uncertain = ((slope * cost.error) ** 2, cost.freedom)
    parts = (*accuracy.parts, *dense.parts, *([uncertain] if uncertain[0] else []))
    return replace(judged, dense=dense.value, gain=Mean(accuracy.value - dense.value, parts))


def mean_accuracy(accuracies: Sequence[float], spread: tuple[float, float]) -> Mean:
    """Return the mean of a cell. Its variance is the pooled one, or its own if that is larger.

    Args:
        accuracies: Accuracies of its seeds, one or more.
        spread: The pooled variance and its degrees of freedom; with 0 degrees, the cell's own variance counts.
    """
    count = len(accuracies)
    of_cell = pooled([accuracies])
    variance, freedom = (max(of_cell[0], spread[0]), spread[1]) if spread[1] else of_cell
    return Mean(math.fsum(accuracies) / count, ((variance / count, freedom),))


def _decide(tested: Sequence[Judged], margin: float) -> list[Judged]:
    """Test the claims about all methods of a page."""
    values = [_p_values(one, margin) for one in tested]
    families = {claim: holm([one[claim] for one in values]) for claim in CLAIMS}
    decided = []
    for index, one in enumerate(tested):
        corrected = {claim: family[index] for claim, family in families.items()}
        shown = {claim for claim, value in corrected.items() if value <= LEVEL}
        outcome, p_value = one.at_equal_cost, None
        if "better" in shown:
            outcome, p_value = "better", corrected["better"]
        elif "worse" in shown:
            outcome, p_value = "worse", corrected["worse"]
        elif {"above", "below"} <= shown:
            outcome, p_value = "same", max(corrected["above"], corrected["below"])
        elif one.gain is not None and outcome != "unstable":
            outcome = "not measured" if costs_more(one) else "undecided"
        as_good: AsGood = "yes" if "yes" in shown else "no" if shown & {"lossy", "slower"} else "undecided"
        result = replace(one, at_equal_cost=outcome, as_good=as_good, p_value=p_value)
        if outcome == "not measured" and costs_more(one):
            result = replace(result, reason="it costs more than dense, which was not trained for longer", need="longer")
        if outcome == "undecided":
            result = replace(result, seeds_needed=seeds_needed(result, len(tested)))
            if result.seeds_needed is None:
                result = replace(result, need="passes" if _cost_hides(result, len(tested)) else "none")
        decided.append(result)
    return decided


def _is_testable(judged: Judged) -> bool:
    """Return whether one of the questions about a method can be answered."""
    return judged.loss is not None and judged.cost is not None


def costs_more(judged: Judged) -> bool:
    """Return whether a method is shown to cost more than dense: dense for less than its cost is then the reference."""
    return judged.cost is not None and judged.cost.log > 0 and not judged.cost.is_same


def _p_values(judged: Judged, margin: float) -> dict[str, float]:
    """Return the p-value of each claim about a method before the correction; 1 for a claim that cannot be made."""
    gain, loss, cost = judged.gain, judged.loss, judged.cost
    assert loss is not None
    assert cost is not None
    faster = _p_above(-cost.log / cost.error, cost.freedom) if cost.error else float(cost.log > -_ROUNDING)
    slower = _p_above(cost.log / cost.error, cost.freedom) if cost.error else float(cost.log < _ROUNDING)
    p_values = {
        "better": gain.p_above(0.0) if gain else 1.0,
        "worse": 1 - gain.p_above(0.0) if gain else 1.0,
        "above": gain.p_above(-margin) if gain else 1.0,
        "below": 1 - gain.p_above(margin) if gain else 1.0,
        "yes": max(loss.p_above(-margin), faster),
        "lossy": 1 - loss.p_above(-margin),
        "slower": slower,
    }
    never = {"better", "above", "below"} if costs_more(judged) else set()
    never |= {"better", "above", "below", "yes"} if judged.candidate.diverged else set()
    return {name: 1.0 if name in never else value for name, value in p_values.items()}


def seeds_needed(judged: Judged, claims: int) -> int | None:
    """Return how many seeds of the method and of dense would tell its gain from 0, if the gain stayed as it is.

    Args:
        judged: An undecided method.
        claims: Number of methods on the page.

    Returns:
        A number of seeds; `None` if even `MOST_SEEDS` would not decide.
    """
    count = len(judged.candidate.accuracies)
    more = range(count + 1, MOST_SEEDS + 1)
    # The error falls with the number of seeds, so that bisection finds the first number that decides.
    place = bisect_left(
        more, True, key=lambda one: _is_told_apart(judged, claims, one / count, (one - 1) / (count - 1))
    )
    return more[place] if place < len(more) else None


def _cost_hides(judged: Judged, claims: int) -> bool:
    """Return whether the error of the cost alone is too large to tell the gain from 0."""
    return not _is_told_apart(judged, claims, math.inf, math.inf)


def _is_told_apart(judged: Judged, claims: int, more: float, freedom: float) -> bool:
    """Return whether a gain would differ from 0 with `more` times the seeds, and the same error of the cost."""
    gain = judged.gain
    assert gain is not None
    seeds = [(variance / more, known * freedom) for variance, known in gain.parts[:2]]
    scaled = Mean(gain.value, (*seeds, *gain.parts[2:]))
    return scaled.error == 0 or abs(gain.value) >= _quantile(1 - LEVEL / claims, scaled.freedom) * scaled.error


def _p_above(statistic: float, freedom: float) -> float:
    return float(stdtr(freedom, -statistic)) if math.isfinite(freedom) else float(ndtr(-statistic))


def _quantile(probability: float, freedom: float) -> float:
    return float(stdtrit(freedom, probability)) if math.isfinite(freedom) else float(ndtri(probability))


def _p_of_ratio(ratio: float, numerator: int, denominator: int) -> float:
    return float(fdtrc(numerator, denominator, ratio))
