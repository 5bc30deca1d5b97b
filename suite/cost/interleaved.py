"""Ratios of two times, measured in alternation so that other load on the machine affects both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from suite.cost.stamps import CpuStamps, Stamps


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
    first: Callable[[], object], second: Callable[[], object], pairs: int, stamps: Stamps | None = None
) -> Ratio:
    """Measure the time of `first` over that of `second`; each runs once before, unmeasured. The order alternates."""
    times = interleaved_times(first, second, pairs, stamps)
    return ratio_of(times[:, 0], times[:, 1])


def interleaved_times(
    first: Callable[[], object],
    second: Callable[[], object],
    pairs: int,
    stamps: Stamps | None = None,
    first_begins: bool = True,
) -> NDArray[np.float64]:
    """Return the seconds of `first` and `second`, (pairs, 2), as `interleaved_ratio` measures them.

    Args:
        first, second: What is measured.
        pairs: Number of pairs.
        stamps: Points in time of the device that computes; wall time if `None`.
        first_begins: Whether `first` runs first in the first pair; it alternates from pair to pair.
    """
    stamps = stamps or CpuStamps()
    order = (0, 1) if first_begins else (1, 0)
    for column in order:
        (first, second)[column]()
    points: list[dict[int, tuple[Any, Any]]] = []
    for index in range(pairs):
        points.append({})
        for column in order if index % 2 == 0 else reversed(order):
            began = stamps.now()
            (first, second)[column]()
            points[-1][column] = (began, stamps.now())
    # On a GPU, reading a duration waits for the device, so that nothing is read between the pairs.
    return np.array([[stamps.seconds(*pair[column]) for column in (0, 1)] for pair in points])


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
