"""Group lasso over channels: a penalty whose groups are the output and input channels of every layer, and heads.

A weight (K, C, R, S) has K output groups of C * R * S weights and C input groups of K * R * S weights. Every weight
belongs to one group of each kind. The weights of an attention head are one group: its rows of query, key and value, and
its columns of the projection, which have no groups of their own. Its norm is the root of the sum of their squares.

Source: PruneTrain (Lym et al., SC 2019), Sec. 4.1, Eq. 2; epsilon is that of its published code.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from methods.masks.scores import wide
from methods.prunetrain.step_sizes import StepSize
from suite.index_spaces import IndexSpaces, LayerWeight

EPSILON = 1e-8
"""Added to a group's sum of squares, so that the norm has a gradient at zero; every group costs at least 1e-4."""


class LassoLayer(NamedTuple):
    """A weight, (K, C, R, S) or (K, C), and whether its output groups and its input groups are penalised."""

    weight: Tensor
    outputs: bool
    inputs: bool


class LassoHeads(NamedTuple):
    """The heads of one attention.

    Attributes:
        name: Name of their index space, which is that of the layer of the queries.
        parts: The weights of the layers that have the heads along an axis, with the entries of each head.
    """

    name: str
    parts: tuple[LayerWeight, ...]


def lasso_heads(
    layers: Mapping[str, nn.Module], spaces: IndexSpaces, left_out: Collection[str] = ()
) -> list[LassoHeads]:
    """Return the heads over which the penalty sums: trained ones that can be removed, with these layers' weights.

    Heads with a weight that is not trained never die as a whole, and are not penalised.

    Args:
        layers: The layers by name.
        spaces: The model's index spaces.
        left_out: Names of further spaces that are not penalised.
    """
    own = [
        space
        for space in spaces.values()
        if not space.frozen and space.name not in left_out and spaces.consists_of_heads(space)
    ]
    found = [LassoHeads(space.name, tuple(spaces.weights(space, layers))) for space in own]
    return [heads for heads in found if heads.parts and all(part.weight.requires_grad for part in heads.parts)]


def lasso_layers(
    layers: Mapping[str, nn.Module], spaces: IndexSpaces, left_out: Collection[str] = ()
) -> dict[str, LassoLayer]:
    """Return the layers over which the penalty sums, by name.

    Not penalised are groups that are never removed, since all their index spaces are frozen: input groups of layers
    that read the model's input, output groups of layers that produce its output, and groups that meet an operation
    which is not followed. Grouped and depthwise convolutions, layers that the forward pass does not
    run, weights that are not trained, biases and normalisation are not penalised either.

    Args:
        layers: The layers by name.
        spaces: The model's index spaces.
        left_out: Names of spaces that count as frozen. An axis with a frozen and another space is penalised as a whole.
    """
    unpenalised = {
        name for name, space in spaces.items() if space.frozen or name in left_out or spaces.consists_of_heads(space)
    }
    found = {}
    for name, layer in layers.items():
        if name in spaces.grouped or name not in spaces.positions:
            continue
        weight = layer.weight
        assert isinstance(weight, Tensor)
        outputs, inputs = (
            any(space not in unpenalised for space in of_axis)
            for of_axis in (spaces.outputs_of(name), spaces.inputs_of(name))
        )
        if weight.requires_grad and (outputs or inputs):
            found[name] = LassoLayer(weight, outputs, inputs)
    return found


def total_penalty(
    layers: Mapping[str, nn.Module], spaces: IndexSpaces, by_size: bool = False, left_out: Collection[str] = ()
) -> Tensor:
    """Return the sum of the norms of all groups of a model, heads included, a scalar with a gradient.

    Args:
        layers: The model's layers by name. If no group is trained, the sum is 0 and has no gradient.
        spaces: The model's index spaces.
        by_size: Whether each norm is multiplied by the square root of the number of weights in its group.
        left_out: Names of spaces whose groups are not penalised.
    """
    channels = list(lasso_layers(layers, spaces, left_out).values())
    terms = [penalty(channels, by_size)] if channels else []
    for heads in lasso_heads(layers, spaces, left_out):
        factor = _head_size_factor(heads) if by_size else 1.0
        terms.append(factor * (_head_squares(heads) + EPSILON).sqrt().sum())
    return sum(terms[1:], terms[0]) if terms else torch.zeros(())


