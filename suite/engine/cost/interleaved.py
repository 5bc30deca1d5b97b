"""Ratios of two times, measured in alternation so that other programs slow both alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from suite.engine.cost.clock import CpuStamps, Stamps


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
    """Measure the time of `first` over that of `second`, in alternating order. Each runs once before, unmeasured."""
    return ratio_of(*interleaved_times((first, second), pairs, stamps).T)


def interleaved_times(
    calls: Sequence[Callable[[], object]],
    rounds: int,
    stamps: Stamps | None = None,
    last_begins: bool = False,
    warm_ups: int = 1,
) -> NDArray[np.float64]:
    """Run several calls in turn, and return the seconds of each, (rounds, calls).

    Args:
        calls: The functions to measure.
        rounds: Number of rounds. Their order alternates.
        stamps: Points in time of the device that computes; `None` for wall time.
        last_begins: Whether the last call runs first in the first round.
        warm_ups: Number of earlier rounds that are not measured, in the order of the first.
    """
    stamps = stamps or CpuStamps()
    order = [*range(len(calls))][:: -1 if last_begins else 1]
    for index in order * warm_ups:
        calls[index]()
    points: list[dict[int, tuple[Any, Any]]] = []
    for number in range(rounds):
        points.append({})
        for index in order if number % 2 == 0 else reversed(order):
            began = stamps.now()
            calls[index]()
            points[-1][index] = (began, stamps.now())
    # On a GPU, reading a duration waits for the device. The durations are therefore read after all rounds.
    return np.array([[stamps.seconds(*row[index]) for index in range(len(calls))] for row in points])


def ratio_of(first: ArrayLike, second: ArrayLike) -> Ratio:
    """Return the ratio of times that were measured in at least two pairs.

    Args:
        first, second: Seconds, (pairs,). Entries with the same index were measured together.
    """
    first, second = np.asarray(first, dtype=float), np.asarray(second, dtype=float)
    ratios = first / second
    interval = stats.bootstrap((ratios,), np.median, method="percentile", rng=np.random.default_rng(0))
    low, high = interval.confidence_interval
    least = float(first.min() / second.min())
    return Ratio(
        least, float(np.median(ratios)), float(low), float(high), float(np.median(first)), float(np.median(second))
    )
