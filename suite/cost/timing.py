"""Points in time of a device, and measured seconds of calls."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any, Protocol

import torch


class Stamps(Protocol):
    """Points in time of one device."""

    def now(self) -> Any:
        """Return the present point in time."""

    def seconds(self, first: Any, second: Any) -> float:
        """Return the seconds between two points."""


class CpuStamps:
    """Wall time."""

    def now(self) -> float:
        return time.perf_counter()

    def seconds(self, first: float, second: float) -> float:
        return second - first


class CudaStamps:
    """Events in the present stream of a GPU: the time in which it works between two of them, or waits for work.

    Args:
        device: The GPU, which need not be the current one.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def now(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event

    def seconds(self, first: torch.cuda.Event, second: torch.cuda.Event) -> float:
        second.synchronize()
        return first.elapsed_time(second) / 1e3


def stamps_of(device: torch.device) -> Stamps:
    """Return the points in time of a device."""
    return CudaStamps(device) if device.type == "cuda" else CpuStamps()


FEWEST_PASSES, MOST_PASSES = 3, 5  # of the inference of the final model


def synchronize(device: torch.device) -> None:
    """Wait until a CUDA device has finished its work; return at once for the CPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds_of(call: Callable[[], object], device: torch.device) -> float:
    """Return the seconds that one call takes on a device."""
    synchronize(device)
    began = time.perf_counter()
    call()
    synchronize(device)
    return time.perf_counter() - began


@torch.no_grad()
def images_per_second(trainer: Any) -> float:
    """Return the inference speed of the final model: the median over forward passes of one evaluation batch.

    There are three to five timed passes: five, unless three take more than a second together. One pass is enough to
    warm up, since the model has just been evaluated on batches of this shape. The forward uses the trial's autocast
    type and memory format; reading and moving images is not included.
    """
    splits = trainer.splits
    evaluated = splits.validation if splits.test is None else splits.test
    images, _ = next(iter(evaluated.epoch(0, trainer.recipe.eval_batch_size)))
    trainer.model.eval()

    def predict() -> object:
        return trainer.evaluation.predict(images)

    seconds_of(predict, trainer.device)
    seconds: list[float] = []
    while len(seconds) < FEWEST_PASSES or (len(seconds) < MOST_PASSES and sum(seconds) < 1.0):
        seconds.append(seconds_of(predict, trainer.device))
    return len(images) / statistics.median(seconds)
