"""Measured speed of a finished model's inference."""

from __future__ import annotations

import statistics
import time
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


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
