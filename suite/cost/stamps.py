"""Points in time of a device, from which durations follow."""

from __future__ import annotations

import time
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
