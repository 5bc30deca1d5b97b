"""Times of single calls on a device, copies to compare them with, and the clock that pytest-benchmark reads.

On CUDA a call is timed by device events, with other memory read into the L2 cache before it: what is written there
instead would have to be written back to memory in the time of the call. The device is kept waiting until the
call is enqueued, so that what Python takes to launch it is not in the time; a call that itself waits for the device
cannot be enqueued ahead, and its waiting is. On the CPU a call is timed by `perf_counter`.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

ASSUMED_CACHE_BYTES = 64 * 2**20  # where the machine does not say how large its last-level cache is
CYCLES_PER_S = 2e9  # no less than a GPU's clock: a wait of so many cycles lasts at least a second
LONGEST_WAIT_S = 0.02
SHORTEST_WAIT_S = 100e-6

_measured = 0.0


def measured_time() -> float:
    """The clock that pytest-benchmark reads: it advances only when `count` adds what was measured.

    So a round may measure several things in alternation, and count the one that it is about.
    """
    return _measured


def count(seconds: float) -> None:
    """Move `measured_time` on."""
    global _measured
    _measured += seconds


class Watch(Protocol):
    """Times calls on one device."""

    def time(self, function: Callable[[], object]) -> float:
        """Call once; the seconds that the device took."""
        ...


class CpuWatch:
    """Wall time of a call on the CPU."""

    def time(self, function: Callable[[], object]) -> float:
        began = time.perf_counter()
        function()
        return time.perf_counter() - began


class CudaWatch:
    """Device time of a call, from a cold L2 cache."""

    def __init__(self, device: torch.device) -> None:
        properties = torch.cuda.get_device_properties(device)
        self._device = device
        self._other = torch.zeros(max(properties.L2_cache_size, 2**20) // 2, device=device)  # twice the cache
        self._sum = torch.zeros((), device=device)
        self._enqueuing_s = SHORTEST_WAIT_S

    def time(self, function: Callable[[], object]) -> float:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        with torch.cuda.device(self._device):
            torch.sum(self._other, dim=0, out=self._sum)
            # The device waits for twice as long as launches took of late: calls of several kinds take turns.
            wait_s = min(max(2 * self._enqueuing_s, SHORTEST_WAIT_S), LONGEST_WAIT_S)
            torch.cuda._sleep(int(wait_s * CYCLES_PER_S))
            began = time.perf_counter()
            begin.record()
            function()
            end.record()
            self._enqueuing_s = max(0.9 * self._enqueuing_s, time.perf_counter() - began)
            end.synchronize()
        return begin.elapsed_time(end) / 1e3


def watch_of(device: torch.device) -> Watch:
    """The watch for a device."""
    return CudaWatch(device) if device.type == "cuda" else CpuWatch()


def copies(source: Tensor) -> dict[str, Callable[[], object]]:
    """Ways to copy a dense tensor of any layout into another of the same layout, by name.

    On CUDA there is torch's own. On the CPU which of them is fastest depends on the machine: a C library's `memcpy` may
    store past the caches, which spares reading what is overwritten, and uses one core; torch uses all.
    """
    target = torch.empty_like(source)
    ways: dict[str, Callable[[], object]] = {"Tensor.copy_": lambda: target.copy_(source)}
    if source.device.type != "cpu":
        return ways
    size = source.numel() * source.element_size()
    from_bytes, to_bytes = (_bytes_of(tensor) for tensor in (source, target))
    ways["numpy.copyto"] = lambda: np.copyto(to_bytes, from_bytes)
    ways["memmove"] = lambda: ctypes.memmove(target.data_ptr(), source.data_ptr(), size)  # keeps both tensors
    threads = torch.get_num_threads()
    if threads > 1:
        pool = ThreadPoolExecutor(threads)
        part = -(-size // threads // 4096) * 4096
        starts = range(0, size, part)

        def move(start: int) -> None:  # ctypes lets other threads run meanwhile
            ctypes.memmove(target.data_ptr() + start, source.data_ptr() + start, min(part, size - start))

        ways[f"memmove in {threads} threads"] = lambda: list(pool.map(move, starts))
    return ways


def _bytes_of(tensor: Tensor) -> np.ndarray:
    """The memory of a dense tensor as bytes, in place."""
    order = sorted(range(tensor.dim()), key=tensor.stride, reverse=True)
    return tensor.permute(order).reshape(-1).view(torch.uint8).numpy()


def cache_bytes(device: torch.device) -> tuple[int, str]:
    """Size of the last cache before memory (the GPU's L2, the CPU's largest level), and where that is known from."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).L2_cache_size), "L2, device properties"
    levels = sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"))
    sizes = [_kibibytes(path.read_text(encoding="ascii").strip()) for path in levels]
    if sizes:
        return max(sizes), "last level, /sys/devices/system/cpu"
    known = os.sysconf("SC_LEVEL3_CACHE_SIZE") if "SC_LEVEL3_CACHE_SIZE" in os.sysconf_names else 0
    return (known, "last level, sysconf") if known > 0 else (ASSUMED_CACHE_BYTES, "assumed")


def _kibibytes(text: str) -> int:
    """Bytes of `32768K` or `32M`, as /sys writes sizes."""
    units = {"K": 2**10, "M": 2**20, "G": 2**30}
    return int(text[:-1]) * units[text[-1]] if text[-1:] in units else int(text)
