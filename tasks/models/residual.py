"""Residual blocks whose branch may be taken out of the network: what they add is a child of its own."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import ClassVar

from torch import Tensor, nn


class Residual(nn.Module):
    """`x + branch(x)`, with no activation after the sum.

    Class attributes:
        residual_branch: the child that may be taken out of the network; the constant that it emits stays.
    """

    residual_branch: ClassVar[str] = "branch"

    def __init__(self, branch: nn.Module) -> None:
        super().__init__()
        self.branch = branch

    def forward(self, x: Tensor) -> Tensor:
        """Add the branch's output to its input; both are (N, C, H, W)."""
        return x + self.branch(x)


class Block(nn.Module):
    """`relu(branch(x) + shortcut)`, the shortcut being x or `downsample(x)`; the names are torchvision's.

    Class attributes:
        expansion: channels of the output for each of `planes`.
        residual_branch: as in `Residual`.
    """

    expansion: ClassVar[int] = 1
    residual_branch: ClassVar[str] = "branch"

    def __init__(self, branch: nn.Module, downsample: nn.Module | None) -> None:
        super().__init__()
        self.branch = branch
        self.downsample = downsample
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, H, W) to (N, expansion * planes, P, Q)."""
        shortcut = x if self.downsample is None else self.downsample(x)
        return self.relu(shortcut + self.branch(x))


class BasicBlock(Block):
    """Two 3x3 convolutions; takes the arguments that torchvision's ResNet gives its blocks."""

    def __init__(
        self,
        inplanes: int,
        planes: int,
        stride: int = 1,
        downsample: nn.Module | None = None,
        groups: int = 1,
        base_width: int = 64,
        dilation: int = 1,
        norm_layer: Callable[[int], nn.Module] | None = None,
    ) -> None:
        if (groups, base_width, dilation) != (1, 64, 1):
            raise ValueError("a basic block has no groups, width or dilation")
        norm = norm_layer or nn.BatchNorm2d
        layers: OrderedDict[str, nn.Module] = OrderedDict()
        layers["conv1"] = nn.Conv2d(inplanes, planes, 3, stride, 1, bias=False)
        layers["bn1"] = norm(planes)
        layers["relu"] = nn.ReLU(inplace=True)
        layers["conv2"] = nn.Conv2d(planes, planes, 3, 1, 1, bias=False)
        layers["bn2"] = norm(planes)
        super().__init__(nn.Sequential(layers), downsample)


class Bottleneck(Block):
    """1x1, 3x3 (which has the stride) and 1x1 convolutions; takes the arguments of torchvision's."""

    expansion: ClassVar[int] = 4

    def __init__(
        self,
        inplanes: int,
        planes: int,
        stride: int = 1,
        downsample: nn.Module | None = None,
        groups: int = 1,
        base_width: int = 64,
        dilation: int = 1,
        norm_layer: Callable[[int], nn.Module] | None = None,
    ) -> None:
        norm = norm_layer or nn.BatchNorm2d
        width = int(planes * (base_width / 64.0)) * groups
        layers: OrderedDict[str, nn.Module] = OrderedDict()
        layers["conv1"] = nn.Conv2d(inplanes, width, 1, bias=False)
        layers["bn1"] = norm(width)
        layers["relu1"] = nn.ReLU(inplace=True)
        layers["conv2"] = nn.Conv2d(width, width, 3, stride, dilation, dilation, groups, bias=False)
        layers["bn2"] = norm(width)
        layers["relu2"] = nn.ReLU(inplace=True)
        layers["conv3"] = nn.Conv2d(width, planes * self.expansion, 1, bias=False)
        layers["bn3"] = norm(planes * self.expansion)
        super().__init__(nn.Sequential(layers), downsample)
