"""Ratios of two times, measured in alternation so that other load on the machine affects both."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats


@dataclass(frozen=True)
class Ratio:
    """Ratio of two times over interleaved pairs.

    Attributes:
        least: Quotient of the two minimal times.
        median: Median of the quotients of the pairs; `low` and `high` are its 95 % interval (percentile bootstrap).
        first_s, second_s: Median times in seconds.
    """

    least: float
    median: float
    low: float
    high: float
    first_s: float
    second_s: float

    def __str__(self) -> str:
        return f"{self.least:5.3f} {self.median:5.3f} [{self.low:.3f}, {self.high:.3f}]"


def interleaved_ratio(
    first: Callable[[], object], second: Callable[[], object], pairs: int, now: Callable[[], float] = time.perf_counter
) -> Ratio:
    """Measure the time of `first` over that of `second`; each runs once before, unmeasured. The order alternates."""
    times = interleaved_times(first, second, pairs, now)
    return ratio_of(times[:, 0], times[:, 1])


def interleaved_times(
    first: Callable[[], object], second: Callable[[], object], pairs: int, now: Callable[[], float] = time.perf_counter
) -> NDArray[np.float64]:
    """Return the seconds of `first` and `second`, (pairs, 2), as `interleaved_ratio` measures them."""
    times = np.empty((pairs, 2))
    for function in (first, second):
        function()
    for index, pair in enumerate(times):
        for column in (0, 1) if index % 2 == 0 else (1, 0):
            began = now()
            (first, second)[column]()
            pair[column] = now() - began
    return times


def ratio_of(first: ArrayLike, second: ArrayLike) -> Ratio:
    """Return the ratio of times that were measured in at least two pairs.

    Args:
        first, second: Seconds, (pairs,); entries with the same index were measured together.
    """
    first, second = np.asarray(first, dtype=float), np.asarray(second, dtype=float)
    ratios = first / second
    interval = stats.bootstrap((ratios,), np.median, method="percentile", rng=np.random.default_rng(0))
    low, high = interval.confidence_interval
    least = float(first.min() / second.min())
    return Ratio(
        least, float(np.median(ratios)), float(low), float(high), float(np.median(first)), float(np.median(second))
    )
