"""Patterns of 3x3 kernels: pools of patterns, the choice of a pattern for each kernel, and a group lasso.

A pattern keeps four of the nine weights of a kernel. The saliency of a weight is (gradient * weight) squared; that of a
pattern or a kernel is the sum over the weights that it keeps.

Source: Zhang et al., "ClickTrain: Efficient and Accurate End-to-End Deep Learning Training via Fine-Grained
Architecture-Preserving Pruning", ICS 2021, and its code.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from methods.masks.scores import wide

KEPT, POSITIONS = 4, 9
EPSILON = 1e-8
"""Added to a group's sum of squares, so that the norm has a gradient at zero; every group costs at least 1e-4."""

# Row by row. The first four are the 2x2 blocks through the centre; pools of 4, 8 and 12 take the first ones.
GENERIC = (
    "000 011 011", "000 110 110", "011 011 000", "110 110 000",
    "000 001 111", "000 111 010", "010 011 010", "010 110 010",
    "111 010 000", "000 100 111", "111 100 000", "000 101 011",
)  # fmt: skip
NUM_BLOCKS = 4
"""Number of generic patterns that are 2x2 blocks."""
SECOND_POSITIONS = 4
"""Number of second positions from which a dynamic pool builds its candidates."""


def generic_pool(size: int) -> Tensor:
    """Return the first patterns of the published code, (size, 9) bool.

    Raises:
        ValueError: if the published code has fewer patterns.
    """
    if not 1 <= size <= len(GENERIC):
        raise ValueError(f"a generic pool has 1 to {len(GENERIC)} patterns, not {size}")
    return torch.tensor([[mark == "1" for mark in text.replace(" ", "")] for text in GENERIC[:size]])


def dynamic_pool(saliencies: Sequence[Tensor], size: int = 4) -> Tensor:
    """Return a pool made for one network, (size, 9) bool, in the four stages that the paper's slides name.

    First position: the one with the largest saliency over all kernels. Second positions: the next four. Candidates:
    all patterns that keep the first position and at least one second position. Scores: candidates are added one at a
    time, each time the one that adds most to the saliency that all kernels keep when each takes the best pattern of
    the pool. Since the kept saliency is a submodular function, this greedy choice keeps at least 63 % of what the best
    pool of candidates keeps. Among equal candidates, the first in the order of positions is taken.

    Args:
        saliencies: Saliency of every layer whose kernels take a pattern, (K, C, 3, 3), not negative.
        size: Number of patterns.

    Source: ClickTrain's slides, stage 2. They give neither numbers nor rules for ties, and the published code has no
    such pool.
    """
    kernels = [saliency.reshape(-1, POSITIONS) for saliency in saliencies]

    # Find the first and the second positions.
    heat = torch.stack([layer.sum(0, dtype=torch.float64) for layer in kernels]).sum(0)
    order = heat.argsort(descending=True, stable=True).tolist()
    first, second = order[0], set(order[1 : 1 + SECOND_POSITIONS])

    # List the candidates.
    candidates = torch.zeros(0, POSITIONS, dtype=torch.bool)
    for places in itertools.combinations(range(POSITIONS), KEPT):
        if first in places and second.intersection(places):
            candidates = torch.cat([candidates, torch.zeros(1, POSITIONS, dtype=torch.bool)])
            candidates[-1, list(places)] = True
    candidates = candidates.to(heat.device)

    # Add the candidate with the largest gain until the pool is complete.
    best = [layer.new_zeros(len(layer)) for layer in kernels]  # what each kernel keeps with the present pool
    chosen: list[int] = []
    for _ in range(size):
        gains = torch.zeros(len(candidates), dtype=torch.float64, device=heat.device)
        for layer, kept in zip(kernels, best, strict=True):
            worth = layer @ candidates.to(layer.dtype).t()
            gains += (worth - kept[:, None]).clamp_(min=0).sum(0, dtype=torch.float64)
        gains[chosen] = -math.inf  # the patterns of a pool differ even where nothing is left to gain
        chosen.append(int(gains.argmax()))
        best = [
            torch.maximum(kept, layer @ candidates[chosen[-1]].to(layer.dtype))
            for layer, kept in zip(kernels, best, strict=True)
        ]
    return candidates[chosen].cpu()


