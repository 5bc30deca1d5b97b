"""Measured cost: seconds and joules of one trial by activity, summed over its attempts."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from suite.cost.energy import EnergyCounter
from suite.cost.timing import synchronize

SPANS = ("train", "eval", "reconfigure", "compile", "check", "io")


class Clock:
    """Adds up seconds, and joules if they are counted, by span. The device is synchronised at both ends of a span.

    A span encloses an epoch, an evaluation or a reconfiguration, but not a single step, so that the cost of the
    synchronisation is negligible. A span inside another interrupts it, so that every second is counted once.

    Args:
        device: Device of the training.

    Attributes:
        seconds: Seconds by name of span (`SPANS`).
        joules: Joules by name of span; `None` if energy is not counted, or was not in an earlier attempt.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._energy: EnergyCounter | None = None
        self._inside = (0.0, 0.0)  # seconds and joules of the spans that ended inside the open one
        self.seconds = dict.fromkeys(SPANS, 0.0)
        self.joules: dict[str, float] | None = None

    def count_energy(self, counter: EnergyCounter) -> None:
        """Count the energy of all spans that begin from now on. Call it before the first span."""
        self._energy, self.joules = counter, dict.fromkeys(SPANS, 0.0)

    @contextmanager
    def span(self, name: str) -> Iterator[None]:
        """Add what passes inside to the span `name`, even if an exception ends it."""
        around, self._inside = self._inside, (0.0, 0.0)
        began = self._now()
        try:
            yield
        finally:
            elapsed = tuple(now - then for now, then in zip(self._now(), began, strict=True))
            self.seconds[name] += elapsed[0] - self._inside[0]
            if self.joules is not None:
                self.joules[name] += elapsed[1] - self._inside[1]
            self._inside = (around[0] + elapsed[0], around[1] + elapsed[1])

    def _now(self) -> tuple[float, float]:
        synchronize(self._device)
        return time.perf_counter(), self._energy.joules() if self._energy else 0.0

    @property
    def training(self) -> float:
        """Seconds of training: steps, including the method's own work, and reconfigurations."""
        return self.seconds["train"] + self.seconds["reconfigure"]

    def columns(self) -> dict[str, float]:
        """Return the measured columns of `epochs.jsonl` and `results.csv`; energy only where it was counted."""
        energy = {} if self.joules is None else {"energy_j": self.joules["train"] + self.joules["reconfigure"]}
        parts = {f"{name}_time_s": self.seconds[name] for name in ("eval", "reconfigure", "compile")}
        return {"train_time_s": self.training, **parts, **energy}

    def state_dict(self) -> dict[str, Any]:
        return {**self.seconds, **({} if self.joules is None else {"joules": dict(self.joules)})}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.seconds.update({name: state[name] for name in self.seconds})
        joules = state.get("joules")
        # A sum over attempts of which one was not measured would be too small.
        self.joules = None if joules is None or self.joules is None else dict(joules)
