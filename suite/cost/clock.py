"""Measured cost: seconds of one trial, by what they were spent on, summed over its attempts."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch

SPANS = ("train", "eval", "reconfigure", "compile", "check", "io")


class Clock:
    """Accumulates seconds by span, with the device synchronised at both ends of each.

    A span encloses an epoch, an evaluation or a reconfiguration, never a single step, so that the synchronisation costs
    nothing that would be seen. A span inside another interrupts it: every second is counted once.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._inside = 0.0  # seconds of spans that ended inside the one that is open
        self.seconds = dict.fromkeys(SPANS, 0.0)

    @contextmanager
    def span(self, name: str) -> Iterator[None]:
        """Add what runs inside to the span `name`; what an exception cut short counts, as its steps do."""
        self._synchronize()
        around, self._inside = self._inside, 0.0
        began = time.perf_counter()
        try:
            yield
        finally:
            self._synchronize()
            elapsed = time.perf_counter() - began
            self.seconds[name] += elapsed - self._inside
            self._inside = around + elapsed

    @property
    def training(self) -> float:
        """Seconds of training: steps with the method's own work in them, and reconfigurations; nothing else."""
        return self.seconds["train"] + self.seconds["reconfigure"]

    def state_dict(self) -> dict[str, float]:
        return dict(self.seconds)

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        self.seconds.update(state)

    def _synchronize(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