def _head_squares(heads: LassoHeads) -> Tensor:
    """Return the sum of the squares of each head's weights, (heads,)."""
    return _head_sums(heads, [wide(part.weight).square() for part in heads.parts])


def _head_sums(heads: LassoHeads, values: Sequence[Tensor]) -> Tensor:
    """Return the sum over each head of values in the shapes of its weights, (heads,)."""
    sums = []
    for (_, weight, axis, entries), value in zip(heads.parts, values, strict=True):
        sums.append(value.sum(1 - axis)[entries.to(weight.device)].sum(1))
    return torch.stack(sums).sum(0)


def _head_size_factor(heads: LassoHeads) -> float:
    """Return the square root of the number of weights of a head."""
    return math.sqrt(sum(entries.shape[1] * weight.shape[1 - axis] for _, weight, axis, entries in heads.parts))


def penalty(layers: Iterable[LassoLayer], by_size: bool = False) -> Tensor:
    """Return P, the sum of the norms of all groups, a scalar with a gradient.

    Args:
        layers: Layers to penalise; at least one.
        by_size: Whether each norm is multiplied by the square root of the number of weights in its group.

    Source: PruneTrain, Eq. 2 and Sec. 4.1. Without factors ("global"), early layers with large images are pruned first.
    """
    layers = list(layers)
    factors = [
        tuple(used * (_size_factor(layer.weight, axis) if by_size else 1.0) for axis, used in enumerate(layer[1:]))
        for layer in layers
    ]
    total: Tensor = _Penalty.apply(factors, *(layer.weight for layer in layers))  # type: ignore[no-untyped-call]
    return total


class _Penalty(torch.autograd.Function):
    """The sum of all norms; reads each weight once per direction, and keeps one number per group."""

    @staticmethod
    def forward(ctx: Any, factors: Sequence[tuple[float, float]], *weights: Tensor) -> Tensor:  # type: ignore[override]
        total = wide(weights[0]).new_zeros(())
        scales = []  # for both groupings of each weight, the factor over the norm of each group: (K, 1) and (1, C)
        for weight, weight_factors in zip(weights, factors, strict=True):
            # Sum over the kernel once; both groupings then need only a small matrix.
            squares = wide(weight).square()
            squares = squares if weight.ndim == 2 else squares.sum((2, 3))
            for axis, factor in zip((1, 0), weight_factors, strict=True):
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
        for weight, output_scale, input_scale in zip(weights, scales[0::2], scales[1::2], strict=True):
            scale = grad * (output_scale + input_scale)
            gradients.append((weight * scale.view(*scale.shape, *[1] * (weight.ndim - 2))).to(weight.dtype))
        return (None, *gradients)


@torch.no_grad()
def soft_threshold(layer: LassoLayer, step: StepSize, by_size: bool = False) -> None:
    """Shrink the norm of every group by `step`, at most to zero; in place, output groups first.

    Each of the two steps is the proximal operator of its own half of the penalty. The groups overlap, so that applying
    one after the other approximates the operator of the sum.

    If the optimizer divides by sqrt(v), a group is shrunk in proportion to 1 / sqrt(mean of v over its weights). The
    mean of 1 / sqrt(v) would be that of the weights without gradients: a dead channel would take with it every group
    that crosses it.

    Args:
        layer: Weight to shrink, and its penalised groupings.
        step: Step of the optimizer times coefficient of the penalty.
        by_size: Whether `step` is multiplied by the square root of the number of weights in a group.

    Source: Yuan and Lin, 2006, Sec. 2.3 (group soft threshold). PruneTrain uses the subgradient instead. Division by
    the scale of the gradients: ProxGen (Yun, Lozano, Yang, NeurIPS 2021), with one number for each group.
    """
    for axis, used in ((0, layer.outputs), (1, layer.inputs)):
        if used:
            others = tuple(other for other in range(layer.weight.ndim) if other != axis)
            norm = wide(layer.weight).square().sum(others, keepdim=True).sqrt()
            scale = 1.0 if step.squares is None else step.squares.mean(others, keepdim=True).sqrt() + step.eps
            shrink = step.rate * (_size_factor(layer.weight, axis) if by_size else 1.0) / scale
            # Multiply by a ratio; a norm of zero must not be a divisor.
            layer.weight.mul_(torch.where(norm > shrink, 1 - shrink / norm, 0.0))


