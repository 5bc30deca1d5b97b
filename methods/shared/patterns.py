"""Patterns of 3x3 kernels: pools of them, which one suits a kernel, which kernels matter least, and their group lasso.

A pattern keeps four of a kernel's nine weights. What a weight is worth, its saliency, is (gradient * weight) squared; a
pattern and a kernel are worth the sum over the weights that they keep.

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

KEPT, POSITIONS = 4, 9
EPSILON = 1e-8
"""Added to a group's sum of squares: the norm keeps a gradient at zero, and every group costs at least 1e-4."""

# Row by row. The first four are the 2x2 blocks through the centre; pools of 4, 8 and 12 take as many from the first on.
GENERIC = (
    "000 011 011", "000 110 110", "011 011 000", "110 110 000",
    "000 001 111", "000 111 010", "010 011 010", "010 110 010",
    "111 010 000", "000 100 111", "111 100 000", "000 101 011",
)  # fmt: skip
SECOND_POSITIONS = 4  # of a dynamic pool


def generic_pool(size: int) -> Tensor:
    """The first patterns of the published code, (size, 9) bool.

    Raises:
        ValueError: if there are not as many.
    """
    if not 1 <= size <= len(GENERIC):
        raise ValueError(f"a generic pool has 1 to {len(GENERIC)} patterns, not {size}")
    return torch.tensor([[mark == "1" for mark in text.replace(" ", "")] for text in GENERIC[:size]])


def dynamic_pool(saliencies: Sequence[Tensor], size: int = 4) -> Tensor:
    """A pool made for a network, (size, 9) bool, in the four stages that the paper's slides name.

    First position: the one with the most saliency in all kernels together. Second positions: the four next. Candidates:
    all patterns that keep the first position and at least one of the second. Scores: candidates enter one at a time;
    each time it is the one that adds most to the saliency that all kernels keep when each takes the best of the pool.
    That greedy choice reaches 63 % of what the best pool of the candidates keeps, or more, since what is kept is a
    submodular function.
    Of equals the first in the order of positions wins.

    Args:
        saliencies: of every layer whose kernels will take a pattern, (K, C, 3, 3), not negative.
        size: patterns of the pool.

    Source: ClickTrain's slides, stage 2; they give neither numbers nor rules for ties, and the code has no such pool.
    """
    kernels = [saliency.reshape(-1, POSITIONS) for saliency in saliencies]
    heat = torch.stack([of_layer.sum(0, dtype=torch.float64) for of_layer in kernels]).sum(0)
    order = heat.argsort(descending=True, stable=True).tolist()
    first, second = order[0], set(order[1 : 1 + SECOND_POSITIONS])
    candidates = torch.zeros(0, POSITIONS, dtype=torch.bool)
    for places in itertools.combinations(range(POSITIONS), KEPT):
        if first in places and second.intersection(places):
            candidates = torch.cat([candidates, torch.zeros(1, POSITIONS, dtype=torch.bool)])
            candidates[-1, list(places)] = True
    candidates = candidates.to(heat.device)
    best = [of_layer.new_zeros(len(of_layer)) for of_layer in kernels]  # what each kernel keeps with the pool so far
    chosen: list[int] = []
    for _ in range(size):
        gains = torch.zeros(len(candidates), dtype=torch.float64, device=heat.device)
        for of_layer, kept in zip(kernels, best, strict=True):
            worth = of_layer @ candidates.to(of_layer.dtype).t()
            gains += (worth - kept[:, None]).clamp_(min=0).sum(0, dtype=torch.float64)
        gains[chosen] = -math.inf  # where nothing is left to gain, the pool has different patterns all the same
        chosen.append(int(gains.argmax()))
        best = [
            torch.maximum(kept, of_layer @ candidates[chosen[-1]].to(of_layer.dtype))
            for of_layer, kept in zip(kernels, best, strict=True)
        ]
    return candidates[chosen].cpu()


def choose_patterns(saliency: Tensor, pool: Tensor, *, one_a_filter: bool = False) -> Tensor:
    """The pattern that keeps the most saliency, (K, C) int64, numbers of the pool; of equals the first.

    Args:
        saliency: (K, C, 3, 3).
        pool: (P, 9) bool.
        one_a_filter: all kernels of a filter take the pattern that suits their sum best.
    """
    worth = saliency.flatten(2) @ pool.to(saliency).t()  # (K, C, P)
    if one_a_filter:
        worth = worth.sum(1, keepdim=True).expand_as(worth)
    numbers = torch.arange(len(pool), device=saliency.device)
    is_best = worth == worth.amax(2, keepdim=True)
    return torch.where(is_best, numbers, len(pool)).amin(2)  # argmax may take any of equals


