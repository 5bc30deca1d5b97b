"""Measured cost: seconds of one trial by activity, summed over its attempts."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch

from suite.cost.timing import synchronize

SPANS = ("train", "eval", "reconfigure", "compile", "check", "io")


class Clock:
    """Adds up seconds by span. The device is synchronised at both ends of a span.

    A span encloses an epoch, an evaluation or a reconfiguration, but not a single step, so that the cost of the
    synchronisation is negligible. A span inside another interrupts it, so that every second is counted once.

    Args:
        device: Device of the training.

    Attributes:
        seconds: Seconds by name of span (`SPANS`).
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._inside = 0.0  # seconds of the spans that ended inside the open one
        self.seconds = dict.fromkeys(SPANS, 0.0)

    @contextmanager
    def span(self, name: str) -> Iterator[None]:
        """Add the time that passes inside to the span `name`, even if an exception ends it."""
        synchronize(self._device)
        around, self._inside = self._inside, 0.0
        began = time.perf_counter()
        try:
            yield
        finally:
            synchronize(self._device)
            elapsed = time.perf_counter() - began
            self.seconds[name] += elapsed - self._inside
            self._inside = around + elapsed

    @property
    def training(self) -> float:
        """Seconds of training: steps, including the method's own work, and reconfigurations."""
        return self.seconds["train"] + self.seconds["reconfigure"]

    def state_dict(self) -> dict[str, float]:
        return dict(self.seconds)

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        self.seconds.update(state)
