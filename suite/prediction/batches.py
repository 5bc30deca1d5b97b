"""The first batches of each epoch of a split, timed."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from suite.cost.timing import synchronize
from suite.task import Batches


class ProbeBatches:
    """The first batches of each epoch of a split, with the seconds that each took.

    Args:
        batches: The split.
        device: Device of the training, which is synchronised before the time is read.
        parts: Number of ranks that share a batch; the first rank's part is used.
        repeat: Whether the first batch is repeated where the split has too few.

    Attributes:
        wanted: Whether the next epoch yields another batch, given the seconds of those so far.
        images: Largest number of images of a batch in the next epoch; `None` for all.
        seconds: Seconds of each step of the latest epoch: fetching the batch, and all that follows until the next.
        fetching: Seconds of fetching each of its batches.
        size: Images of its first batch.
    """

    def __init__(self, batches: Batches, device: torch.device, parts: int = 1, repeat: bool = False) -> None:
        self._batches, self._device, self._parts, self._repeat = batches, device, parts, repeat
        self.num_samples = batches.num_samples
        self.wanted: Callable[[list[float]], bool] = lambda seconds: not seconds
        self.images: int | None = None
        self.seconds: list[float] = []
        self.fetching: list[float] = []
        self.size = 0

    def steps_per_epoch(self, batch_size: int) -> int:
        """Return the number of batches of a whole epoch."""
        return self._batches.steps_per_epoch(batch_size)

    def epoch(self, epoch: int, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the first batches of an epoch, as many as are wanted."""
        self.seconds, self.fetching = [], []
        began = self._now()
        running = iter(self._batches.epoch(epoch, batch_size))
        while self.wanted(self.seconds):
            batch = next(running, None)
            if batch is None:
                if not (self._repeat and self.seconds):
                    return
                running = iter(self._batches.epoch(epoch, batch_size))
                batch = next(running)
            images, labels = batch
            count = math.ceil(len(images) / self._parts)
            count = min(count, self.images or count)
            if not self.seconds:
                self.size = count
            self.fetching.append(self._now() - began)
            yield images[:count], labels[:count]
            now = self._now()
            self.seconds.append(now - began)
            began = now

    def _now(self) -> float:
        synchronize(self._device)
        return time.perf_counter()
