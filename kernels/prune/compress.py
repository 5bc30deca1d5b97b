"""Pruning that returns only the kept values of a gradient and their channels, without writing zeros."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.prune import cpu, reference
from kernels.prune.arguments import checked, dtype_name, is_channels_last, to_channels_last
from kernels.prune.dispatch import backend_of, prune_nm, read_key, rule_of
from kernels.prune.rule import Mode, PruneRule, Scope

DTYPES = tuple(cpu.DTYPES)
MOST_CHANNELS = torch.iinfo(torch.int16).max


def compress_nm(grad: Tensor, rule: PruneRule, seed: int | Tensor = 0) -> tuple[Tensor, Tensor]:
    """Prune a gradient to n of every m consecutive channels and return only what is kept.

    On the CPU, a compiled kernel reads the gradient once and writes no zeros. Elsewhere, `prune_nm` prunes and plain
    torch compresses. The results carry no autograd graph.

    Args:
        grad: As in `prune_nm`, with at most 32767 channels; fp32, bf16 or fp16.
        rule: Channels to keep, and how to rescale them.
        seed: As in `prune_nm`.

    Returns:
        values: float32, (N, P, Q, J) or (rows, J), contiguous: the kept elements of `prune_nm(grad, rule, seed)`, bit
            for bit; 16-bit numbers are converted exactly. J is `rule.kept(K)`: n for each group of m channels, and
            min(n, size) for a short last group.
        channels: int16, with the same shape: the channel of each value, 0 to K - 1, ascending within a pixel. If
            `unbiased` keeps fewer channels than that, further channels with the value 0 fill the group.

    Raises:
        ValueError: As in `prune_nm`, or there are more than 32767 channels.
        TypeError: As in `prune_nm`, or the dtype has 64 bits.
    """
    number, key = checked("compress_nm", grad, seed)
    if grad.shape[1] > MOST_CHANNELS:
        raise ValueError(f"compress_nm: at most {MOST_CHANNELS} channels, got {grad.shape[1]}")
    if grad.dtype not in DTYPES:
        raise TypeError(f"compress_nm: grad must be {', '.join(map(dtype_name, DTYPES))}, got {dtype_name(grad.dtype)}")
    return torch.ops.pdt.compress_nm(  # type: ignore[no-any-return]
        grad.detach(), rule.n, rule.m, rule.mode, rule.rescale, number, key
    )


def _compress(
    grad: Tensor, n: int, m: int, mode: Mode, rescale: Scope, seed: int, key: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Implement the operator `pdt::compress_nm`."""
    rule = rule_of(n, m, mode, rescale)
    if grad.numel() == 0:
        return _empty_result(grad, n, m)
    seed = read_key(key) if mode != "magnitude" and key is not None else seed % 2**64
    if backend_of(grad) != "cpu":
        return reference.kept_values(prune_nm(grad, rule, seed), reference.keep_mask(grad, rule, seed), rule)
    values, channels = _empty_result(grad, n, m)
    cpu.compress(grad if is_channels_last(grad) else to_channels_last(grad), values, channels, rule, seed)
    return values, channels


def _empty_result(grad: Tensor, n: int, m: int, *_: object, **__: object) -> tuple[Tensor, Tensor]:
    *outer, all_channels = grad.movedim(1, -1).shape
    shape = [*outer, rule_of(n, m, "magnitude", "none").kept(all_channels)]
    return grad.new_empty(shape, dtype=torch.float32), grad.new_empty(shape, dtype=torch.int16)


_OPERATORS = torch.library.Library("pdt", "FRAGMENT")
_OPERATORS.define(
    "compress_nm(Tensor grad, int n, int m, str mode, str rescale, SymInt seed, Tensor? key=None) -> (Tensor, Tensor)"
)
_OPERATORS.impl("compress_nm", _compress, "CompositeExplicitAutograd")
torch.library.register_fake("pdt::compress_nm", _empty_result, lib=_OPERATORS)
