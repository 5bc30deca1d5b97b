"""A number with its interval, or the reason why there is none."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scipy import stats

CONFIDENCE = 0.95
# Equal values differ by no more than this share once they were subtracted or divided.
_ROUNDING = 1e-12


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds.

    Attributes:
        mean: of one value a seed.
        half_width: of the 95 % t-interval of the mean; `None` where there is none: of one seed, and where all seeds
            have the same value, which says more of how coarse a value is than of how sure the mean.
        count: how many seeds it comes from.
    """

    mean: float
    half_width: float | None
    count: int

    def covers(self, value: float) -> bool:
        """Whether `value` lies in the interval, its ends included; without an interval nothing can be told apart."""
        return self.half_width is None or abs(self.mean - value) <= self.half_width


@dataclass(frozen=True)
class Missing:
    """A value that was not measured, and why."""

    reason: str


Quantity = Estimate | Missing


def estimate(values: Sequence[float], reason: str) -> Quantity:
    """Mean and 95 % t-interval of one value a seed; `Missing(reason)` where there is no value at all."""
    if not values:
        return Missing(reason)
    mean = math.fsum(values) / len(values)
    if len(values) == 1:
        return Estimate(mean, None, 1)
    error = float(stats.sem(values))
    if error <= _ROUNDING * max(abs(value) for value in values):
        return Estimate(mean, None, len(values))
    return Estimate(mean, float(stats.t.ppf((1 + CONFIDENCE) / 2, len(values) - 1)) * error, len(values))


def paired(
    ours: Mapping[int, float], baseline: Mapping[int, float], combine: str, reason: str = "not measured"
) -> Quantity:
    """Mean and interval of `ours - baseline` or `ours / baseline`, seed by seed.

    Args:
        ours, baseline: one value a seed.
        combine: `"difference"` or `"ratio"`.
        reason: why there is nothing, should one of the two be empty.
    """
    if not ours or not baseline:
        return Missing(reason)
    seeds = sorted(set(ours) & set(baseline))
    if not seeds:
        return Missing("no seed in common with dense, so nothing can be paired")
    if combine == "difference":
        return estimate([ours[seed] - baseline[seed] for seed in seeds], reason)
    if combine == "ratio":
        usable = [seed for seed in seeds if baseline[seed] > 0]
        return estimate([ours[seed] / baseline[seed] for seed in usable], "dense's own value is 0")
    raise ValueError(f"combine is '{combine}'; known: difference, ratio")
