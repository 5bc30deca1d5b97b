"""Structures: which weights of one layer remain when a given share of them does.

Each of `STRUCTURES` takes a score, (K, C, R, S) or (K, C) and not negative, and the density of the layer, the share of
its weights that remains; `n:m` takes m too. It returns a mask of the same shape, true for the weights that remain.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor


def strongest(score: Tensor, count: int) -> Tensor:
    """Return a mask of the `count` largest scores; among equal scores the first remain, and NaN is the largest."""
    if count == 0:
        return torch.zeros_like(score, dtype=torch.bool)
    flat = score.flatten().nan_to_num(nan=math.inf, posinf=math.inf)
    least = flat.topk(count, sorted=False).values.min()  # several times as fast as sorting all
    above, equal = flat > least, flat == least
    return (above | equal & (equal.cumsum(0) <= count - above.sum())).view(score.shape)


def unstructured(score: Tensor, density: float) -> Tensor:
    """Keep the largest scores of the layer, at least one."""
    return strongest(score, max(1, round(density * score.numel())))


def n_of_m(score: Tensor, density: float, m: int) -> Tensor:
    """Keep the n largest scores of every m consecutive input channels, at least one; n is the density times m, rounded.

    A last group that is shorter than m keeps min(n, its size).
    """
    kept = max(1, round(density * m))
    channels = score.shape[1]
    rows = score.movedim(1, -1)
    groups = F.pad(rows, (0, -channels % m), value=-1.0).unflatten(-1, (-1, m))
    order = groups.argsort(dim=-1, descending=True, stable=True)
    mask = torch.zeros_like(groups, dtype=torch.bool).scatter_(-1, order[..., :kept], True)
    return mask.flatten(-2)[..., :channels].movedim(-1, 1)


def channel(score: Tensor, density: float) -> Tensor:
    """Keep whole output channels, those with the largest sums of scores, at least one."""
    per_channel = unstructured(score.flatten(1).sum(1), density)
    return per_channel.view(-1, *[1] * (score.ndim - 1)).expand_as(score).clone()


STRUCTURES: Mapping[str, Callable[..., Tensor]] = {
    "unstructured": unstructured,
    "n:m": n_of_m,
    "channel": channel,
}


def num_pruned_kernels(percent: float, of: int) -> int:
    """Return how many of `of` kernels are pruned: the share `percent`, rounded up."""
    return math.ceil(round(percent * of / 100, 6))  # 55 % of 100 is a little over 55


def least_important_kernels(saliency: Tensor, percent: float, *, equal_in_filters: bool = False) -> Tensor:
    """Return which kernels are pruned, (K, C) bool; among equal kernels the first are.

    Args:
        saliency: (K, C, R, S). A kernel's saliency is the sum over its weights.
        percent: Percentage of kernels to prune, from 0 to 100; their number is rounded up.
        equal_in_filters: Whether every filter loses the same number of kernels. Otherwise all kernels of the layer
            compete.
    """
    worth = saliency.sum((2, 3))
    rows = worth if equal_in_filters else worth.reshape(1, -1)
    count = num_pruned_kernels(percent, rows.shape[1])
    pruned = torch.zeros_like(rows, dtype=torch.bool)
    pruned.scatter_(1, rows.argsort(dim=1, stable=True)[:, :count], True)
    return pruned.reshape(worth.shape)
