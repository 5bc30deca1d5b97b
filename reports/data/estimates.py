"""Estimates over seeds: a mean with its confidence interval, or the reason why there is no value."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

CONFIDENCE = 0.95
# Values that differ by no more than this share count as equal: subtraction and division round.
_ROUNDING = 1e-12


@dataclass(frozen=True)
class Estimate:
    """Mean over seeds, with a confidence interval where one can be given.

    Attributes:
        mean: Mean of one value per seed.
        half_width: Half-width of the 95 % t-interval of the mean. `None` for one seed, and where all seeds have the
            same value: this shows how coarse the values are, not how certain the mean is.
        count: Number of seeds.
    """

    mean: float
    half_width: float | None
    count: int

    def covers(self, value: float) -> bool:
        """Return whether the interval, ends included, contains `value`. Without an interval this is always true."""
        return self.half_width is None or abs(self.mean - value) <= self.half_width

    def scaled(self, factor: float) -> Estimate:
        """Return the same estimate in another unit, for example a fraction in percent."""
        half_width = None if self.half_width is None else self.half_width * abs(factor)
        return Estimate(self.mean * factor, half_width, self.count)


@dataclass(frozen=True)
class Missing:
    """A value that is not known, and the reason."""

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


def _t_quantile(degrees_of_freedom: int) -> float:
    """Return the quantile of Student's t distribution that bounds a two-sided interval."""
    # Imported here because SciPy takes half a second to load, and a report of one seed has no intervals.
    from scipy.special import stdtrit

    return float(stdtrit(degrees_of_freedom, (1 + CONFIDENCE) / 2))


def paired(
    values: Mapping[int, float], baseline: Mapping[int, float], combine: str, reason: str = "not measured"
) -> Quantity:
    """Return mean and interval of `values - baseline` or `values / baseline`, paired by seed.

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
    if combine == "ratio":
        usable = [seed for seed in seeds if baseline[seed] > 0]
        return estimate([values[seed] / baseline[seed] for seed in usable], "the value of dense is 0")
    raise ValueError(f"combine is '{combine}'; known: difference, ratio")


def mean_of(quantity: Quantity) -> float | None:
    """Return the mean, or `None` for a missing value."""
    return quantity.mean if isinstance(quantity, Estimate) else None
