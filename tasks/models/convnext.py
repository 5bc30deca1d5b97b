"""A small ConvNeXt: depthwise convolutions, and perceptrons of 1x1 convolutions."""

from __future__ import annotations

from typing import Annotated

import torch
import torch.nn.functional as F
from annotated_types import Interval
from torch import Tensor, nn

from suite.registry import register
from tasks.models.residual import Shape, check_side
from tasks.models.stochastic_depth import rates, stochastic_depth

DEPTHS = (2, 2, 6, 2)
WIDTHS = (40, 80, 160, 320)
EPSILON = 1e-6  # of layer normalisation
SCALE = 1e-6  # initial scale of each branch
STD = 0.02  # of initial weights, truncated at two standard deviations
SMALLEST_SIDE = 32  # pixels: the stem and three stages divide the side by 32


class ChannelNorm(nn.LayerNorm):
    """Layer normalisation over the channels of images (N, C, H, W)."""

    def forward(self, images: Tensor) -> Tensor:
        """Return images of the same shape."""
        return F.layer_norm(
            images.permute(0, 2, 3, 1), self.normalized_shape, self.weight, self.bias, self.eps
        ).permute(0, 3, 1, 2)


class ConvNeXtBlock(nn.Module):
    """A depthwise 7x7 convolution and a perceptron of 1x1 convolutions, scaled and added to the input."""

    def __init__(self, width: int, drop_path: float) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = ChannelNorm(width, EPSILON)
        self.expand = nn.Conv2d(width, 4 * width, 1)
        self.act = nn.GELU()
        self.reduce = nn.Conv2d(4 * width, width, 1)
        self.scale = nn.Parameter(torch.full((width, 1, 1), SCALE))
        self.drop_path = stochastic_depth(drop_path)

    def forward(self, images: Tensor) -> Tensor:
        """Return images (N, C, H, W)."""
        branch = self.reduce(self.act(self.expand(self.norm(self.depthwise(images)))))
        return images + self.drop_path(self.scale * branch)


class ConvNeXt(nn.Module):
    """The network of `convnext_atto`."""

    def __init__(self, drop_path: float, num_classes: int, channels: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(channels, WIDTHS[0], 4, stride=4), ChannelNorm(WIDTHS[0], EPSILON))
        probabilities = iter(rates(drop_path, sum(DEPTHS)))
        stages: list[nn.Module] = []
        before = WIDTHS[0]
        for depth, width in zip(DEPTHS, WIDTHS, strict=True):
            if width != before:
                stages += [ChannelNorm(before, EPSILON), nn.Conv2d(before, width, 2, stride=2)]
            stages += [ConvNeXtBlock(width, next(probabilities)) for _ in range(depth)]
            before = width
        self.stages = nn.Sequential(*stages)
        self.norm = nn.LayerNorm(before, EPSILON)
        self.classifier = nn.Linear(before, num_classes)
        for layer in self.modules():
            if isinstance(layer, (nn.Conv2d, nn.Linear)):
                nn.init.trunc_normal_(layer.weight, std=STD)
                assert layer.bias is not None
                nn.init.zeros_(layer.bias)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits (N, num_classes) of images (N, C, H, W)."""
        return self.classifier(self.norm(self.stages(self.stem(images)).mean((2, 3))))


@register("model", "convnext_atto")
def convnext_atto(
    *,
    drop_path: Annotated[float, Interval(ge=0, lt=1)] = 0.0,
    num_classes: int = 1000,
    input_shape: Shape = (3, 224, 224),
) -> nn.Module:
    """ConvNeXt of timm's size "atto", with perceptrons of 1x1 convolutions: 3.7 million parameters with 1,000 classes.

    Args:
        drop_path: Probability with which a training image skips the last block. It rises linearly from 0 in the first
            block.
        num_classes: Number of classes.
        input_shape: Shape (C, H, W) of an image of at least 32x32 pixels.

    Raises:
        ValueError: The image is smaller than 32x32 pixels.

    Source: Liu et al., A ConvNet for the 2020s, CVPR 2022; sizes and perceptrons of timm's `convnext_atto`.
    """
    check_side(input_shape, SMALLEST_SIDE)
    return ConvNeXt(drop_path, num_classes, input_shape[0])
