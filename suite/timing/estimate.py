"""The training time of a method relative to dense, from pairs of steps in each of its stages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

RESAMPLES = 4999


@dataclass(frozen=True)
class RunRatio:
    """Training time of a method over that of dense.

    Attributes:
        ratio, low, high: The ratio and its 95 % interval.
        reconfiguration: Part of it that is the time of reconfigurations.
    """

    ratio: float
    low: float
    high: float
    reconfiguration: float


def run_ratio(
    times: Sequence[NDArray[np.float64]], steps: Sequence[int], dense_steps: int, reconfigure_s: float
) -> RunRatio:
    """Add up the time of all steps of a trial and of its reconfigurations, relative to dense training.

    A stage counts its steps times the median ratio of its pairs, over the number of dense steps. The interval is the
    percentile bootstrap over the pairs within each stage.

    Args:
        times: Seconds of steps of the method and of dense for each stage, (pairs, 2).
        steps: Steps of the trial for each stage.
        dense_steps: Steps of dense training; another number than the sum of `steps` if the method changes the batch
            size or trains for more epochs.
        reconfigure_s: Recorded seconds of all reconfigurations.
    """
    random = np.random.default_rng(0)
    dense_s = dense_steps * float(np.median(np.concatenate([pairs[:, 1] for pairs in times])))
    reconfiguration = reconfigure_s / dense_s
    total, resampled = reconfiguration, np.full(RESAMPLES, reconfiguration)
    for pairs, count in zip(times, steps, strict=True):
        ratios, share = pairs[:, 0] / pairs[:, 1], count / dense_steps
        total += share * float(np.median(ratios))
        chosen = random.integers(0, len(ratios), (RESAMPLES, len(ratios)))
        resampled += share * np.median(ratios[chosen], axis=1)
    low, high = np.quantile(resampled, (0.025, 0.975))
    return RunRatio(total, float(low), float(high), reconfiguration)
