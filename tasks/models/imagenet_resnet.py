"""torchvision's ResNets for ImageNet, of blocks whose branch may be taken out.

Parameters, function and initialisation are torchvision's; in names `branch.` stands before a block's convolutions and
normalisations.
"""

from __future__ import annotations

from torch import nn

from suite.registry import register
from tasks.models.residual import BasicBlock, Block, Bottleneck


@register("model", "resnet18")
def resnet18(*, num_classes: int = 1000, input_shape: tuple[int, int, int] = (3, 224, 224)) -> nn.Module:
    """torchvision's ResNet-18: basic blocks, 11.7 million parameters with 1,000 classes.

    Args:
        num_classes: outputs of the linear layer.
        input_shape: (C, H, W) of an image with three channels.
    """
    return _build("resnet18", BasicBlock, [2, 2, 2, 2], num_classes, input_shape)


@register("model", "resnet34")
def resnet34(*, num_classes: int = 1000, input_shape: tuple[int, int, int] = (3, 224, 224)) -> nn.Module:
    """torchvision's ResNet-34: basic blocks, 21.8 million parameters with 1,000 classes.

    Args:
        num_classes: outputs of the linear layer.
        input_shape: (C, H, W) of an image with three channels.
    """
    return _build("resnet34", BasicBlock, [3, 4, 6, 3], num_classes, input_shape)


@register("model", "resnet50")
def resnet50(*, num_classes: int = 1000, input_shape: tuple[int, int, int] = (3, 224, 224)) -> nn.Module:
    """torchvision's ResNet-50: bottlenecks, 25.6 million parameters with 1,000 classes.

    Args:
        num_classes: outputs of the linear layer.
        input_shape: (C, H, W) of an image with three channels.
    """
    return _build("resnet50", Bottleneck, [3, 4, 6, 3], num_classes, input_shape)


@register("model", "resnet101")
def resnet101(*, num_classes: int = 1000, input_shape: tuple[int, int, int] = (3, 224, 224)) -> nn.Module:
    """torchvision's ResNet-101: bottlenecks, 44.5 million parameters with 1,000 classes.

    Args:
        num_classes: outputs of the linear layer.
        input_shape: (C, H, W) of an image with three channels.
    """
    return _build("resnet101", Bottleneck, [3, 4, 23, 3], num_classes, input_shape)


def _build(
    name: str, block: type[Block], blocks: list[int], num_classes: int, input_shape: tuple[int, int, int]
) -> nn.Module:
    from torchvision.models.resnet import ResNet

    if input_shape[0] != 3:
        raise ValueError(f"{name}: images have {input_shape[0]} channels; it takes 3")
    return ResNet(block, blocks, num_classes=num_classes)  # type: ignore[arg-type]
