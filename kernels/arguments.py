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


def check(grad: Tensor, n: int, m: int, mode: str, rescale: str, seed: int) -> None:
    """Checks all arguments of `prune_nm`.

    Raises:
        ValueError: a number, a name or a shape is out of range.
        TypeError: a number is not an integer, or the dtype is not a floating-point one that is supported.
    """
    n, m, seed = (_integer(name, value) for name, value in (("n", n), ("m", m), ("seed", seed)))
    if m not in GROUP_SIZES:
        raise ValueError(f"prune_nm: m must be in 2..32, got m={m}")
    if not 1 <= n <= m:
        raise ValueError(f"prune_nm: n must be in 1..m, got n={n} with m={m}")
    if not 0 <= seed < 2**64:
        raise ValueError(f"prune_nm: seed must be in 0..2^64-1, got seed={seed}")
    _check_name("mode", mode, MODES)
    _check_name("rescale", rescale, SCOPES)
    if grad.dim() not in (2, 4):
        raise ValueError(f"prune_nm: grad must be (N, K, P, Q) or (rows, K), got shape {tuple(grad.shape)}")
    if grad.dtype not in DTYPES:
        names = ", ".join(str(dtype).removeprefix("torch.") for dtype in DTYPES)
        raise TypeError(f"prune_nm: grad must be of {names}, got {str(grad.dtype).removeprefix('torch.')}")


def _integer(name: str, value: int) -> int:
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
