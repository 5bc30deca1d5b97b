"""The rule that says what a method is worth: accuracy at equal cost, and whether it is as good as dense in less time.

The rule uses only numbers: accuracies of seeds in points, and costs relative to the whole dense training. It asks two
questions about a method, with accuracies m of its seeds, a cost c and a margin δ of accuracy:

1. *At equal cost*: the gain G is the mean of m minus the accuracy d(c) of dense training for the cost c. The method is
   `better` if the data show G > 0, `worse` if they show G < 0, `same` if they show -δ < G < δ, and otherwise
   `undecided`.
2. *As good as dense in less time*: `yes` if the data show m - d(1) > -δ and c < 1, `no` if they show m - d(1) < -δ or
   c > 1, and otherwise `undecided`.

**Dense for a cost.** d(c) is a parabola in ln c through dense trainings of several lengths, fitted by least squares.
The rule does not extrapolate to costs below the shortest of them. A method that is shown to cost more than dense is
compared with the whole dense training.

**Spread.** Seeds are not paired, because accuracies of a method and of dense with the same seed are not correlated. The
spread of dense is pooled over its lengths. A method has the spread of its own seeds, and at least that of dense. Where
each seed has its own cost, the gain is that of each seed; otherwise the error of the cost enters by the slope of d.
Satterthwaite's formula combines degrees of freedom.

**Few seeds.** A test with the larger of two spreads is too sure of itself when seeds are few: the p-value of a method
with n seeds is multiplied by n / (n - 2), a factor that was fitted to simulated pages (docs/verdict.md). With fewer
than `SURE_SEEDS` seeds, an answer is preliminary.

**Many claims.** Holm's method corrects each kind of claim over all methods of a page, at `LEVEL`. Ways to train without
pruning are a family of their own: they are judged apart from the methods, as if they were a page of their own.

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
from scipy.stats import bartlett

from suite.recipe import FEWEST_BUDGETS, WIDEST_GAP

LEVEL = 0.025
"""Largest probability of a false claim of each kind on a page."""
FEWEST_SEEDS = 3
"""Fewest seeds of a method, or of dense training of one length, with which it enters a test."""
SURE_SEEDS = 5
"""Fewest seeds of a method with which an answer is not preliminary."""
FEWEST_PASSES = 3
"""Fewest time passes, or seeds with counted FLOPs, that tell a cost."""
SURE_PASSES = 5
UNSTEADY_PASSES = 0.03
"""Standard deviation of ln of the ratios above which fewer than `SURE_PASSES` passes are named."""
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
        ratios: Its cost relative to the whole dense training, for each time pass or each seed.
        diverged: Number of seeds that diverged or learned nothing.
        by_seed: Whether `ratios` has a cost for each seed, in the order of `accuracies`.
        passes: Number of time passes of which each ratio is the mean.
    """

    label: str
    accuracies: tuple[float, ...]
    ratios: tuple[float, ...]
    diverged: int = 0
    by_seed: bool = False
    passes: int = 1

    @property
    def is_preliminary(self) -> bool:
        """Whether there are too few seeds for an answer that is not preliminary."""
        return len(self.accuracies) < SURE_SEEDS


@dataclass(frozen=True)
class Evidence:
    """What is known about one group of comparable trials at one cost.

    Attributes:
        budgets: Dense trainings.
        candidates: Methods.
        twice: Ratios of dense training to itself, one for each time pass.
        measured: Whether the costs are times, which have at least the error of `twice`. Otherwise they are counted
            FLOPs.
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
        spread: Standard deviation of the logarithms of the ratios.
    """

    log: float
    error: float = 0.0
    freedom: float = math.inf
    spread: float = 0.0

    @property
    def share(self) -> float:
        """The cost."""
        return math.exp(self.log)

    @property
    def low(self) -> float:
        """Lower end of its 95 % interval."""
        return math.exp(self.log - self._half_width)

    @property
    def high(self) -> float:
        """Upper end of its 95 % interval."""
        return math.exp(self.log + self._half_width)

    @property
    def _half_width(self) -> float:
        return _quantile(1 - LEVEL, self.freedom) * self.error

    @property
    def is_more(self) -> bool:
        """Whether it is shown to be more than the cost of dense: its whole interval is."""
        return self.log - self._half_width > _ROUNDING

    @property
    def of_dense(self) -> float:
        """Cost of the dense training to compare with: this cost, or 1 if it is shown to be more than 1."""
        return 1.0 if self.is_more else self.share


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

    def half_width(self, level: float = LEVEL) -> float:
        """Return the half-width of its interval, beyond each end of which lies a probability of `level`."""
        return _quantile(1 - level, self.freedom) * self.error


