"""The least time of a product on this machine ("roofline"): multiply-adds at the peak, or bytes at the rate of a copy.

Peak and rates are the highest that are measured, with the threads of the caller. The peak is that of `torch.mm` with
two large square matrices. A copy is faster if caches hold the tensors. A product is therefore compared with the
fastest of the copies that move about as many bytes or more.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from suite.engine.cost.clock import seconds_of

COPIES = tuple(2**power for power in (18, 20, 22, 24, 26, 28))
"""Bytes that the measured copies read and write together."""
SIDE = {"cpu": 1024, "cuda": 4096}  # side of the matrices
REPETITIONS = 10


@dataclass(frozen=True)
class Bound:
    """Lower bound of the time of a product.

    Attributes:
        by: What determines it: `multiply-adds` or `bytes`.
    """

    seconds: float
    by: str


@dataclass(frozen=True)
class Machine:
    """The highest rates of a device.

    Attributes:
        macs_per_s: Multiply-adds per second of a large `torch.mm` in the type of the products.
        copies: Bytes of each copy, read and written together, and bytes per second; ascending.
    """

    macs_per_s: float
    copies: tuple[tuple[int, float], ...]

    def rate(self, num_bytes: float) -> float:
        """Return the highest rate of the copies that move about as many bytes or more, in bytes per second."""
        largest = max((size for size, _ in self.copies if size <= num_bytes), default=self.copies[0][0])
        return max(rate for size, rate in self.copies if size >= largest)

    def bound(self, macs: float, num_bytes: float) -> Bound:
        """Return the lower bound of the time of a product.

        Args:
            macs: Multiply-adds that it executes.
            num_bytes: Bytes that it must read and write.
        """
        compute_s, memory_s = macs / self.macs_per_s, num_bytes / self.rate(num_bytes)
        return Bound(compute_s, "multiply-adds") if compute_s >= memory_s else Bound(memory_s, "bytes")

    def better(self, other: Machine) -> Machine:
        """Return the higher rates of two measurements of the same device."""
        rates = {size: max(rate, dict(other.copies)[size]) for size, rate in self.copies}
        return Machine(max(self.macs_per_s, other.macs_per_s), tuple(rates.items()))


def measure_machine(device: torch.device, dtype: torch.dtype) -> Machine:
    """Measure a device: peak and copies, each as the highest rate of several repetitions."""
    side = SIDE[device.type]
    matrices = [torch.randn(side, side, device=device).to(dtype) for _ in range(3)]
    with _types_of_convolutions():
        peak = side**3 / _fastest(lambda: torch.mm(matrices[0], matrices[1], out=matrices[2]), device)
    rates = []
    for size in COPIES:
        source = torch.ones(size // 2, dtype=torch.uint8, device=device)
        target = torch.empty_like(source)
        rates.append((size, size / _fastest(lambda to=target, of=source: to.copy_(of), device)))  # type: ignore[misc]
    return Machine(peak, tuple(rates))


def _fastest(function: Callable[[], object], device: torch.device) -> float:
    function()
    return min(seconds_of(function, device) for _ in range(REPETITIONS))


@contextlib.contextmanager
def _types_of_convolutions() -> Iterator[None]:
    """Let float32 matrix products use TF32 if convolutions may. On CUDA, torch has a separate setting for each."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def moved_bytes(skipped: float, other: float, result: float, executed: float, itemsize: int) -> float:
    """Return the bytes that a product must read and write at least.

    Args:
        skipped: Elements of the operand whose zeros a backend may skip: the weight in the forward, otherwise dO.
        other: Elements of the other operand.
        result: Elements of the result.
        executed: Share of the multiply-adds that the backend executes.
        itemsize: Bytes of an element.
    """
    return (skipped * executed + other + result) * itemsize
