"""The training time of a method relative to dense, from pairs of steps in each of its stages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from suite.errors import UsageError

RESAMPLES = 4999


@dataclass(frozen=True)
class StagePairs:
    """What was measured of one stage.

    Attributes:
        times: Seconds of steps of the method and of dense, (pairs, 2).
        steps: Steps of the trial that the stage stands for.
        image_size: Side of the training images; `None` for that of an evaluation.
    """

    times: NDArray[np.float64]
    steps: int
    image_size: int | None = None


@dataclass(frozen=True)
class RunRatio:
    """Training time of a method over that of dense.

    Attributes:
        ratio, low, high: The ratio and its 95 % interval.
        reconfiguration: Part of it that is the time of reconfigurations.
        dense_step: Time of a dense step for each size of training images, relative to the mean of all dense steps.
    """

    ratio: float
    low: float
    high: float
    reconfiguration: float
    dense_step: Mapping[int | None, float]


def run_ratio(stages: Sequence[StagePairs], dense_steps: Mapping[int | None, int], reconfigure_s: float) -> RunRatio:
    """Add up the time of all steps of a trial and of its reconfigurations, relative to dense training.

    A stage counts its steps times the median ratio of its pairs times the share of a dense step, with images of its
    size, in all of dense training. With one size, this share is the same for all steps. With several, it is computed
    from the median dense step over all stages with images of each size. These were not measured next to each other, so
    that a drift of the machine between two stages changes the shares a little, but not the ratios. The interval is the
    percentile bootstrap over the pairs within each stage.

    Args:
        stages: Measured stages.
        dense_steps: Steps of dense training for each size of training images; their sum is not that of the stages if
            the method changes the batch size or trains for more epochs.
        reconfigure_s: Recorded seconds of all reconfigurations.

    Raises:
        UsageError: No stage has images of a size of dense training, or dense has none of the size of a stage.
    """
    measured = {stage.image_size for stage in stages}
    if missing := set(dense_steps) - measured:
        raise UsageError(
            f"no stage of its trial has training images of {missing.pop()} pixels, of which dense has some"
        )
    if missing := measured - set(dense_steps):
        raise UsageError(f"a stage has training images of {missing.pop()} pixels, of which dense has none")

    # Draw the ratio of each stage, and its dense steps: as measured in the first row, and resampled in the others.
    random = np.random.default_rng(0)
    ratios, dense = [], []
    for stage in stages:
        count = len(stage.times)
        places = np.concatenate([np.arange(count)[None], random.integers(0, count, (RESAMPLES, count))])
        ratios.append(np.median((stage.times[:, 0] / stage.times[:, 1])[places], axis=1))
        dense.append(stage.times[:, 1][places] if len(dense_steps) > 1 else stage.times[None, :, 1])

    # Find the seconds of one dense step for each size, and of dense training.
    seconds = {}
    for size in dense_steps:
        own = [steps for stage, steps in zip(stages, dense, strict=True) if stage.image_size == size]
        seconds[size] = np.median(np.concatenate(own, axis=1), axis=1)
    dense_s = np.sum([count * seconds[size] for size, count in dense_steps.items()], axis=0)

    # Add up the stages.
    reconfiguration = reconfigure_s / float(dense_s[0])
    totals = np.full(RESAMPLES + 1, reconfiguration)
    for stage, ratio in zip(stages, ratios, strict=True):
        totals += stage.steps * seconds[stage.image_size] / dense_s * ratio
    low, high = np.quantile(totals[1:], (0.025, 0.975))
    mean = float(dense_s[0]) / sum(dense_steps.values())
    relative = {size: float(times[0]) / mean for size, times in seconds.items()}
    return RunRatio(float(totals[0]), float(low), float(high), reconfiguration, relative)
