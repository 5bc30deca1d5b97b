"""ClickTrain's VGG networks for CIFAR: PruneTrain's convolutions, average pooling, and three linear layers."""

from __future__ import annotations

from torch import Tensor, nn

from suite.registry import register
from tasks.models.cifar_vgg import SMALLEST_SIDE, VGG11, VGG13, convolutions
from tasks.models.residual import Shape, check_side, scaled

VGG16 = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))
HIDDEN = 512  # features of the linear layers at width 1
FIRST_SCALE = 0.5  # initial weight of the normalisation layers
LINEAR_DEVIATION = 0.01


class ClickTrainVGG(nn.Module):
    """3x3 convolutions, each with normalisation and ReLU; five poolings, the last an average; linear layers."""

    def __init__(self, parts: list[list[int]], hidden: int, in_channels: int, classes: int) -> None:
        super().__init__()
        self.features = convolutions(parts, in_channels, nn.AvgPool2d(2))
        self.pool = nn.AdaptiveAvgPool2d(1)  # one position on images of 32x32
        self.classifier = nn.Sequential(
            nn.Dropout(),
            nn.Linear(parts[-1][-1], hidden),
            nn.ReLU(inplace=True),
            nn.Dropout(),
            nn.Linear(hidden, hidden),
            nn.ReLU(inplace=True),
            nn.Linear(hidden, classes),
        )
        for layer in self.modules():
            if isinstance(layer, nn.BatchNorm2d):
                nn.init.constant_(layer.weight, FIRST_SCALE)
            elif isinstance(layer, nn.Linear):
                nn.init.normal_(layer.weight, std=LINEAR_DEVIATION)
                nn.init.zeros_(layer.bias)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits (N, classes) of images (N, C, H, W)."""
        return self.classifier(self.pool(self.features(images)).flatten(1))


@register("model", "vgg11_click")
def vgg11_click(*, width: float = 1.0, num_classes: int = 10, input_shape: Shape = (3, 32, 32)) -> nn.Module:
    """ClickTrain's VGG-11 for CIFAR: eight convolutions and three linear layers, 9.75 million parameters at width 1.

    Args:
        width: Factor of every channel count, a multiple of 1/64.
        num_classes: Number of classes.
        input_shape: Shape (C, H, W) of an image, 32x32 or larger.

    Raises:
        ValueError: `width` gives a channel count that is not a positive integer, or images are too small.

    Source: ClickTrain (Zhang et al., ICS 2021), its code.
    """
    return _build(VGG11, width, num_classes, input_shape)


@register("model", "vgg13_click")
def vgg13_click(*, width: float = 1.0, num_classes: int = 10, input_shape: Shape = (3, 32, 32)) -> nn.Module:
    """ClickTrain's VGG-13 for CIFAR: ten convolutions and three linear layers, 9.94 million parameters at width 1.

    Args:
        width: Factor of every channel count, a multiple of 1/64.
        num_classes: Number of classes.
        input_shape: Shape (C, H, W) of an image, 32x32 or larger.

    Source: ClickTrain (Zhang et al., ICS 2021), its code.
    """
    return _build(VGG13, width, num_classes, input_shape)


@register("model", "vgg16_click")
def vgg16_click(*, width: float = 1.0, num_classes: int = 10, input_shape: Shape = (3, 32, 32)) -> nn.Module:
    """ClickTrain's VGG-16 for CIFAR: thirteen convolutions and three linear layers, 15.3 million parameters at width 1.

    Args:
        width: Factor of every channel count, a multiple of 1/64.
        num_classes: Number of classes.
        input_shape: Shape (C, H, W) of an image, 32x32 or larger.

    Source: ClickTrain (Zhang et al., ICS 2021), its code.
    """
    return _build(VGG16, width, num_classes, input_shape)


def _build(parts: tuple[tuple[int, ...], ...], width: float, num_classes: int, input_shape: Shape) -> nn.Module:
    check_side(input_shape, SMALLEST_SIDE)
    channels = [[scaled(made, width, parts[0][0]) for made in part] for part in parts]
    return ClickTrainVGG(channels, scaled(HIDDEN, width, parts[0][0]), input_shape[0], num_classes)
