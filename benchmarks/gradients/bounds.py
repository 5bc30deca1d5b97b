"""The least time of a product on this machine ("roofline"): multiply-adds at the peak, or bytes at the rate of a copy.

The peak is the highest rate of `torch.mm` of two square matrices, with the same threads, that was found before the
first layer or between the runs of a layer: in float32 for operands in float32, and in the faster of float32 and
bfloat16 for operands in bfloat16, since these can be multiplied in float32. The rate of a copy is the highest that was
found between the runs of a layer, for as many bytes as its dense float32 product moves.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from benchmarks.gradients.layers import LayerShape
from benchmarks.stopwatch import copies

SIDE, REPETITIONS = 1024, 20  # of `torch.mm`
CHANNEL_BYTES, VALUE_BYTES = 2, 4  # of a kept value: int16 and float32


@dataclass(frozen=True)
class Bound:
    """Lower bound of the time of a product, in seconds, and whether `multiply-adds` or `bytes` determine it."""

    seconds: float
    by: str


def fastest(function: Callable[[], object], repetitions: int = REPETITIONS) -> float:
    """Return the minimum time of a call in seconds; the first call is not measured."""
    function()
    times = []
    for _ in range(repetitions):
        began = time.perf_counter()
        function()
        times.append(time.perf_counter() - began)
    return min(times)


def square_product(dtype: torch.dtype) -> Callable[[], object]:
    """Return a `torch.mm` of two square matrices, whose SIDE**3 multiply-adds run at the peak."""
    first, second = (torch.randn(SIDE, SIDE).to(dtype) for _ in range(2))
    out = torch.empty_like(first)
    return lambda: torch.mm(first, second, out=out)


def peak(dtype: torch.dtype) -> float:
    """Return the highest rate of `square_product` in multiply-adds per second."""
    return SIDE**3 / fastest(square_product(dtype))


def fastest_copy(num_bytes: int) -> Callable[[], object]:
    """Return the fastest way of copying that reads and writes this number of bytes together."""
    ways = copies(torch.ones(max(1, num_bytes // 2), dtype=torch.uint8))
    return min(ways.values(), key=lambda way: fastest(way, 3))


def moved_bytes(shape: LayerShape, batch: int, kept: int | None, itemsize: int) -> int:
    """Return the number of bytes that either gradient must read and write: dO, W, and A or a result of its size.

    Args:
        shape: The layer.
        batch: Number of images.
        kept: Number of kept values of each position; `None` for a dense output gradient.
        itemsize: Bytes of an element of the other operand, of the result and of a dense output gradient.
    """
    positions = batch * shape.positions
    if kept is None:
        gradient = positions * shape.out_channels * itemsize
    else:
        gradient = positions * kept * (VALUE_BYTES + CHANNEL_BYTES)
    weight = torch.Size(shape.weight_shape).numel() * itemsize
    return gradient + weight + torch.Size(shape.input_shape(batch)).numel() * itemsize


def bound(
    shape: LayerShape,
    batch: int,
    kept: int | None,
    dtype: torch.dtype,
    peaks: Mapping[str, float],
    bytes_per_s: float,
) -> Bound:
    """Return the lower bound of a product's time; arguments as in `moved_bytes`.

    Args:
        peaks: Multiply-adds per second in `float32` and `bfloat16`.
        bytes_per_s: Rate of a copy, bytes read and bytes written.
    """
    macs = batch * shape.positions * (shape.out_channels if kept is None else kept) * shape.macs_of_value
    compute_s = macs / (peaks["float32"] if dtype == torch.float32 else max(peaks.values()))
    memory_s = moved_bytes(shape, batch, kept, dtype.itemsize) / bytes_per_s
    return Bound(compute_s, "multiply-adds") if compute_s >= memory_s else Bound(memory_s, "bytes")
