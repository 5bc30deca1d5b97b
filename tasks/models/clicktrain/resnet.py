"""ClickTrain's residual networks for CIFAR: widths and blocks of the ImageNet networks, after a 3x3 convolution.

The papers give them the same names as PruneTrain's networks, but they have about thirty times as many weights. The
suffix `_wide` distinguishes them. Their weights have the initialisation of torch's layers, as in ClickTrain's code.
"""

from __future__ import annotations

from typing import Literal

from torch import nn

from suite.registry import register
from tasks.models.cifar_resnet import CifarResNet
from tasks.models.residual import BasicBlock, Block, Bottleneck, Shape, check_side, scaled

Init = Literal["torch", "fan_out"]
PLANES = (64, 128, 256, 512)
SMALLEST_SIDE = 8  # three stages halve the image


@register("model", "resnet32_wide")
def resnet32_wide(
    *, width: float = 1.0, init: Init = "torch", num_classes: int = 10, input_shape: Shape = (3, 32, 32)
) -> nn.Module:
    """ClickTrain's ResNet-32 for CIFAR: stages of 3, 4, 5 and 3 basic blocks, 20.1 million parameters at width 1.

    Args:
        width: Factor of every channel count, a multiple of 1/64.
        init: Initial weights of convolutions: `torch`, those of torch's layers, as in ClickTrain's code;
            `fan_out`, N(0, 2 / (R * S * K)), as in PruneTrain's networks.
        num_classes: Number of classes.
        input_shape: Shape (C, H, W) of an image.

    Raises:
        ValueError: `width` gives a channel count that is not a positive integer, or images are too small.

    Source: ClickTrain (Zhang et al., ICS 2021), its code.
    """
    return _build(BasicBlock, (3, 4, 5, 3), width, init, num_classes, input_shape)


@register("model", "resnet50_wide")
def resnet50_wide(
    *, width: float = 1.0, init: Init = "torch", num_classes: int = 10, input_shape: Shape = (3, 32, 32)
) -> nn.Module:
    """ClickTrain's ResNet-50 for CIFAR: stages of 3, 4, 6 and 3 bottlenecks, 23.5 million parameters at width 1.

    Args:
        width: Factor of every channel count, a multiple of 1/64.
        init: Initial weights of convolutions: `torch`, those of torch's layers, as in ClickTrain's code;
            `fan_out`, N(0, 2 / (R * S * K)), as in PruneTrain's networks.
        num_classes: Number of classes.
        input_shape: Shape (C, H, W) of an image.

    Source: ClickTrain (Zhang et al., ICS 2021), its code.
    """
    return _build(Bottleneck, (3, 4, 6, 3), width, init, num_classes, input_shape)


def _build(
    block: type[Block], blocks: tuple[int, ...], width: float, init: Init, num_classes: int, input_shape: Shape
) -> nn.Module:
    check_side(input_shape, SMALLEST_SIDE)
    planes = [scaled(channels, width, PLANES[0]) for channels in PLANES]
    stages = list(zip(planes, blocks, strict=True))
    return CifarResNet(block, stages, input_shape[0], num_classes, init=init)