def choose_patterns(saliency: Tensor, pool: Tensor, *, one_per_filter: bool = False) -> Tensor:
    """Return the pattern that keeps most saliency, (K, C) int64 indices into the pool; the first among equal ones.

    Args:
        saliency: (K, C, 3, 3).
        pool: (P, 9) bool.
        one_per_filter: Whether all kernels of a filter take the same pattern, the best one for their sum.
    """
    worth = saliency.flatten(2) @ pool.to(saliency).t()  # (K, C, P)
    if one_per_filter:
        worth = worth.sum(1, keepdim=True).expand_as(worth)
    numbers = torch.arange(len(pool), device=saliency.device)
    is_best = worth == worth.amax(2, keepdim=True)
    return torch.where(is_best, numbers, len(pool)).amin(2)  # argmax may return any of several equal values


def outside_patterns(numbers: Tensor, pool: Tensor) -> Tensor:
    """Return which weights are outside the kernels' patterns, (K, C, 3, 3) bool.

    Args:
        numbers: (K, C) int64, indices into the pool.
        pool: (P, 9) bool.
    """
    return ~pool.to(numbers.device)[numbers].view(*numbers.shape, 3, 3)


class PruneMask(NamedTuple):
    """What is pruned from one weight.

    Attributes:
        outside: (K, C, 3, 3) bool, weights outside the kernels' patterns; `None` for kernels without patterns.
        kernels: (K, C) bool, kernels that are pruned whole.
    """

    outside: Tensor | None
    kernels: Tensor

    def kept(self, weight: Tensor) -> Tensor:
        """Return 1 for the weights that remain and 0 for the others, in the weight's type and memory format."""
        pruned = self.kernels[:, :, None, None].expand_as(weight)
        mask = torch.empty_like(weight)
        return mask.copy_(~pruned if self.outside is None else ~(pruned | self.outside))

    @property
    def density(self) -> float:
        """The share of the weights that remains."""
        per_kernel = 1.0 if self.outside is None else KEPT / POSITIONS
        return per_kernel * (1 - int(self.kernels.count_nonzero()) / self.kernels.numel())


def penalty(masks: Sequence[PruneMask], weights: Sequence[Tensor]) -> Tensor:
    """Return the modified group lasso, a scalar with a gradient: the norms of what is pruned, and of nothing else.

    Each kernel has one group of the weights outside its pattern, and one of all its weights if the whole kernel is
    pruned. The weights outside the pattern of such a kernel are therefore penalised twice, as in the published code.

    Args:
        masks: What is pruned from each weight.
        weights: (K, C, R, S) each; at least one.

    Source: ClickTrain, stage 4, and its code.
    """
    total: Tensor = _Penalty.apply(masks, *weights)  # type: ignore[no-untyped-call]
    return total


class _Penalty(torch.autograd.Function):
    """The modified group lasso; keeps two numbers per kernel for the backward pass."""

    @staticmethod
    def forward(ctx: Any, masks: Sequence[PruneMask], *weights: Tensor) -> Tensor:  # type: ignore[override]
        total = wide(weights[0]).new_zeros(())
        factors: list[Tensor] = []  # for each weight, the reciprocal of each group's norm, (K, C)
        for (outside, pruned), weight in zip(masks, weights, strict=True):
            squares = wide(weight).square()
            norms = [(squares.sum((2, 3)) * pruned + EPSILON).sqrt()]
            if outside is not None:
                norms.append((squares.mul_(outside).sum((2, 3)) + EPSILON).sqrt())
            for norm in norms:
                total += norm.sum()
            factors += [pruned / norms[0], *(norm.reciprocal() for norm in norms[1:])]
        ctx.masks = masks
        ctx.save_for_backward(*weights, *factors)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        saved = list(ctx.saved_tensors)
        weights, factors = saved[: len(ctx.masks)], iter(saved[len(ctx.masks) :])
        gradients = []
        for (outside, _), weight in zip(ctx.masks, weights, strict=True):
            factor = next(factors)[:, :, None, None]
            if outside is not None:
                factor = factor + outside * next(factors)[:, :, None, None]
            gradients.append((weight * factor * grad).to(weight.dtype))
        return None, *gradients


def penalty_arithmetic(weight: Tensor, has_patterns: bool) -> float:
    """Return the operations of the penalty and its gradient on one layer in one step.

    Counted for each weight: 2 (square, add over the kernel), and 2 for its gradient (multiply by the factor, add to the
    task's gradient); with a pattern 2 and 2 more (mask and add; mask and add). For each group: 3 (add epsilon, square
    root, reciprocal).
    """
    groups = (1 + has_patterns) * weight.shape[0] * weight.shape[1]
    return float((8 if has_patterns else 4) * weight.numel() + 3 * groups)
