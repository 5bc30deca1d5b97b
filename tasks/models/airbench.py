"""The network of airbench94, a training for 94 % on CIFAR-10 in a few seconds on one GPU."""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from suite.registry import register
from tasks.models.residual import Shape, check_side, scaled

# Output channels of the groups at width 1.
GROUPS = (64, 256, 256)
LOGIT_DIVISOR = 9
SMALLEST_EIGENVALUE = 5e-4
# The 2x2 convolution has no padding, and each of three groups halves its images.
SMALLEST_SIDE = 9
_AT_ONCE = 500  # images at once, a bound on the memory of their patches


class Airbench(nn.Module):
    """The network of `airbench`; its children run in the order in which they are defined."""

    def __init__(self, channels: tuple[int, ...], in_channels: int, num_classes: int) -> None:
        super().__init__()
        first = 2 * in_channels * 2 * 2  # for each dimension of 2x2 patches, an eigenvector and its negative
        self.whiten = nn.Conv2d(in_channels, first, kernel_size=2)
        self.whiten.weight.requires_grad_(False)
        nn.init.zeros_(self.whiten.bias)  # type: ignore[arg-type]
        self.act = nn.GELU()
        widths = (first, *channels)
        self.groups = nn.Sequential(*(_Group(*pair) for pair in pairwise(widths)))
        self.pool = nn.AdaptiveMaxPool2d(1)
        self.classifier = nn.Linear(channels[-1], num_classes, bias=False)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits (N, num_classes) of images (N, C, H, W)."""
        x = self.groups(self.act(self.whiten(images)))
        return self.classifier(self.pool(x).flatten(1)) / LOGIT_DIVISOR

    def initialize_from_images(self, images: Tensor) -> None:
        """Set the first layer to the eigenvectors of the second moment of 2x2 patches, and to their negatives.

        An eigenvector is divided by the root of its eigenvalue plus `SMALLEST_EIGENVALUE`.

        Args:
            images: (N, C, H, W), normalised.
        """
        weight = self.whiten.weight
        moment, count = torch.zeros(weight[0].numel(), weight[0].numel(), dtype=torch.float64, device=images.device), 0
        for some in images.split(_AT_ONCE):
            patches = F.unfold(some, kernel_size=2).transpose(1, 2).reshape(-1, weight[0].numel()).double()
            moment += patches.T @ patches
            count += len(patches)
        values, vectors = torch.linalg.eigh(moment / count)
        filters = (vectors / (values + SMALLEST_EIGENVALUE).sqrt()).T.flip(0)  # the largest eigenvalue first
        weight.copy_(torch.cat([filters, -filters]).view_as(weight))


class _Group(nn.Sequential):
    """Two convolutions, with a pooling after the first."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.conv1 = _convolution(in_channels, out_channels)
        self.pool = nn.MaxPool2d(2)
        self.norm1 = _norm(out_channels)
        self.act1 = nn.GELU()
        self.conv2 = _convolution(out_channels, out_channels)
        self.norm2 = _norm(out_channels)
        self.act2 = nn.GELU()


@register("model", "airbench")
def airbench(*, width: float = 1.0, num_classes: int = 10, input_shape: Shape = (3, 32, 32)) -> nn.Module:
    """Network of airbench94: a fixed 2x2 convolution and six 3x3 convolutions, 1.97 million parameters at width 1.

    The first layer whitens 2x2 patches. Its weights are computed from 5,000 training images before the training, and
    only its bias is trained. The first filters of each other convolution begin as the identity. Scales of batch
    normalisation are 1.

    Args:
        width: Factor of the channel counts 64, 256 and 256.
        num_classes: Number of classes.
        input_shape: Shape (C, H, W) of an image. Any size from 9x9 works, because the last pooling is adaptive.

    Raises:
        ValueError: `width` gives a channel count that is not a positive integer, or images are too small.

    Source: K. Jordan, "94 % on CIFAR-10 in 3.29 seconds on a single GPU", arXiv 2404.00498.
    """
    check_side(input_shape, SMALLEST_SIDE)
    return Airbench(tuple(scaled(channels, width, GROUPS[0]) for channels in GROUPS), input_shape[0], num_classes)


def _convolution(in_channels: int, out_channels: int) -> nn.Conv2d:
    layer = nn.Conv2d(in_channels, out_channels, kernel_size=3, padding=1, bias=False)
    nn.init.dirac_(layer.weight.data[:in_channels])
    return layer


def _norm(channels: int) -> nn.BatchNorm2d:
    norm = nn.BatchNorm2d(channels, eps=1e-12, momentum=0.4)
    norm.weight.requires_grad_(False)
    return norm
