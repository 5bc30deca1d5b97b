"""Unbiased pruning in plain torch: the definition that tests compare the compiled kernels with.

A channel with magnitude a is kept with probability p = min(1, c a). The constant c makes the probabilities of a group
add up to the number of kept channels. Division of the value by p makes the gradient the expectation. These
probabilities have the smallest variance of all unbiased n:m prunings.

Sources: Chmiel et al., Minimum Variance Unbiased N:M Sparsity for the Neural Gradients, ICLR 2023 (arXiv 2203.10991),
who give the probabilities for 1:2 and approximate them for 2:4; systematic sampling: Madow, On the Theory of Systematic
Sampling II, Annals of Mathematical Statistics 20 (1949).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def sample(magnitude: Tensor, n: int, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """Sample min(n, number of nonzero values) channels of each group, and divide their magnitudes by the probability.

    The order of the operations is part of the definition. Compiled kernels follow it, so that results are equal bit for
    bit. No product is added to another number, because a fused multiply-add would round differently.

    A channel whose magnitude is at least 1 / (channels still to keep) of the sum is kept for certain, without change.
    It leaves the sum and the count. This repeats until no such channel remains. The rest is sampled systematically.
    Each of the points (uniform + j) * step, with step = sum / (channels still to keep), selects the channel whose
    interval of the cumulative sum contains it. The probability of a channel is magnitude / step, so its value becomes
    `step`.

    Sums are rounded in the dtype, so expectations are exact up to m * 2^-23 of the group's sum of magnitudes.

    Args:
        magnitude: (m, groups), at least 0, fp32 or fp64; 0 for the missing channels of a short group.
        n: Largest number of channels kept in a group.
        uniform: (groups,) in the dtype of `magnitude`, between 0 and 1, both excluded.

    Returns:
        kept: (m, groups), bool: the sampled channels. Meaningless in groups whose `total` is not finite.
        value: (m, groups): magnitudes after the division by the probability, 0 for channels that are not kept.
    """
    rest = magnitude.clone()
    needed = torch.full_like(uniform, n)
    while True:
        total = group_sums(rest)
        bar = torch.where(total > 0, total, math.inf)
        certain = rest * needed >= bar
        if not certain.any():
            break
        rest = rest.masked_fill(certain, 0.0)
        needed = needed - certain.sum(0)

    # Rounding may leave only as many channels as must still be kept.
    rest = torch.where((rest > 0).sum(0) <= needed, torch.zeros_like(rest), rest)
    left = (rest > 0).sum(0)
    step = torch.where(left > 0, total, torch.zeros_like(total)) / needed.clamp(min=1)
    position = uniform.clone()
    reached = torch.zeros_like(total)
    value = torch.where(rest > 0, torch.zeros_like(rest), magnitude)
    for channel, size in enumerate(rest):
        reached = reached + size
        # Rounding may move a point beyond the last interval; the last channels are then selected.
        selected = ((reached > position * step) & (needed > 0)) | (left <= needed)
        keep = selected & (size > 0)
        left = left - (size > 0).to(left.dtype)
        needed = needed - keep.to(needed.dtype)
        position = position + keep.to(position.dtype)
        value[channel] = torch.where(keep, step, value[channel])
    return value > 0, value


def group_sums(magnitude: Tensor) -> Tensor:
    """Add the channels of each group in order: (m, groups) to (groups,)."""
    total = torch.zeros_like(magnitude[0])
    for size in magnitude:
        total = total + size
    return total
