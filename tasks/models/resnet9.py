"""ResNet-9, the small residual network that the SDGP paper trains on CIFAR-10."""

from __future__ import annotations

from collections import OrderedDict

from torch import Tensor, nn

from suite.registry import register
from tasks.models.residual import Residual, Shape, check_side, scaled

# Output channels at width 1, in the order in which the layers run.
PREP, DOWN, EXPAND, REDUCE = 128, 256, 512, 256
LOGIT_SCALE = 0.2
# An 11x11 image is 6x6 after the strided convolution and 3x3 after the pooling, the smallest input of the unpadded 3x3.
SMALLEST_SIDE = 11


class ResNet9(nn.Module):
    """The network of `resnet9`; its children run in the order in which they are defined."""

    def __init__(self, prep: int, down: int, expand: int, reduce: int, in_channels: int, num_classes: int) -> None:
        super().__init__()
        self.prep = _block(in_channels, prep, kernel_size=3, padding=1)
        self.down = _block(prep, down, kernel_size=5, stride=2, padding=2)
        self.residual1 = _residual(down)
        self.expand = _block(down, expand, kernel_size=3, padding=1)
        self.pool = nn.MaxPool2d(2)
        self.residual2 = _residual(expand)
        self.reduce = _block(expand, reduce, kernel_size=3, padding=0)
        self.global_pool = nn.AdaptiveMaxPool2d(1)
        self.classifier = nn.Linear(reduce, num_classes, bias=False)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits (N, num_classes) of images (N, C, H, W)."""
        x = self.residual1(self.down(self.prep(images)))
        x = self.residual2(self.pool(self.expand(x)))
        x = self.global_pool(self.reduce(x)).flatten(1)
        return self.classifier(x) * LOGIT_SCALE


@register("model", "resnet9")
def resnet9(*, width: float = 1.0, num_classes: int = 10, input_shape: Shape = (3, 32, 32)) -> nn.Module:
    """ResNet-9 of the SDGP paper: eight convolutions, two residual blocks, 9.1 million parameters at width 1.

    Weights have the initialisation of torch's layers. The SDGP repository differs: all convolutions except the first
    are of its own class. That class draws weights uniformly within sqrt(6 / fan_in), 2.45 times as wide.

    Args:
        width: Factor of every channel count; 0.25 gives 32, 64, 128 and 64 channels.
        num_classes: Number of classes.
        input_shape: Shape (C, H, W) of an image. Any size from 11x11 works, because the last pooling is adaptive.

    Raises:
        ValueError: `width` gives a channel count that is not a positive integer, or images are too small.

    Source: SDGP (ICPR 2022, arXiv 2202.00774), the CIFAR-10 network of its repository.
    """
    check_side(input_shape, SMALLEST_SIDE)
    prep, down, expand, reduce = (scaled(channels, width, PREP) for channels in (PREP, DOWN, EXPAND, REDUCE))
    return ResNet9(prep, down, expand, reduce, in_channels=input_shape[0], num_classes=num_classes)


def _block(in_channels: int, out_channels: int, *, kernel_size: int, stride: int = 1, padding: int) -> nn.Sequential:
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    layers["conv"] = nn.Conv2d(in_channels, out_channels, kernel_size, stride=stride, padding=padding, bias=False)
    layers["norm"] = nn.BatchNorm2d(out_channels)
    layers["act"] = nn.ReLU(inplace=True)
    return nn.Sequential(layers)


def _residual(channels: int) -> Residual:
    blocks: OrderedDict[str, nn.Module] = OrderedDict()
    blocks["block1"] = _block(channels, channels, kernel_size=3, padding=1)
    blocks["block2"] = _block(channels, channels, kernel_size=3, padding=1)
    return Residual(nn.Sequential(blocks))