@dataclass(frozen=True)
class Judged:
    """What the rule says about one method.

    Attributes:
        candidate: The method.
        at_equal_cost, as_good: The answers to both questions.
        cost: Its cost; `None` if it is not known.
        accuracy: Mean accuracy.
        has_own_spread: Whether its seeds spread more than those of dense, whose spread counts otherwise.
        dense: Accuracy of the dense training that it is compared with at equal cost; `None` if not known.
        gain: Accuracy minus that of dense at equal cost.
        loss: Accuracy minus that of the whole dense training.
        p_value: p-value of the claim at equal cost, corrected for the page; `None` without a claim.
        reason: Why there is no outcome.
        need: What would give an outcome.
        seeds_needed: For `undecided`, the number of seeds that would show the present gain or loss.
        claims: Number of methods of its family on the page, those included for which nothing could be tested.
    """

    candidate: Candidate
    at_equal_cost: AtEqualCost = "not measured"
    as_good: AsGood = "not measured"
    cost: CostShare | None = None
    accuracy: Mean | None = None
    has_own_spread: bool = True
    dense: float | None = None
    gain: Mean | None = None
    loss: Mean | None = None
    p_value: float | None = None
    reason: str = ""
    need: Need = "none"
    seeds_needed: int | None = None
    claims: int = 1

    @property
    def lack(self) -> str:
        """What is missing for an answer, in a few words; `reason` has the numbers."""
        if self.need == "seeds" or len(self.candidate.accuracies) < FEWEST_SEEDS:
            tried = self.candidate.accuracies or self.candidate.diverged
            return "too few seeds" if tried else "no trial done"
        if self.loss is None:
            return "no dense curve"
        if self.cost is not None:
            return f"no dense as {'long' if self.need == 'longer' else 'short'}"
        passes = "too few time passes" if self.candidate.ratios else "no time pass"
        return passes if self.need == "passes" else "FLOPs missing"

    @property
    def level(self) -> float:
        """Level at which its gain is told from 0 if all methods of its family are tested."""
        return _level(len(self.candidate.accuracies)) / self.claims

    @property
    def smallest_gain(self) -> float | None:
        """The smallest gain, in points, that would have been shown with a probability of `POWER`."""
        if self.gain is None or self.at_equal_cost == "not measured":
            return None
        return self.gain.half_width(self.level) + _quantile(POWER, self.gain.freedom) * self.gain.error


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

    def at(self, *logs: float) -> Mean:
        """Return the accuracy of dense training for a cost, or the mean of those for several, with its error."""
        known = np.array(logs)
        return self._mean(np.array([1.0, known.mean(), (known * known).mean()]))

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
        without_pruning: Ways to train without pruning, which are a family of their own, in their order.
        curve: Dense training by cost; `None` if there are too few dense trainings.
        shortest: Cost of the shortest dense training that is as good as the whole one.
        twice_error: Standard deviation of ln of the ratio of dense to itself; `None` for FLOPs and without passes.
        without_curve: Why there is no curve, and what would give a curve.
        claims: Number of methods on the page, those included for which nothing could be tested.
    """

    judged: tuple[Judged, ...]
    without_pruning: tuple[Judged, ...] = ()
    curve: DenseCurve | None = None
    shortest: float | None = None
    twice_error: float | None = None
    without_curve: NoCurve | None = None
    claims: int = 0

    @property
    def unequal(self) -> float | None:
        """p-value of the hypothesis that all methods spread alike (Bartlett); `None` with fewer than two of them."""
        spreading = [one.candidate.accuracies for one in self.judged if pooled([one.candidate.accuracies])[0]]
        return float(bartlett(*spreading).pvalue) if len(spreading) > 1 else None

    @property
    def smallest_gains(self) -> tuple[float, float] | None:
        """The least and the largest of the methods' smallest gains that would have been shown, in points."""
        gains = [gain for one in self.judged if (gain := one.smallest_gain) is not None]
        return (min(gains), max(gains)) if gains else None

    @property
    def both(self) -> tuple[Judged, ...]:
        """The methods, then the ways to train without pruning."""
        return (*self.judged, *self.without_pruning)

    def of(self, label: str) -> Judged | None:
        """Return what is said of the method with this label; `None` if nothing is."""
        return next((one for one in self.both if one.candidate.label == label), None)


