"""Residual blocks whose branch may be taken out of the network: what they add is a child of its own."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, ClassVar

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
    """Two 3x3 convolutions; takes of the arguments of torchvision's block those that it uses."""

    def __init__(
        self,
        inplanes: int,
        planes: int,
        stride: int = 1,
        downsample: nn.Module | None = None,
        *others: Any,
        **named: Any,
    ) -> None:
        # torchvision's ResNet hands on groups, width, dilation and normalisation too, which are its defaults here.
        layers: OrderedDict[str, nn.Module] = OrderedDict()
        layers["conv1"] = nn.Conv2d(inplanes, planes, 3, stride, 1, bias=False)
        layers["bn1"] = nn.BatchNorm2d(planes)
        layers["relu"] = nn.ReLU(inplace=True)
        layers["conv2"] = nn.Conv2d(planes, planes, 3, 1, 1, bias=False)
        layers["bn2"] = nn.BatchNorm2d(planes)
        super().__init__(nn.Sequential(layers), downsample)


class Bottleneck(Block):
    """1x1, 3x3 (which has the stride) and 1x1 convolutions; arguments as of `BasicBlock`."""

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
