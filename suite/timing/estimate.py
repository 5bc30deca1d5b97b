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
    size, in all of dense training. With one size, this share is the same for all steps. With several, it is that of the
    median dense steps of all stages with images of the size. These were not measured next to each other, so that a
    drift of the machine between two stages changes the shares a little, but not the ratios. The interval is the
    percentile bootstrap over the pairs within each stage.

    Args:
        stages: Measured stages.
        dense_steps: Steps of dense training for each size of training images; their sum is not that of the stages if
            the method changes the batch size or trains for more epochs.
        reconfigure_s: Recorded seconds of all reconfigurations.

    Raises:
        UsageError: No stage has images of a size of dense training.
    """
    for size in dense_steps:
        if all(stage.image_size != size for stage in stages):
            raise UsageError(f"no stage of its trial has training images of {size} pixels, of which dense has some")

    # Resample the pairs of each stage.
    random = np.random.default_rng(0)
    drawn = [random.integers(0, len(stage.times), (RESAMPLES, len(stage.times))) for stage in stages]

    # Find the seconds of dense training, and of one step of it for each size: as measured, and resampled.
    found, resampled = {}, {}
    for size in dense_steps:
        own = [(stage.times[:, 1], places) for stage, places in zip(stages, drawn, strict=True)
               if stage.image_size == size]  # fmt: skip
        found[size] = float(np.median(np.concatenate([times for times, _ in own])))
        resampled[size] = np.median(np.concatenate([times[places] for times, places in own], axis=1), axis=1)
    dense_s = sum(count * found[size] for size, count in dense_steps.items())
    dense_resampled = sum(count * resampled[size] for size, count in dense_steps.items())

    # Add up the stages.
    reconfiguration = reconfigure_s / dense_s
    total, totals = reconfiguration, np.full(RESAMPLES, reconfiguration)
    for stage, places in zip(stages, drawn, strict=True):
        ratios = stage.times[:, 0] / stage.times[:, 1]
        total += stage.steps * found[stage.image_size] / dense_s * float(np.median(ratios))
        totals += stage.steps * resampled[stage.image_size] / dense_resampled * np.median(ratios[places], axis=1)
    low, high = np.quantile(totals, (0.025, 0.975))
    mean = dense_s / sum(dense_steps.values())
    relative = {size: seconds / mean for size, seconds in found.items()}
    return RunRatio(total, float(low), float(high), reconfiguration, relative)
