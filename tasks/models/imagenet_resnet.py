"""torchvision's ResNets for ImageNet, with blocks whose branch can be removed.

Weights, function and initialisation are those of torchvision. In names, `branch.` precedes a block's convolutions and
normalisation layers.
"""

from __future__ import annotations

from torch import nn

from suite.registry import register
from tasks.models.residual import BasicBlock, Block, Bottleneck


@register("model", "resnet18")
def resnet18(*, num_classes: int = 1000, input_shape: tuple[int, int, int] = (3, 224, 224)) -> nn.Module:
    """torchvision's ResNet-18: basic blocks, 11.7 million parameters with 1,000 classes.

    Args:
        num_classes: Number of classes.
        input_shape: Shape (C, H, W) of an image with three channels.
    """
    return _build(BasicBlock, [2, 2, 2, 2], num_classes, input_shape)


@register("model", "resnet34")
def resnet34(*, num_classes: int = 1000, input_shape: tuple[int, int, int] = (3, 224, 224)) -> nn.Module:
    """torchvision's ResNet-34: basic blocks, 21.8 million parameters with 1,000 classes.

    Args:
        num_classes: Number of classes.
        input_shape: Shape (C, H, W) of an image with three channels.
    """
    return _build(BasicBlock, [3, 4, 6, 3], num_classes, input_shape)


@register("model", "resnet50")
def resnet50(*, num_classes: int = 1000, input_shape: tuple[int, int, int] = (3, 224, 224)) -> nn.Module:
    """torchvision's ResNet-50: bottlenecks, 25.6 million parameters with 1,000 classes.

    Args:
        num_classes: Number of classes.
        input_shape: Shape (C, H, W) of an image with three channels.
    """
    return _build(Bottleneck, [3, 4, 6, 3], num_classes, input_shape)


@register("model", "resnet101")
def resnet101(*, num_classes: int = 1000, input_shape: tuple[int, int, int] = (3, 224, 224)) -> nn.Module:
    """torchvision's ResNet-101: bottlenecks, 44.5 million parameters with 1,000 classes.

    Args:
        num_classes: Number of classes.
        input_shape: Shape (C, H, W) of an image with three channels.
    """
    return _build(Bottleneck, [3, 4, 23, 3], num_classes, input_shape)


def _build(block: type[Block], blocks: list[int], num_classes: int, input_shape: tuple[int, int, int]) -> nn.Module:
    from torchvision.models.resnet import ResNet

    if input_shape[0] != 3:
        raise ValueError(f"images have {input_shape[0]} channels; the model needs 3")
    return ResNet(block, blocks, num_classes=num_classes)  # type: ignore[arg-type]
