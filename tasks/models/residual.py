"""Residual blocks whose branch is one child module that can be removed, and checks that the models share."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, ClassVar

from torch import Tensor, nn

Shape = tuple[int, int, int]
"""Channels, height and width of an image."""


def scaled(channels: int, width: float, narrowest: int) -> int:
    """Return `channels` times `width`.

    Args:
        channels: Number of channels at width 1.
        width: Factor.
        narrowest: Smallest channel count of the network at width 1. Multiples of its inverse give integers everywhere.

    Raises:
        ValueError: The product is not a positive integer.
    """
    product = channels * width
    if not (product >= 1 and float(product).is_integer()):
        raise ValueError(f"width {width} turns {channels} channels into {product}; use a multiple of 1/{narrowest}")
    return int(product)


def check_side(input_shape: Shape, smallest: int) -> None:
    """Check the size of images.

    Args:
        input_shape: Shape (C, H, W) of an image.
        smallest: Smallest height and width for which every layer has an output.

    Raises:
        ValueError: An image is smaller.
    """
    if min(input_shape[1:]) < smallest:
        height, width = input_shape[1:]
        raise ValueError(f"images are {height}x{width}; the smallest are {smallest}x{smallest}")


def check_channels(input_shape: Shape) -> None:
    """Check that images have the three channels of torchvision's networks.

    Args:
        input_shape: Shape (C, H, W) of an image.

    Raises:
        ValueError: An image has another number of channels.
    """
    if input_shape[0] != 3:
        raise ValueError(f"images have {input_shape[0]} channels; the model needs 3")


class Residual(nn.Module):
    """`x + branch(x)`, with no activation after the sum.

    Class attributes:
        residual_branch: Name of the child that can be removed. The constant that it emits is kept.
    """

    residual_branch: ClassVar[str] = "branch"

    def __init__(self, branch: nn.Module) -> None:
        super().__init__()
        self.branch = branch

    def forward(self, x: Tensor) -> Tensor:
        """Return the sum of the input (N, C, H, W) and the branch's output."""
        return x + self.branch(x)


class Block(nn.Module):
    """`relu(branch(x) + shortcut)`, where the shortcut is x or `downsample(x)`; names are those of torchvision.

    Class attributes:
        expansion: Ratio of output channels to `planes`.
        residual_branch: Name of the child that can be removed.
    """

    expansion: ClassVar[int] = 1
    residual_branch: ClassVar[str] = "branch"

    def __init__(self, branch: nn.Module, downsample: nn.Module | None) -> None:
        super().__init__()
        self.branch = branch
        self.downsample = downsample
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        """Map (N, C, H, W) to (N, expansion * planes, P, Q)."""
        shortcut = x if self.downsample is None else self.downsample(x)
        return self.relu(shortcut + self.branch(x))


class BasicBlock(Block):
    """Two 3x3 convolutions. Other arguments of torchvision's block are ignored."""

    def __init__(
        self,
        inplanes: int,
        planes: int,
        stride: int = 1,
        downsample: nn.Module | None = None,
        *others: Any,
        **named: Any,
    ) -> None:
        # torchvision's ResNet also passes groups, width, dilation and normalisation, which have their defaults here.
        layers: OrderedDict[str, nn.Module] = OrderedDict()
        layers["conv1"] = nn.Conv2d(inplanes, planes, 3, stride, 1, bias=False)
        layers["bn1"] = nn.BatchNorm2d(planes)
        layers["relu"] = nn.ReLU(inplace=True)
        layers["conv2"] = nn.Conv2d(planes, planes, 3, 1, 1, bias=False)
        layers["bn2"] = nn.BatchNorm2d(planes)
        super().__init__(nn.Sequential(layers), downsample)


class Bottleneck(Block):
    """1x1, 3x3 (with the stride) and 1x1 convolutions; arguments as in `BasicBlock`."""

    expansion: ClassVar[int] = 4

    def __init__(
        self,
        inplanes: int,
        planes: int,
        stride: int = 1,
        downsample: nn.Module | None = None,
        *others: Any,
        **named: Any,
    ) -> None:
        layers: OrderedDict[str, nn.Module] = OrderedDict()
        layers["conv1"] = nn.Conv2d(inplanes, planes, 1, bias=False)
        layers["bn1"] = nn.BatchNorm2d(planes)
        layers["relu1"] = nn.ReLU(inplace=True)
        layers["conv2"] = nn.Conv2d(planes, planes, 3, stride, 1, bias=False)
        layers["bn2"] = nn.BatchNorm2d(planes)
        layers["relu2"] = nn.ReLU(inplace=True)
        layers["conv3"] = nn.Conv2d(planes, planes * self.expansion, 1, bias=False)
        layers["bn3"] = nn.BatchNorm2d(planes * self.expansion)
        super().__init__(nn.Sequential(layers), downsample)