def judge(page: Sequence[Evidence], margin: float) -> list[Answer]:
    """Apply the rule to all groups of a page at one cost, to the methods or to the ways without pruning.

    Args:
        page: The groups. Their order, and that of methods and seeds, changes nothing.
        margin: δ, in points.
    """
    answers = [_answer(one) for one in page]
    everything = [one for answer in answers for one in answer.judged]
    everything = [replace(one, claims=len(everything)) for one in everything]
    decided = iter(_decide(everything, margin))
    return [
        replace(
            answer,
            judged=tuple(next(decided) for _ in answer.judged),
            shortest=None if answer.curve is None else shortest_dense(answer.curve, margin),
            claims=len(everything),
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


def cost_share(candidate: Candidate, evidence: Evidence) -> CostShare | None:
    """Return the cost of a method; `None` if it has too few ratios, or dense has too few to itself."""
    logs, twice = ([math.log(ratio) for ratio in ratios] for ratios in (candidate.ratios, evidence.twice))
    if len(logs) < FEWEST_PASSES or (evidence.measured and len(twice) < FEWEST_PASSES):
        return None
    mean, (variance, freedom) = math.fsum(logs) / len(logs), pooled([logs])
    floor = pooled([twice])[0] / candidate.passes if evidence.measured else 0.0
    error = math.sqrt(max(variance, floor) / len(logs))
    if error <= _ROUNDING:
        return CostShare(mean)
    return CostShare(mean, error, freedom, math.sqrt(variance))


def _answer(evidence: Evidence) -> Answer:
    """Return what is known of each method before any claim is tested."""
    curve = dense_curve(evidence.budgets)
    twice, freedom = pooled([[math.log(ratio) for ratio in evidence.twice]])
    return Answer(
        judged=tuple(_before_tests(one, curve, evidence) for one in evidence.candidates),
        curve=curve if isinstance(curve, DenseCurve) else None,
        twice_error=math.sqrt(twice) if evidence.measured and freedom else None,
        without_curve=None if isinstance(curve, DenseCurve) else curve,
    )


def _before_tests(candidate: Candidate, curve: DenseCurve | NoCurve, evidence: Evidence) -> Judged:
    """Return the means that the claims about a method are tested with, or why there are none."""
    count = len(candidate.accuracies)
    judged = Judged(candidate, cost=(cost := cost_share(candidate, evidence)))
    if candidate.diverged:
        unstable = f"{candidate.diverged} of {candidate.diverged + count} seeds diverged or learned nothing"
        judged = replace(judged, at_equal_cost="unstable", reason=unstable)
    if count < FEWEST_SEEDS:
        reason = judged.reason or f"it has {count} of at least {FEWEST_SEEDS} seeds"
        return replace(judged, reason=reason, need="none" if candidate.diverged else "seeds")
    if not isinstance(curve, DenseCurve):
        return replace(judged, reason=judged.reason or curve.reason, need=curve.need)
    accuracy, whole = mean_accuracy(candidate.accuracies, curve.spread), curve.at(0.0)
    judged = replace(
        judged,
        accuracy=accuracy,
        has_own_spread=pooled([candidate.accuracies])[0] > curve.spread[0],
        loss=Mean(accuracy.value - whole.value, (*accuracy.parts, *whole.parts)),
    )
    if cost is None:
        fewer = min(len(candidate.ratios), len(evidence.twice))
        passes = f"it has {fewer} of at least {FEWEST_PASSES} time passes"
        flops = f"its executed FLOPs are known for {len(candidate.ratios)} of at least {FEWEST_PASSES} seeds"
        reason = passes if evidence.measured else flops
        return replace(judged, reason=judged.reason or reason, need="passes" if evidence.measured else "none")
    log = math.log(cost.of_dense)
    if log < math.log(curve.budgets[0].share) - _ROUNDING:
        return replace(judged, reason=judged.reason or "it costs less than the shortest dense training", need="shorter")
    if candidate.by_seed:
        logs = [0.0 if cost.is_more else math.log(ratio) for ratio in candidate.ratios]
        pairs = zip(candidate.accuracies, logs, strict=True)
        dense = curve.at(*logs)
        of_seeds = mean_accuracy([value - curve.at(one).value for value, one in pairs], curve.spread)
        return replace(judged, dense=dense.value, gain=Mean(of_seeds.value, (*of_seeds.parts, *dense.parts)))
    dense = curve.at(log)
    uncertain = ((max(curve.slope(log), 0.0) * cost.error) ** 2, cost.freedom)
    parts = (*accuracy.parts, *dense.parts, *([uncertain] if uncertain[0] else []))
    return replace(judged, dense=dense.value, gain=Mean(accuracy.value - dense.value, parts))


def mean_accuracy(accuracies: Sequence[float], dense: tuple[float, float]) -> Mean:
    """Return the mean of a method's seeds. Its variance is their own, or that of dense if it is larger.

    Args:
        accuracies: Accuracies of its seeds, or their gains; one or more.
        dense: Variance of an accuracy of dense over seeds, and its degrees of freedom.
    """
    count = len(accuracies)
    own, freedom = pooled([accuracies])
    return Mean(math.fsum(accuracies) / count, ((max(own, dense[0]) / count, freedom),))


def mean_of_dense(accuracies: Sequence[float], spread: tuple[float, float]) -> Mean:
    """Return the mean of the seeds of a dense training, with the variance that is pooled over several lengths."""
    variance, freedom = spread
    return Mean(math.fsum(accuracies) / len(accuracies), ((variance / len(accuracies), freedom),))


def _level(seeds: float) -> float:
    """Return the level of a single test with so many seeds."""
    return LEVEL * (1 - 2 / seeds)


def _decide(page: Sequence[Judged], margin: float) -> list[Judged]:
    """Test the claims about all methods of a page. A claim that cannot be made has the p-value 1."""
    values = [_p_values(one, margin) if _is_testable(one) else dict.fromkeys(CLAIMS, 1.0) for one in page]
    families = {claim: holm([one[claim] for one in values]) for claim in CLAIMS}
    decided = []
    for index, one in enumerate(page):
        if not _is_testable(one):
            decided.append(one)
            continue
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
            result = replace(result, seeds_needed=seeds_needed(result))
            if result.seeds_needed is None:
                result = replace(result, need=_hidden_by(result))
        decided.append(result)
    return decided


def _is_testable(judged: Judged) -> bool:
    """Return whether one of the questions about a method can be answered."""
    return judged.loss is not None and judged.cost is not None


def _hidden_by(judged: Judged) -> Need:
    """Return `passes` if the error of the cost alone is too large to tell the gain from 0."""
    return "none" if _is_told_apart(judged, math.inf) else "passes"


def costs_more(judged: Judged) -> bool:
    """Return whether a method is shown to cost more than dense: dense for less than its cost is then the reference."""
    return judged.cost is not None and judged.cost.is_more


def _p_values(judged: Judged, margin: float) -> dict[str, float]:
    """Return the p-value of each claim about a method before the correction; 1 for a claim that cannot be made."""
    gain, loss, cost = judged.gain, judged.loss, judged.cost
    assert loss is not None
    assert cost is not None
    factor = LEVEL / _level(len(judged.candidate.accuracies))

    def of_seeds(p_value: float) -> float:
        return min(1.0, factor * p_value)

    faster = _p_above(-cost.log / cost.error, cost.freedom) if cost.error else float(cost.log > -_ROUNDING)
    slower = _p_above(cost.log / cost.error, cost.freedom) if cost.error else float(cost.log < _ROUNDING)
    p_values = {
        "better": of_seeds(gain.p_above(0.0)) if gain else 1.0,
        "worse": of_seeds(1 - gain.p_above(0.0)) if gain else 1.0,
        "above": of_seeds(gain.p_above(-margin)) if gain else 1.0,
        "below": of_seeds(1 - gain.p_above(margin)) if gain else 1.0,
        "yes": max(of_seeds(loss.p_above(-margin)), faster),
        "lossy": of_seeds(1 - loss.p_above(-margin)),
        "slower": slower,
    }
    never = {"better", "above", "below"} if costs_more(judged) else set()
    never |= {"better", "above", "below", "yes"} if judged.candidate.diverged else set()
    return {name: 1.0 if name in never else value for name, value in p_values.items()}


def seeds_needed(judged: Judged) -> int | None:
    """Return how many seeds of the method and of dense would tell its gain from 0, if the gain stayed as it is.

    Args:
        judged: An undecided method.

    Returns:
        A number of seeds; `None` if even `MOST_SEEDS` would not decide.
    """
    more = range(len(judged.candidate.accuracies) + 1, MOST_SEEDS + 1)
    # The error falls with the number of seeds, so that bisection finds the first number that decides.
    place = bisect_left(more, True, key=lambda seeds: _is_told_apart(judged, seeds))
    return more[place] if place < len(more) else None


def _is_told_apart(judged: Judged, seeds: float) -> bool:
    """Return whether a gain would differ from 0 with so many seeds, and the same error of the cost."""
    gain, count = judged.gain, len(judged.candidate.accuracies)
    assert gain is not None
    (own, _), (of_dense, freedom), *of_cost = gain.parts
    more = [(own * count / seeds, seeds - 1), (of_dense * count / seeds, freedom * (seeds - 1) / (count - 1))]
    scaled = Mean(gain.value, (*more, *of_cost))
    return scaled.error == 0 or abs(gain.value) >= scaled.half_width(_level(seeds) / judged.claims)


def _p_above(statistic: float, freedom: float) -> float:
    return float(stdtr(freedom, -statistic)) if math.isfinite(freedom) else float(ndtr(-statistic))


def _quantile(probability: float, freedom: float) -> float:
    return float(stdtrit(freedom, probability)) if math.isfinite(freedom) else float(ndtri(probability))


def _p_of_ratio(ratio: float, numerator: int, denominator: int) -> float:
    return float(fdtrc(numerator, denominator, ratio))
