"""Description of a kernel launch: plain data, independent of a device."""

from __future__ import annotations

from dataclasses import dataclass

FORMATS = {"float32": ("pdt::Float32", 4), "bfloat16": ("pdt::BFloat16", 2), "float16": ("pdt::Float16", 2)}

Argument = str | int
"""Name of a tensor, or an integer."""


@dataclass(frozen=True)
class Launch:
    """Launch of one kernel.

    Attributes:
        kernel: Name of the kernel with template arguments, as NVRTC takes it.
        blocks: Blocks of the one-dimensional grid.
        threads: Threads of a block in x and y.
        shared_bytes: Dynamic shared memory of a block.
        arguments: Pairs of a tensor's name and "pointer", or of a number and "int32" or "int64". If `seeded` is set,
            the key of random masks (a pointer and a number) follows.
        seeded: Whether the kernel takes the key of random masks.
        source: File in kernels/cuda/sources that contains the kernel.
    """

    kernel: str
    blocks: int
    threads: tuple[int, int]
    shared_bytes: int
    arguments: tuple[tuple[Argument, str], ...]
    seeded: bool
    source: str
