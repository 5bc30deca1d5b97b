"""Group lasso over channels: the penalty whose groups are the output and the input channels of every layer.

A weight (K, C, R, S) has K output groups, each of C * R * S weights, and C input groups, each of K * R * S. Every
weight lies in one of each.

Source: PruneTrain (Lym et al., SC 2019), Sec. 4.1, Eq. 2; epsilon is that of its published code.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from suite.surgery import IndexSpace, IndexSpaces

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
    never go; and grouped convolutions, depthwise ones among them. Biases and normalisation are not penalised.
    """
    found = {}
    for name, layer in layers.items():
        if getattr(layer, "groups", 1) != 1:
            continue
        weight = layer.weight
        assert isinstance(weight, Tensor)
        outputs = spaces.output_of.get(name) not in spaces.model_outputs
        inputs = spaces.input_of.get(name) != spaces.model_input
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
    norms: list[Tensor] = []
    for weight, outputs, inputs in layers:
        # W * W is made once, and summed over the kernel once: what remains for both groupings is a small matrix.
        squares = weight.square()
        if squares.ndim > 2:
            squares = squares.sum(tuple(range(2, squares.ndim)))
        for axis, used in ((1, outputs), (0, inputs)):
            if used:
                norm = (squares.sum(axis) + EPSILON).sqrt().sum()
                norms.append(norm * _size_factor(weight, 1 - axis) if by_size else norm)
    return torch.stack(norms).sum()


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


def weights_of(space: IndexSpace, layers: Mapping[str, nn.Module]) -> list[tuple[Tensor, int, int]]:
    """Every weight that has the channels of a space, with its axis and how many entries there are to a channel."""
    producers = [(layers[name].weight, 0, 1) for name in space.producers]
    consumers = [(layers[name].weight, 1, block) for name, block in space.consumers]
    return producers + consumers  # type: ignore[return-value]


def channel_peaks(weight: Tensor, axis: int, block: int = 1) -> Tensor:
    """The largest |w| of each channel, (channels,); NaN where a weight is NaN.

    Args:
        weight: (K, C, R, S) or (K, C).
        axis: 0 for output channels, 1 for input channels.
        block: consecutive entries of the axis that belong to one channel.
    """
    magnitudes = weight.detach().abs().movedim(axis, 0)
    return magnitudes.reshape(magnitudes.shape[0] // block, -1).amax(1)


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
