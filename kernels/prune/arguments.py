"""Arguments of the pruning functions: checks of a gradient and a seed, and the layout of a gradient."""

from __future__ import annotations

import operator

import torch
from torch import Tensor

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def checked(name: str, grad: Tensor, seed: int | Tensor) -> tuple[int, Tensor | None]:
    """Check a gradient and a seed; return the seed's number and tensor in the form that the operators take.

    That number is signed and has the same 64 bits as the seed. `name` begins the messages.
    """
    if isinstance(seed, Tensor):
        if seed.dtype != torch.int64 or seed.dim() != 0 or seed.device != grad.device:
            raise ValueError(
                f"{name}: a tensor seed must be int64 with no dimensions on {grad.device}, got "
                f"{dtype_name(seed.dtype)} {tuple(seed.shape)} on {seed.device}"
            )
        number, key = 0, seed
    else:  # torch.compile may leave the number symbolic
        number, key = seed if isinstance(seed, (int, torch.SymInt)) else operator.index(seed), None
        if not 0 <= number < 2**64:
            raise ValueError(f"{name}: seed must be in 0..2^64-1, got seed={number}")
    if grad.dim() not in (2, 4):
        raise ValueError(f"{name}: grad must be (N, K, P, Q) or (rows, K), got shape {tuple(grad.shape)}")
    if grad.dtype not in DTYPES:
        raise TypeError(f"{name}: grad must be {', '.join(map(dtype_name, DTYPES))}, got {dtype_name(grad.dtype)}")
    return number - 2**64 if number >= 2**63 else number, key


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def is_channels_last(tensor: Tensor) -> bool:
    """Return whether the memory is dense in (N, P, Q, K) or (rows, K) order."""
    return tensor.movedim(1, -1).is_contiguous()


def to_channels_last(grad: Tensor) -> Tensor:
    """Copy a gradient into channels-last order."""
    return torch.empty_like(grad.movedim(1, -1), memory_format=torch.contiguous_format).movedim(-1, 1).copy_(grad)
