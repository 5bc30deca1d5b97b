"""What the launch of a CUDA kernel consists of: plain data, which touches no device."""

from __future__ import annotations

from dataclasses import dataclass

FORMATS = {"float32": ("pdt::Float32", 4), "bfloat16": ("pdt::BFloat16", 2), "float16": ("pdt::Float16", 2)}

Argument = str | int
"""The name of a tensor, or an integer of the kind that `Launch.kinds` says."""


@dataclass(frozen=True)
class Launch:
    """One kernel's launch.

    Attributes:
        kernel: its name with template arguments, as NVRTC takes it.
        blocks: of the grid, in one dimension.
        threads: of a block, in x and y.
        shared_bytes: dynamic shared memory of a block.
        arguments: each a tensor's name and "pointer", or a number and "int32" or "int64". The key of random masks
            (a pointer and a number) follows where `seeded`.
        seeded: whether the kernel takes that key.
        source: the file of kernels/cuda/sources that has the kernel.
    """

    kernel: str
    blocks: int
    threads: tuple[int, int]
    shared_bytes: int
    arguments: tuple[tuple[Argument, str], ...]
    seeded: bool
    source: str
