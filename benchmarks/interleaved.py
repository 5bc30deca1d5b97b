"""Times of two things against each other, measured in alternation: what a neighbour's load does hits both."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

from suite.runs.engines.local import environment


@dataclass(frozen=True)
class Ratio:
    """Ratio of two times over interleaved pairs.

    Attributes:
        least: the quotient of the two least times.
        median: of the pairs' quotients; `low` and `high` are its 95 % interval (percentile bootstrap).
        first_s, second_s: the median times.
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
    """The time of `first` over that of `second`; each runs once before, unmeasured. The order alternates."""
    times = np.empty((pairs, 2))
    for function in (first, second):
        function()
    for index, pair in enumerate(times):
        for column in (0, 1) if index % 2 == 0 else (1, 0):
            began = now()
            (first, second)[column]()
            pair[column] = now() - began
    return ratio_of(times[:, 0], times[:, 1])


def ratio_of(first: ArrayLike, second: ArrayLike) -> Ratio:
    """The ratio of times that were measured in pairs, at least two.

    Args:
        first, second: seconds, (pairs,); equal places were measured beside each other.
    """
    first, second = np.asarray(first, dtype=float), np.asarray(second, dtype=float)
    ratios = first / second
    interval = stats.bootstrap((ratios,), np.median, method="percentile", rng=np.random.default_rng(0))
    low, high = interval.confidence_interval
    least = float(first.min() / second.min())
    return Ratio(
        least, float(np.median(ratios)), float(low), float(high), float(np.median(first)), float(np.median(second))
    )


def run_as_a_trial_does(before: Callable[[], object] = lambda: None) -> None:
    """Start this program again in the environment that the engine gives a trial: allocator settings and threads.

    Args:
        before: called where it does start again, just before.
    """
    wanted = environment(1)
    if any(os.environ.get(name) != value for name, value in wanted.items() if name != "PYTHONPATH"):
        before()
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], wanted)
