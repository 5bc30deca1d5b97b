"""A plain perceptron: linear layers of one width, with the shapes at which sparse tensor cores can gain."""

from __future__ import annotations

import math

from torch import nn

from suite.registry import register
from tasks.models.residual import Shape


@register("model", "mlp")
def mlp(*, width: int = 1024, depth: int = 3, num_classes: int = 10, input_shape: Shape = (3, 32, 32)) -> nn.Module:
    """A perceptron of `depth` hidden layers of one width, with batch normalisation and ReLU.

    Args:
        width: Number of units in each hidden layer.
        depth: Number of hidden layers.
        num_classes: Number of classes.
        input_shape: Shape (C, H, W) of an image, which is flattened.

    Raises:
        ValueError: `width` or `depth` is below 1.
    """
    if width < 1 or depth < 1:
        raise ValueError(f"width is {width} and depth is {depth}; both must be at least 1")
    layers: list[nn.Module] = [nn.Flatten()]
    inputs = math.prod(input_shape)
    for _ in range(depth):
        layers += [nn.Linear(inputs, width, bias=False), nn.BatchNorm1d(width), nn.ReLU(inplace=True)]
        inputs = width
    return nn.Sequential(*layers, nn.Linear(inputs, num_classes))
