"""ClickTrain's residual networks for CIFAR: ImageNet's widths and blocks behind a 3x3 convolution.

They have the names of PruneTrain's and some thirty times their weights; `_wide` tells them apart. Their weights start
as torch's own layers do, as in ClickTrain's code.
"""

from __future__ import annotations

from typing import Literal

from torch import nn

from suite.registry import register
from tasks.models.cifar_resnet import CifarResNet
from tasks.models.residual import BasicBlock, Block, Bottleneck
from tasks.models.widths import scaled

Init = Literal["torch", "fan_out"]
PLANES = (64, 128, 256, 512)
SMALLEST_SIDE = 8  # three stages halve the image


@register("model", "resnet32_wide")
def resnet32_wide(
    *,
    width: float = 1.0,
    init: Init = "torch",
    num_classes: int = 10,
    input_shape: tuple[int, int, int] = (3, 32, 32),
) -> nn.Module:
    """ClickTrain's ResNet-32 for CIFAR: stages of 3, 4, 5 and 3 basic blocks, 20.1 million parameters at width 1.

    Args:
        width: factor on every channel count, a multiple of 1/64.
        init: random weights that convolutions start from: `torch`, those of torch's own layers, as in ClickTrain's
            code; `fan_out`, N(0, 2 / (R * S * K)), as in PruneTrain's networks.
        num_classes: outputs of the linear layer.
        input_shape: (C, H, W) of an image.

    Raises:
        ValueError: if `width` gives a channel count that is not a positive whole number, or images are too small.

    Source: ClickTrain (Zhang et al., ICS 2021), its code.
    """
    return _build("resnet32_wide", BasicBlock, (3, 4, 5, 3), width, init, num_classes, input_shape)


@register("model", "resnet50_wide")
def resnet50_wide(
    *,
    width: float = 1.0,
    init: Init = "torch",
    num_classes: int = 10,
    input_shape: tuple[int, int, int] = (3, 32, 32),
) -> nn.Module:
    """ClickTrain's ResNet-50 for CIFAR: stages of 3, 4, 6 and 3 bottlenecks, 23.5 million parameters at width 1.

    Args:
        width: factor on every channel count, a multiple of 1/64.
        init: random weights that convolutions start from: `torch`, those of torch's own layers, as in ClickTrain's
            code; `fan_out`, N(0, 2 / (R * S * K)), as in PruneTrain's networks.
        num_classes: outputs of the linear layer.
        input_shape: (C, H, W) of an image.

    Source: ClickTrain (Zhang et al., ICS 2021), its code.
    """
    return _build("resnet50_wide", Bottleneck, (3, 4, 6, 3), width, init, num_classes, input_shape)


def _build(
    name: str,
    block: type[Block],
    blocks: tuple[int, ...],
    width: float,
    init: Init,
    num_classes: int,
    input_shape: tuple[int, int, int],
) -> nn.Module:
    if min(input_shape[1:]) < SMALLEST_SIDE:
        raise ValueError(f"{name}: images are {input_shape[1]}x{input_shape[2]}; the smallest are 8x8")
    planes = [scaled(name, channels, width, PLANES[0]) for channels in PLANES]
    stages = list(zip(planes, blocks, strict=True))
    return CifarResNet(block, stages, input_shape[0], num_classes, init=init)
