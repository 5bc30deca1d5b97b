"""Checks of what a caller of `prune_nm` passes: each failure is one line that names the value."""

from __future__ import annotations

import difflib
import operator

import torch
from torch import Tensor

MODES = ("magnitude", "random")
SCOPES = ("none", "group", "sample_channel", "channel")
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
GROUP_SIZES = range(2, 33)


COMPRESSED_DTYPES = (torch.bfloat16, torch.float16)
COMPRESSED_GROUPS = (4, 8, 16)


def check(grad: Tensor, n: int, m: int, mode: str, rescale: str, seed: int | Tensor) -> None:
    """Checks all arguments of `prune_nm`.

    Raises:
        ValueError: a number, a name or a shape is out of range.
        TypeError: a number is not an integer, or the dtype is not a floating-point one that is supported.
    """
    n, m = _integer("n", n), _integer("m", m)
    if m not in GROUP_SIZES:
        raise ValueError(f"prune_nm: m must be in 2..32, got m={m}")
    if not 1 <= n <= m:
        raise ValueError(f"prune_nm: n must be in 1..m, got n={n} with m={m}")
    if isinstance(seed, Tensor):
        if seed.dtype != torch.int64 or seed.dim() != 0 or seed.device != grad.device:
            raise ValueError(
                f"prune_nm: a tensor seed must be int64 with no dimensions on {grad.device}, got "
                f"{str(seed.dtype).removeprefix('torch.')} {tuple(seed.shape)} on {seed.device}"
            )
    elif not 0 <= _integer("seed", seed) < 2**64:
        raise ValueError(f"prune_nm: seed must be in 0..2^64-1, got seed={seed}")
    _check_name("mode", mode, MODES)
    _check_name("rescale", rescale, SCOPES)
    if grad.dim() not in (2, 4):
        raise ValueError(f"prune_nm: grad must be (N, K, P, Q) or (rows, K), got shape {tuple(grad.shape)}")
    if grad.dtype not in DTYPES:
        names = ", ".join(str(dtype).removeprefix("torch.") for dtype in DTYPES)
        raise TypeError(f"prune_nm: grad must be of {names}, got {str(grad.dtype).removeprefix('torch.')}")


def check_compression(grad: Tensor, n: int, m: int) -> None:
    """Checks what `prune_compress_24` asks for beyond `check`.

    Raises:
        ValueError: n, m or the number of channels does not fit 2:4.
        TypeError: the dtype is none of 16 bits.
    """
    if n > 2 or m not in COMPRESSED_GROUPS:
        raise ValueError(f"prune_compress_24: n must be 1 or 2 and m 4, 8 or 16, got {n}:{m}")
    if grad.shape[1] % 16:
        raise ValueError(f"prune_compress_24: channels must be a multiple of 16, got {grad.shape[1]}")
    if grad.dtype not in COMPRESSED_DTYPES:
        raise TypeError(
            f"prune_compress_24: grad must be of bfloat16 or float16, got {str(grad.dtype).removeprefix('torch.')}"
        )


def split_seed(seed: int | Tensor) -> tuple[int, Tensor | None]:
    """The seed as a number, and as a tensor where it is one."""
    if isinstance(seed, Tensor):
        return 0, seed
    return _integer("seed", seed), None


def signed(seed: int) -> int:
    """A number of 0..2^64-1 as the signed one with the same 64 bits, which is what a torch operator takes."""
    return seed - 2**64 if seed >= 2**63 else seed


def _integer(name: str, value: int) -> int:
    if isinstance(value, (int, torch.SymInt)):  # a number that torch.compile leaves open stays open
        return value  # type: ignore[return-value]
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"prune_nm: {name} must be an integer, got {name}={value!r}") from None


def _check_name(what: str, name: str, known: tuple[str, ...]) -> None:
    if name in known:
        return
    close = difflib.get_close_matches(str(name), known, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    raise ValueError(f"prune_nm: unknown {what} {name!r}, known: {', '.join(known)}{hint}")
