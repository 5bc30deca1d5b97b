"""Group lasso over channels: the penalty whose groups are the output and the input channels of every layer.

A weight (K, C, R, S) has K output groups, each of C * R * S weights, and C input groups, each of K * R * S. Every
weight lies in one of each.

Source: PruneTrain (Lym et al., SC 2019), Sec. 4.1, Eq. 2; epsilon is that of its published code.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from suite.index_spaces import IndexSpaces

EPSILON = 1e-8
"""Added to a group's sum of squares: the norm keeps a gradient at zero, and every group costs at least 1e-4."""


class LassoLayer(NamedTuple):
    """A weight, (K, C, R, S) or (K, C), and which of its two groupings are penalised."""

    weight: Tensor
    outputs: bool
    inputs: bool


def lasso_layers(layers: Mapping[str, nn.Module], spaces: IndexSpaces) -> dict[str, LassoLayer]:
    """The layers that the penalty sums over, by name.

    Left out are input groups of what reads the model's input and output groups of what makes its output, since these
    never go; grouped convolutions, depthwise ones among them; and layers that the model's forward never runs. Biases
    and normalisation are not penalised.
    """
    found = {}
    for name, layer in layers.items():
        if name in spaces.grouped or name not in spaces.positions:
            continue
        weight = layer.weight
        assert isinstance(weight, Tensor)
        outputs = not spaces.model_outputs.intersection(spaces.outputs_of(name))
        inputs = spaces.model_input not in spaces.inputs_of(name)
        if outputs or inputs:
            found[name] = LassoLayer(weight, outputs, inputs)
    return found


def penalty(layers: Iterable[LassoLayer], by_size: bool = False) -> Tensor:
    """P: the sum of all groups' norms, a scalar with a gradient.

    Args:
        layers: at least one.
        by_size: multiply each norm by the square root of the number of weights in its group.

    Source: PruneTrain, Eq. 2 and Sec. 4.1; without factors ("global"), large-feature early layers are pruned first.
    """
    layers = list(layers)
    factors = [
        tuple(used * (_size_factor(layer.weight, axis) if by_size else 1.0) for axis, used in enumerate(layer[1:]))
        for layer in layers
    ]
    total: Tensor = _Penalty.apply(factors, *(layer.weight for layer in layers))  # type: ignore[no-untyped-call]
    return total


class _Penalty(torch.autograd.Function):
    """Sum of all groups' norms; reads each weight once in each direction, and keeps a number a group."""

    @staticmethod
    def forward(ctx: Any, factors: Sequence[tuple[float, float]], *weights: Tensor) -> Tensor:  # type: ignore[override]
        total = weights[0].new_zeros(())
        scales = []  # of each weight's two groupings, the factor over each group's norm: (K, 1) and (1, C)
        for weight, of_groupings in zip(weights, factors, strict=True):
            # Summed over the kernel once: what remains for both groupings is a small matrix.
            squares = weight.square() if weight.ndim == 2 else weight.square().sum((2, 3))
            for axis, factor in zip((1, 0), of_groupings, strict=True):
                norms = (squares.sum(axis, keepdim=True) + EPSILON).sqrt()
                total = total + factor * norms.sum()
                scales.append(factor / norms)
        ctx.save_for_backward(*weights, *scales)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        count = len(ctx.saved_tensors) // 3
        weights, scales = ctx.saved_tensors[:count], ctx.saved_tensors[count:]
        gradients = []
        for weight, of_outputs, of_inputs in zip(weights, scales[0::2], scales[1::2], strict=True):
            scale = grad * (of_outputs + of_inputs)
            gradients.append(weight * scale.view(*scale.shape, *[1] * (weight.ndim - 2)))
        return (None, *gradients)


@torch.no_grad()
def soft_threshold(layer: LassoLayer, step: float, by_size: bool = False) -> None:
    """Shrink every group's norm by `step`, to exactly zero where it is less; in place, output groups first.

    Each grouping's shrinkage is the proximal operator of its own half of the penalty. The groups of both overlap, so
    that one after the other approximates the operator of the sum.

    Source: Yuan and Lin, 2006, Sec. 2.3 (group soft threshold); not in PruneTrain, which takes the subgradient.
    """
    for axis, used in ((0, layer.outputs), (1, layer.inputs)):
        if used:
            others = tuple(other for other in range(layer.weight.ndim) if other != axis)
            norm = layer.weight.square().sum(others, keepdim=True).sqrt()
            shrink = step * (_size_factor(layer.weight, axis) if by_size else 1.0)
            # Multiplied by a ratio, not divided by a norm of zero.
            layer.weight.mul_(torch.where(norm > shrink, 1 - shrink / norm, 0.0))


def channel_peaks(weight: Tensor, axis: int, entries: Tensor) -> Tensor:
    """The largest |w| of each channel, (channels,); NaN where a weight is NaN.

    Args:
        weight: (K, C, R, S) or (K, C).
        axis: 0 for output channels, 1 for input channels.
        entries: (channels, entries of a channel) along the axis.
    """
    peaks = weight.detach().abs().movedim(axis, 0).flatten(1).amax(1)
    return peaks[entries.to(peaks.device)].amax(1)


def arithmetic(layer: LassoLayer) -> float:
    """Operations of the penalty and its gradient on one layer in one step.

    Counted: for each weight 2 (square, add over the kernel) and for its gradient 2 (times the factor, add to the
    task's); for each kernel 1 addition a grouping, forward and backward; for each group 3 (add epsilon, root,
    reciprocal).
    """
    out_channels, in_channels = layer.weight.shape[:2]
    groupings = layer.outputs + layer.inputs
    return float(4 * layer.weight.numel() + 2 * groupings * out_channels * in_channels + 3 * _groups(layer))


def soft_threshold_arithmetic(layer: LassoLayer) -> float:
    """Operations of `soft_threshold` on one layer.

    Counted, a grouping at a time: for each weight 3 (square, add, multiply); for each group 4 (root, compare, divide,
    subtract).
    """
    return float(3 * (layer.outputs + layer.inputs) * layer.weight.numel() + 4 * _groups(layer))


def _groups(layer: LassoLayer) -> int:
    out_channels, in_channels = layer.weight.shape[:2]
    return layer.outputs * out_channels + layer.inputs * in_channels


def _size_factor(weight: Tensor, axis: int) -> float:
    """The square root of the number of weights in a group of this axis."""
    return math.sqrt(weight.numel() / max(weight.shape[axis], 1))
