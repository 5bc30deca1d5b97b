"""torchvision's ResNets for ImageNet, with blocks whose branch can be removed.

Shapes of weights, function and initialisation are those of torchvision. The names of a block's convolutions and
normalisation layers have the prefix `branch.`.
"""

from __future__ import annotations

from torch import nn
from torchvision.models.resnet import ResNet

from suite.registry import register
from tasks.models.residual import BasicBlock, Block, Bottleneck, Shape, check_channels

FEWEST_BLURRED = 16
"""SDGP's code blurs the input of strided convolutions with at least this many input channels."""


@register("model", "resnet18")
def resnet18(*, blur: bool = False, num_classes: int = 1000, input_shape: Shape = (3, 224, 224)) -> nn.Module:
    """torchvision's ResNet-18: basic blocks, 11.7 million parameters with 1,000 classes.

    Args:
        blur: Whether the input of each strided convolution is blurred, as in SDGP's code, except for one that reads the
            image.
        num_classes: Number of classes.
        input_shape: Shape (C, H, W) of an image with three channels.
    """
    return _build(BasicBlock, [2, 2, 2, 2], num_classes, input_shape, blur)


@register("model", "resnet34")
def resnet34(*, num_classes: int = 1000, input_shape: Shape = (3, 224, 224)) -> nn.Module:
    """torchvision's ResNet-34: basic blocks, 21.8 million parameters with 1,000 classes.

    Args:
        num_classes: Number of classes.
        input_shape: Shape (C, H, W) of an image with three channels.
    """
    return _build(BasicBlock, [3, 4, 6, 3], num_classes, input_shape)


@register("model", "resnet50")
def resnet50(*, blur: bool = False, num_classes: int = 1000, input_shape: Shape = (3, 224, 224)) -> nn.Module:
    """torchvision's ResNet-50: bottlenecks, 25.6 million parameters with 1,000 classes.

    Args:
        blur: Whether the input of each strided convolution is blurred, as in SDGP's code, except for one that reads the
            image.
        num_classes: Number of classes.
        input_shape: Shape (C, H, W) of an image with three channels.
    """
    return _build(Bottleneck, [3, 4, 6, 3], num_classes, input_shape, blur)


@register("model", "resnet101")
def resnet101(*, num_classes: int = 1000, input_shape: Shape = (3, 224, 224)) -> nn.Module:
    """torchvision's ResNet-101: bottlenecks, 44.5 million parameters with 1,000 classes.

    Args:
        num_classes: Number of classes.
        input_shape: Shape (C, H, W) of an image with three channels.
    """
    return _build(Bottleneck, [3, 4, 23, 3], num_classes, input_shape)


class Blurred(nn.Sequential):
    """A convolution whose input is blurred with the binomial filter (1, 2, 1) x (1, 2, 1) / 16.

    Two averages of 2x2 positions make this filter, with a border of zeros. Sources: Zhang, Making Convolutional
    Networks Shift-Invariant Again, ICML 2019; the fixed filter of the library FFCV, which SDGP's code uses.
    """

    def __init__(self, conv: nn.Conv2d) -> None:
        super().__init__(nn.AvgPool2d(2, 1, padding=1), nn.AvgPool2d(2, 1), conv)


def _build(
    block: type[Block], blocks: list[int], num_classes: int, input_shape: Shape, blur: bool = False
) -> nn.Module:
    check_channels(input_shape)
    model = ResNet(block, blocks, num_classes=num_classes)  # type: ignore[arg-type]
    if blur:
        blur_strided(model)
    return model


def blur_strided(model: nn.Module) -> None:
    """Blur the input of all convolutions with a stride above 1 and at least 16 input channels.

    The rule is that of SDGP's code. It excludes convolutions that read the image.
    """
    for name, layer in list(model.named_modules()):
        if isinstance(layer, nn.Conv2d) and max(layer.stride) > 1 and layer.in_channels >= FEWEST_BLURRED:
            parent, _, own = name.rpartition(".")
            setattr(model.get_submodule(parent), own, Blurred(layer))
