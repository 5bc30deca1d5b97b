"""Subnormal numbers: in the processes of a command they count as zero.

A weight that decays towards zero becomes subnormal before it is zero, and Intel's cores then take 20 times as long for
a product. GPUs compute with subnormal numbers at full speed.
"""

from __future__ import annotations

import torch
from torch import Tensor

from suite.recipe import FLUSH, IEEE

_SUBNORMAL = 71362  # bits of 1e-40; converted from a number, it would be flushed before any thread reads it
_OF_A_THREAD = 2**16  # elements of which torch gives each thread some: twice its least number


def use_arithmetic(arithmetic: str) -> None:
    """Let this thread, and threads that it starts later, compute with `FLUSH` or `IEEE`.

    Call it at the entry of a process, before torch starts threads. Functions of the library do not call it, since it
    would change the arithmetic of the user's own program.
    """
    torch.set_flush_denormal(arithmetic == FLUSH)


def arithmetic_in_use() -> str:
    """Return the arithmetic that torch's threads compute with: `FLUSH` only if all of them flush."""
    bits = torch.full((torch.get_num_threads() * _OF_A_THREAD,), _SUBNORMAL, dtype=torch.int32)
    return IEEE if (bits.view(torch.float32) * 1).view(torch.int32).any() else FLUSH


def has_subnormal(values: Tensor) -> bool:
    """Return whether a tensor on the CPU has a subnormal value, in either arithmetic; false for half precision."""
    kind = {torch.bfloat16: torch.int16, torch.float32: torch.int32, torch.float64: torch.int64}.get(values.dtype)
    if kind is None:
        return False
    magnitudes = values.detach().view(kind) & torch.iinfo(kind).max
    smallest = torch.tensor(torch.finfo(values.dtype).smallest_normal, dtype=values.dtype).view(kind)
    return bool(((magnitudes > 0) & (magnitudes < smallest)).any())
