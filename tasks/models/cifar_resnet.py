"""PruneTrain's residual networks for CIFAR: ResNet-32 of basic blocks, ResNet-50 and ResNet-56 of bottlenecks."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from suite.registry import register
from tasks.models.residual import BasicBlock, Block, Bottleneck, Shape, check_side, scaled

PLANES = (16, 32, 64)
# Three stages, of which the second and the third halve the image
SMALLEST_SIDE = 4


class CifarResNet(nn.Module):
    """A 3x3 convolution, stages of residual blocks, global average pooling and a linear layer.

    Every stage except the first halves the image. If channels or image size change, the shortcut of a stage's first
    block is a projection: a strided 1x1 convolution with normalisation.

    Args:
        block: Class of the blocks.
        stages: Planes and number of blocks of each stage. The first convolution has the planes of the first stage.
        in_channels: Channels of an image.
        classes: Number of classes.
        init: Initial weights of convolutions: `fan_out`, N(0, 2 / (R * S * K)), or `torch`, those of torch's layers.
    """

    def __init__(
        self,
        block: type[Block],
        stages: Sequence[tuple[int, int]],
        in_channels: int,
        classes: int,
        *,
        init: str = "fan_out",
    ):
        super().__init__()
        channels = stages[0][0]
        self.conv1 = nn.Conv2d(in_channels, channels, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)
        self._stages = [f"layer{number}" for number in range(1, len(stages) + 1)]  # torchvision's names
        for number, (name, (planes, blocks)) in enumerate(zip(self._stages, stages, strict=True)):
            stage, channels = _stage(block, blocks, channels, planes, stride=2 if number else 1)
            self.add_module(name, stage)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(channels, classes)
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d) and init == "fan_out":
                nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")  # N(0, 2 / (R * S * K))

    def forward(self, images: Tensor) -> Tensor:
        """Return logits (N, classes) of images (N, C, H, W)."""
        x = self.relu(self.bn1(self.conv1(images)))
        for name in self._stages:
            x = getattr(self, name)(x)
        return self.fc(self.avgpool(x).flatten(1))


def _stage(block: type[Block], blocks: int, channels: int, planes: int, stride: int) -> tuple[nn.Sequential, int]:
    made = planes * block.expansion
    downsample = None
    if stride != 1 or channels != made:
        downsample = nn.Sequential(nn.Conv2d(channels, made, 1, stride, bias=False), nn.BatchNorm2d(made))
    first = block(channels, planes, stride, downsample)  # type: ignore[arg-type, call-arg]
    rest = [block(made, planes) for _ in range(blocks - 1)]  # type: ignore[arg-type]
    return nn.Sequential(first, *rest), made


@register("model", "resnet32")
def resnet32(*, width: float = 1.0, num_classes: int = 10, input_shape: Shape = (3, 32, 32)) -> nn.Module:
    """ResNet-32 for CIFAR: 33 convolutions, three stages of five basic blocks, 0.47 million parameters at width 1.

    Args:
        width: Factor of every channel count, a multiple of 1/16.
        num_classes: Number of classes.
        input_shape: Shape (C, H, W) of an image.

    Raises:
        ValueError: `width` gives a channel count that is not a positive integer, or images are too small.

    Source: PruneTrain (SC 2019) and its code, whose shortcuts are projections too.
    """
    return _build(BasicBlock, 5, width, num_classes, input_shape)


@register("model", "resnet50_cifar")
def resnet50_cifar(*, width: float = 1.0, num_classes: int = 10, input_shape: Shape = (3, 32, 32)) -> nn.Module:
    """PruneTrain's ResNet-50 for CIFAR: 76 convolutions, three stages of eight bottlenecks.

    Args:
        width: Factor of every channel count, a multiple of 1/16.
        num_classes: Number of classes.
        input_shape: Shape (C, H, W) of an image.

    Raises:
        ValueError: As `resnet32`.

    Source: PruneTrain (SC 2019) and its code.
    """
    return _build(Bottleneck, 8, width, num_classes, input_shape)


@register("model", "resnet56")
def resnet56(*, width: float = 1.0, num_classes: int = 10, input_shape: Shape = (3, 32, 32)) -> nn.Module:
    """PruneTrain's ResNet-56 for CIFAR: 85 convolutions, three stages of nine bottlenecks.

    The paper compares with AMC on this network. Its code has only the channel counts.

    Args:
        width: Factor of every channel count, a multiple of 1/16.
        num_classes: Number of classes.
        input_shape: Shape (C, H, W) of an image.

    Source: PruneTrain (SC 2019), Table 3.
    """
    return _build(Bottleneck, 9, width, num_classes, input_shape)


def _build(block: type[Block], blocks: int, width: float, num_classes: int, input_shape: Shape) -> nn.Module:
    check_side(input_shape, SMALLEST_SIDE)
    stages = [(scaled(planes, width, PLANES[0]), blocks) for planes in PLANES]
    return CifarResNet(block, stages, input_shape[0], num_classes)
