"""Measured speed of finished models."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

WARM_UP, REPETITIONS = 2, 5


@torch.no_grad()
def images_per_second(trainer: Any) -> float:
    """Images a second of the final model: the median of a few forward passes of one evaluation batch.

    One pass an image, in the trial's arithmetic and memory format; reading and moving images is outside.
    """
    images, _ = next(iter(trainer.splits.test.epoch(0, trainer.recipe.eval_batch_size)))
    trainer.model.eval()
    seconds = []
    for _ in range(WARM_UP + REPETITIONS):
        _synchronize(trainer.device)
        began = time.perf_counter()
        trainer.predict(images)
        _synchronize(trainer.device)
        seconds.append(time.perf_counter() - began)
    return len(images) / statistics.median(seconds[WARM_UP:])


def interleaved_seconds(
    calls: Sequence[Callable[[], object]], repetitions: int, device: torch.device
) -> list[list[float]]:
    """The seconds of each of some calls, which run in turn: what a neighbour's load does hits all of them.

    Each runs `WARM_UP` times before, unmeasured. The order turns round with every repetition.
    """
    found: list[list[float]] = [[] for _ in calls]
    for repetition in range(WARM_UP + repetitions):
        order = range(len(calls)) if repetition % 2 == 0 else reversed(range(len(calls)))
        for index in order:
            _synchronize(device)
            began = time.perf_counter()
            calls[index]()
            _synchronize(device)
            if repetition >= WARM_UP:
                found[index].append(time.perf_counter() - began)
    return found


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
