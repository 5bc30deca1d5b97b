"""Estimates over seeds: a mean with its interval, or the reason why there is none; and what a guess reaches."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import bdtrc, stdtrit

from suite.trials.folder.reader import finite
from suite.trials.folder.records import TrialRecord

CONFIDENCE = 0.95
# Subtraction and division round, so values that differ by no more than this share count as equal.
_ROUNDING = 1e-12
_LARGEST_EXPONENT = 600.0  # finite, and beyond any measurement


@dataclass(frozen=True)
class Estimate:
    """Mean over seeds, with a confidence interval if there is one.

    Attributes:
        mean: Mean of one value per seed.
        half_width: Half the length of the 95 % t-interval; `None` without one. One seed has no interval. Equal values
            have none either: they show how coarse the values are, not how certain the mean is.
        count: Number of seeds.
        bounds: Ends of an interval that is not symmetric around the mean; `None` if they are `mean ± half_width`.
    """

    mean: float
    half_width: float | None
    count: int
    bounds: tuple[float, float] | None = None

    @property
    def low(self) -> float:
        """Lower end of the interval; the mean if there is no interval."""
        return self.bounds[0] if self.bounds is not None else self.mean - (self.half_width or 0.0)

    @property
    def high(self) -> float:
        """Upper end of the interval; the mean if there is no interval."""
        return self.bounds[1] if self.bounds is not None else self.mean + (self.half_width or 0.0)

    def covers(self, value: float) -> bool:
        """Return whether the interval, ends included, contains `value`; true if there is no interval."""
        if self.bounds is not None:
            return self.low <= value <= self.high
        return self.half_width is None or abs(self.mean - value) <= self.half_width

    def scaled(self, factor: float) -> Estimate:
        """Return the same estimate in another unit, for example a fraction as a percentage."""
        half_width = None if self.half_width is None else self.half_width * abs(factor)
        return Estimate(self.mean * factor, half_width, self.count, self._moved(0.0, factor))

    def complement(self) -> Estimate:
        """Return one minus this estimate: a ratio of costs as a saving."""
        return Estimate(1 - self.mean, self.half_width, self.count, self._moved(1.0, -1.0))

    def _moved(self, offset: float, factor: float) -> tuple[float, float] | None:
        if self.bounds is None:
            return None
        low, high = sorted(offset + factor * bound for bound in self.bounds)
        return low, high


@dataclass(frozen=True)
class Ratio(Estimate):
    """Geometric mean of one ratio per seed. The interval is that of the logarithms, transformed back."""


@dataclass(frozen=True)
class Missing:
    """A value that is not known, and the reason why."""

    reason: str


Quantity = Estimate | Missing


def estimate(values: Sequence[float], reason: str) -> Quantity:
    """Return the mean and 95 % t-interval of one value per seed, or `Missing(reason)` if there are no values."""
    if not values:
        return Missing(reason)
    mean = math.fsum(values) / len(values)
    if len(values) == 1:
        return Estimate(mean, None, 1)
    error = float(np.std(values, ddof=1)) / math.sqrt(len(values))
    if error <= _ROUNDING * max(abs(value) for value in values):
        return Estimate(mean, None, len(values))
    return Estimate(mean, _t_quantile(len(values) - 1) * error, len(values))


def ratio_estimate(ratios: Sequence[float], reason: str) -> Quantity:
    """Return the geometric mean of one ratio per seed with its interval, or `Missing(reason)` if there are none.

    The interval is the 95 % t-interval of the logarithms, transformed back. Twice and half as long are equally far from
    1, and both ends are positive.

    Args:
        ratios: Numbers above 0.
        reason: Reason to report if there are no values.
    """
    if not ratios:
        return Missing(reason)
    logarithms = [math.log(value) for value in ratios]
    mean = math.fsum(logarithms) / len(ratios)
    error = float(np.std(logarithms, ddof=1)) / math.sqrt(len(ratios)) if len(ratios) > 1 else 0.0
    if error <= _ROUNDING:  # the error of a logarithm is relative to the ratio
        return Ratio(math.exp(mean), None, len(ratios))
    half_width = _t_quantile(len(ratios) - 1) * error
    low, high = (math.exp(min(mean + side, _LARGEST_EXPONENT)) for side in (-half_width, half_width))
    return Ratio(math.exp(mean), (high - low) / 2, len(ratios), (low, high))


def _t_quantile(degrees_of_freedom: int) -> float:
    """Return the quantile of Student's t distribution that bounds a two-sided interval."""
    return float(stdtrit(degrees_of_freedom, (1 + CONFIDENCE) / 2))


def paired(
    values: Mapping[int, float],
    baseline: Mapping[int, float],
    combine: str,
    reason: str = "not measured",
) -> Quantity:
    """Return mean and interval of `values - baseline` or `values / baseline`, paired by seed.

    A ratio has a geometric mean (`ratio_estimate`).

    Args:
        values: One value per seed.
        baseline: One value per seed of dense training. Seeds that only one side has are left out.
        combine: `"difference"` or `"ratio"`.
        reason: Reason to report if one of the two is empty.
    """
    if not values or not baseline:
        return Missing(reason)
    seeds = sorted(set(values) & set(baseline))
    if not seeds:
        return Missing("no seed in common with dense, so nothing can be paired")
    if combine == "difference":
        return estimate([values[seed] - baseline[seed] for seed in seeds], reason)
    usable = [seed for seed in seeds if baseline[seed] > 0]
    if any(values[seed] <= 0 for seed in usable):
        return Missing("a value is 0, so that ratios have no geometric mean")
    return ratio_estimate([values[seed] / baseline[seed] for seed in usable], "the value of dense is 0")


def mean_of(quantity: Quantity) -> float | None:
    """Return the mean, or `None` for a missing value."""
    return quantity.mean if isinstance(quantity, Estimate) else None


GUESS_LEVEL = 0.01
"""A trial counts as a guess if a guess reaches its accuracy with a larger probability."""
_NAMES = ("classes", "test_images", "largest_test_class")


def facts(trial: TrialRecord) -> tuple[int, int, int]:
    """Return the numbers of classes, of test images and of images of the largest class; 0 for a missing number."""
    data = trial.provenance.get("data", {})
    numbers = [finite(data.get(name)) for name in _NAMES]
    classes, images, largest = (0 if number is None or number < 0 else int(number) for number in numbers)
    return classes, images, largest


def chance(accuracy: float, trial: TrialRecord) -> float:
    """Return the probability that a guess reaches an accuracy on the test images of a trial.

    A guess is right for each image with the probability 1/classes, or with the share of the largest class if that is
    known. The number of correct answers is binomial.

    Args:
        accuracy: As a fraction.
        trial: A trial with these test images.

    Returns:
        The probability; 0 if the record lacks these numbers, or they contradict each other.
    """
    classes, images, largest = facts(trial)
    if classes < 2 or images < 1 or largest > images:
        return 0.0
    return float(bdtrc(round(accuracy * images) - 1, images, max(1 / classes, largest / images)))


def is_guess(trial: TrialRecord) -> bool:
    """Return whether the accuracy of a finished trial may be that of a guess (one-sided test, 1 %)."""
    accuracy = trial.number("test_accuracy")
    return trial.done and accuracy is not None and chance(accuracy, trial) > GUESS_LEVEL
