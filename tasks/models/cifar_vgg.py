"""PruneTrain's VGG networks for CIFAR images: convolutions with normalisation, and one linear layer."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from suite.registry import register
from tasks.models.residual import Shape, check_side, scaled

# Output channels by part. Between the parts, a pooling layer halves the image.
VGG11 = ((64,), (128,), (256, 256), (512, 512), (512, 512))
VGG13 = ((64, 64), (128, 128), (256, 256), (512, 512), (512, 512))
SMALLEST_SIDE = 32


class CifarVGG(nn.Module):
    """3x3 convolutions without bias, each with normalisation and ReLU; five poolings; a linear layer."""

    def __init__(self, parts: list[list[int]], in_channels: int, classes: int) -> None:
        super().__init__()
        self.features = convolutions(parts, in_channels, nn.MaxPool2d(2))
        self.pool = nn.AdaptiveAvgPool2d(1)  # one position on images of 32x32
        self.classifier = nn.Linear(parts[-1][-1], classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits (N, classes) of images (N, C, H, W)."""
        return self.classifier(self.pool(self.features(images)).flatten(1))


def convolutions(parts: Sequence[Sequence[int]], in_channels: int, last: nn.Module) -> nn.Sequential:
    """Return 3x3 convolutions without bias, each with normalisation and ReLU, and pooling after each part.

    Args:
        parts: Output channels of the convolutions of each part.
        in_channels: Channels of an image.
        last: Pooling layer after the last part. After the other parts it is the maximum of 2x2.
    """
    layers: list[nn.Module] = []
    channels = in_channels
    for number, part in enumerate(parts, 1):
        for made in part:
            layers += [
                nn.Conv2d(channels, made, 3, padding=1, bias=False),
                nn.BatchNorm2d(made),
                nn.ReLU(inplace=True),
            ]
            channels = made
        layers.append(last if number == len(parts) else nn.MaxPool2d(2))
    for layer in layers:
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")  # N(0, 2 / (R * S * K))
    return nn.Sequential(*layers)


@register("model", "vgg11")
def vgg11(*, width: float = 1.0, num_classes: int = 10, input_shape: Shape = (3, 32, 32)) -> nn.Module:
    """PruneTrain's VGG-11 for CIFAR: eight convolutions and one linear layer, 9.2 million parameters at width 1.

    Args:
        width: Factor of every channel count, a multiple of 1/64.
        num_classes: Number of classes.
        input_shape: Shape (C, H, W) of an image, 32x32 or larger.

    Raises:
        ValueError: `width` gives a channel count that is not a positive integer, or images are too small.

    Source: PruneTrain (SC 2019) and its code.
    """
    return _build(VGG11, width, num_classes, input_shape)


@register("model", "vgg13")
def vgg13(*, width: float = 1.0, num_classes: int = 10, input_shape: Shape = (3, 32, 32)) -> nn.Module:
    """PruneTrain's VGG-13 for CIFAR: ten convolutions and one linear layer, 9.4 million parameters at width 1.

    Args:
        width: Factor of every channel count, a multiple of 1/64.
        num_classes: Number of classes.
        input_shape: Shape (C, H, W) of an image, 32x32 or larger.

    Source: PruneTrain (SC 2019) and its code.
    """
    return _build(VGG13, width, num_classes, input_shape)


def _build(parts: tuple[tuple[int, ...], ...], width: float, num_classes: int, input_shape: Shape) -> nn.Module:
    check_side(input_shape, SMALLEST_SIDE)
    channels = [[scaled(made, width, parts[0][0]) for made in part] for part in parts]
    return CifarVGG(channels, input_shape[0], num_classes)