@torch.no_grad()
def soft_threshold_heads(heads: LassoHeads, steps: Sequence[StepSize], by_size: bool = False) -> None:
    """Shrink the norm of every head by a step, at most to zero, in place.

    Args:
        heads: The heads of one attention.
        steps: Step of the optimizer of each part times coefficient of the penalty. The smallest rate counts, and the
            mean of v over all weights of the head.
        by_size: Whether the step is multiplied by the square root of the number of weights in a head.
    """
    norm, size = _head_squares(heads).sqrt(), _head_size_factor(heads)
    scale: float | Tensor = 1.0
    squares = [step.squares for step in steps if step.squares is not None]
    if len(squares) == len(steps):
        scale = (_head_sums(heads, squares) / size**2).sqrt() + steps[0].eps
    shrink = min(step.rate for step in steps) * (size if by_size else 1.0) / scale
    ratio = torch.where(norm > shrink, 1 - shrink / norm, 0.0)
    for _, weight, axis, entries in heads.parts:
        rows = weight.movedim(axis, 0)
        rows[entries.to(weight.device)] *= ratio.view(-1, 1, 1).to(weight.dtype)


def head_arithmetic(heads: LassoHeads, layer: str, per_weight: int, per_group: int) -> float:
    """Return the operations of the lasso on a layer's part of heads.

    Args:
        heads: The heads, with the parts of this layer.
        layer: Name of the layer; the operations on groups are counted at the layer of the queries.
        per_weight: Operations per weight: 4 for the penalty and its gradient, 3 for the soft threshold.
        per_group: Operations per head, 3 or 4, as in `arithmetic` and `soft_threshold_arithmetic`.
    """
    weights = sum(entries.numel() * weight.shape[1 - axis] for _, weight, axis, entries in heads.parts)
    return float(per_weight * weights + per_group * len(heads.parts[0].entries) * (layer == heads.name))


def channel_peaks(weight: Tensor, axis: int, entries: Tensor) -> Tensor:
    """Return the largest |w| of each channel, (channels,); NaN if a weight is NaN.

    Args:
        weight: (K, C, R, S) or (K, C).
        axis: 0 for output channels, 1 for input channels.
        entries: (channels, entries of a channel) along the axis.
    """
    peaks = weight.detach().abs().movedim(axis, 0).flatten(1).amax(1)
    return peaks[entries.to(peaks.device)].amax(1)


def arithmetic(layer: LassoLayer) -> float:
    """Return the operations of the penalty and its gradient on one layer in one step.

    Counted for each weight: 2 (square, add over the kernel), and 2 for its gradient (multiply by the factor, add to the
    task's gradient). For each kernel: one addition per grouping in the forward and in the backward pass. For each
    group: 3 (add epsilon, square root, reciprocal).
    """
    out_channels, in_channels = layer.weight.shape[:2]
    groupings = layer.outputs + layer.inputs
    return float(4 * layer.weight.numel() + 2 * groupings * out_channels * in_channels + 3 * _groups(layer))


def soft_threshold_arithmetic(layer: LassoLayer) -> float:
    """Return the operations of `soft_threshold` on one layer.

    Counted for each grouping: 3 per weight (square, add, multiply) and 4 per group (square root, compare, divide,
    subtract).
    """
    return float(3 * (layer.outputs + layer.inputs) * layer.weight.numel() + 4 * _groups(layer))


def _groups(layer: LassoLayer) -> int:
    out_channels, in_channels = layer.weight.shape[:2]
    return layer.outputs * out_channels + layer.inputs * in_channels


def _size_factor(weight: Tensor, axis: int) -> float:
    """Return the square root of the number of weights in a group along this axis."""
    return math.sqrt(weight.numel() / max(weight.shape[axis], 1))