def kernels_that_go(percent: float, of: int) -> int:
    """How many of so many kernels go: the share `percent`, rounded up."""
    return math.ceil(round(percent * of / 100, 6))  # 55 % of 100 is a little over 55


def least_important_kernels(saliency: Tensor, percent: float, *, equal_in_filters: bool = False) -> Tensor:
    """Which kernels go, (K, C) bool: of K * C or, in each filter, of C the share `percent`, rounded up.

    Args:
        saliency: (K, C, R, S).
        percent: from 0 to 100.
        equal_in_filters: each filter loses as many; otherwise the kernels of a layer compete.
    """
    worth = saliency.sum((2, 3))
    rows = worth if equal_in_filters else worth.reshape(1, -1)
    count = kernels_that_go(percent, rows.shape[1])
    gone = torch.zeros_like(rows, dtype=torch.bool)
    gone.scatter_(1, rows.argsort(dim=1, stable=True)[:, :count], True)
    return gone.reshape(worth.shape)


class Dropped(NamedTuple):
    """What is to go of a weight: `off`, (K, C, R, S) bool, outside the patterns; `kernels`, (K, C) bool, whole ones.

    `off` is `None` where kernels have no pattern.
    """

    off: Tensor | None
    kernels: Tensor

    def kept(self, weight: Tensor) -> Tensor:
        """What stays, as the weight's own type and memory format: 1 and 0."""
        gone = self.kernels[:, :, None, None].expand_as(weight)
        mask = torch.empty_like(weight)
        return mask.copy_(~gone if self.off is None else ~(gone | self.off))


def penalty(dropped: Sequence[Dropped], weights: Sequence[Tensor]) -> Tensor:
    """The modified group lasso, a scalar with a gradient: the norms of what is to go, and of nothing else.

    For each kernel one group of the weights outside its pattern, and one of all its weights if the kernel goes. So the
    weights outside the pattern of such a kernel are penalised twice, as in the published code.

    Args:
        dropped: of each weight.
        weights: (K, C, R, S); at least one.

    Source: ClickTrain, stage 4, and its code.
    """
    total: Tensor = _Penalty.apply(dropped, *weights)  # type: ignore[no-untyped-call]
    return total


class _Penalty(torch.autograd.Function):
    """Keeps two numbers a kernel for backward."""

    @staticmethod
    def forward(ctx: Any, dropped: Sequence[Dropped], *weights: Tensor) -> Tensor:  # type: ignore[override]
        total = weights[0].new_zeros(())
        factors: list[Tensor] = []  # of each weight, one over the norm of either group, (K, C)
        for (off, gone), weight in zip(dropped, weights, strict=True):
            squares = weight.square()
            norms = [(squares.sum((2, 3)) * gone + EPSILON).sqrt()]
            if off is not None:
                norms.append((squares.mul_(off).sum((2, 3)) + EPSILON).sqrt())
            for norm in norms:
                total += norm.sum()
            factors += [gone / norms[0], *(norm.reciprocal() for norm in norms[1:])]
        ctx.dropped = dropped
        ctx.save_for_backward(*weights, *factors)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        saved = list(ctx.saved_tensors)
        weights, factors = saved[: len(ctx.dropped)], iter(saved[len(ctx.dropped) :])
        gradients = []
        for (off, _), weight in zip(ctx.dropped, weights, strict=True):
            factor = next(factors)[:, :, None, None]
            if off is not None:
                factor = factor + off * next(factors)[:, :, None, None]
            gradients.append(weight * factor * grad)
        return None, *gradients


def penalty_arithmetic(weight: Tensor, has_patterns: bool) -> float:
    """Operations of the penalty and its gradient on one layer in one step.

    Counted: for each weight 2 (square, add over the kernel) and for its gradient 2 (times the factor, add to the
    task's), with a pattern 2 and 2 more (mask and add; mask and add); for each group 3 (add epsilon, root, reciprocal).
    """
    groups = (1 + has_patterns) * weight.shape[0] * weight.shape[1]
    return float((8 if has_patterns else 4) * weight.numel() + 3 * groups)
