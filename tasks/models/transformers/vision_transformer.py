"""Vision transformers, and an MLP-Mixer, whose products are all planned layers.

Queries, keys and values are separate linear layers, so that each can be planned. Shapes of weights and function are
otherwise those of the published networks, as in timm.
"""

from __future__ import annotations

from typing import Annotated

import torch
import torch.nn.functional as F
from annotated_types import Ge, Interval
from torch import Tensor, nn

from suite.registry import register
from tasks.models.residual import Shape
from tasks.models.stochastic_depth import rates, stochastic_depth

DEPTH = 12
EPSILON = 1e-6  # of layer normalisation
STD = 0.02  # of initial weights, truncated at two standard deviations


class HeadProducts(nn.Module):
    """Scaled dot-product attention of several heads, each on its own share of the channels.

    Attributes:
        heads: Number of heads, which decreases when heads are removed.
    """

    channel_groups = "heads"

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.heads = heads

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Return tokens (N, T, C) of queries, keys and values of the same shape."""
        parts = [tokens.unflatten(2, (self.heads, -1)).transpose(1, 2) for tokens in (query, key, value)]
        return F.scaled_dot_product_attention(*parts).transpose(1, 2).flatten(2)


class Attention(nn.Module):
    """Multi-head self-attention over tokens (N, T, C)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.products = HeadProducts(heads)
        self.projection = nn.Linear(width, width)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return tokens of the same shape."""
        return self.projection(self.products(self.query(tokens), self.key(tokens), self.value(tokens)))


class Perceptron(nn.Module):
    """Two linear layers with a GELU between them, applied to the last axis."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.expand = nn.Linear(width, hidden)
        self.act = nn.GELU()
        self.reduce = nn.Linear(hidden, width)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return a tensor of the same shape."""
        return self.reduce(self.act(self.expand(tokens)))


class EncoderBlock(nn.Module):
    """Attention and a perceptron, each on normalised tokens and added to its input."""

    def __init__(self, width: int, heads: int, drop_path: float) -> None:
        super().__init__()
        self.drop_path = stochastic_depth(drop_path)
        self.norm1 = nn.LayerNorm(width, EPSILON)
        self.attention = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width, EPSILON)
        self.mlp = Perceptron(width, 4 * width)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return tokens (N, T, C)."""
        tokens = tokens + self.drop_path(self.attention(self.norm1(tokens)))
        return tokens + self.drop_path(self.mlp(self.norm2(tokens)))


class VisionTransformer(nn.Module):
    """The network of `vit_tiny` and `vit_small`."""

    def __init__(
        self, width: int, heads: int, patch: int, drop_path: float, num_classes: int, input_shape: Shape
    ) -> None:
        super().__init__()
        tokens = (input_shape[1] // patch) * (input_shape[2] // patch) + 1
        self.patches = nn.Conv2d(input_shape[0], width, patch, stride=patch)
        self.class_token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(torch.zeros(1, tokens, width))
        self.blocks = nn.Sequential(*(EncoderBlock(width, heads, rate) for rate in rates(drop_path, DEPTH)))
        self.norm = nn.LayerNorm(width, EPSILON)
        self.classifier = nn.Linear(width, num_classes)
        nn.init.trunc_normal_(self.positions, std=STD)
        nn.init.normal_(self.class_token, std=1e-6)
        for layer in self.modules():
            if isinstance(layer, nn.Linear):
                nn.init.trunc_normal_(layer.weight, std=STD)
                nn.init.zeros_(layer.bias)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits (N, num_classes) of images (N, C, H, W)."""
        tokens = self.patches(images).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.class_token.expand(tokens.shape[0], -1, -1), tokens], dim=1) + self.positions
        return self.classifier(self.norm(self.blocks(tokens))[:, 0])


class MixerBlock(nn.Module):
    """A perceptron over the tokens and one over the channels, each on normalised tokens and added to its input."""

    def __init__(self, tokens: int, width: int, drop_path: float) -> None:
        super().__init__()
        self.drop_path = stochastic_depth(drop_path)
        self.norm1 = nn.LayerNorm(width, EPSILON)
        self.token_mlp = Perceptron(tokens, width // 2)
        self.norm2 = nn.LayerNorm(width, EPSILON)
        self.channel_mlp = Perceptron(width, 4 * width)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return tokens (N, T, C)."""
        tokens = tokens + self.drop_path(self.token_mlp(self.norm1(tokens).transpose(1, 2)).transpose(1, 2))
        return tokens + self.drop_path(self.channel_mlp(self.norm2(tokens)))


class Mixer(nn.Module):
    """The network of `mlp_mixer_tiny`."""

    def __init__(
        self, width: int, depth: int, patch: int, drop_path: float, num_classes: int, input_shape: Shape
    ) -> None:
        super().__init__()
        tokens = (input_shape[1] // patch) * (input_shape[2] // patch)
        self.patches = nn.Conv2d(input_shape[0], width, patch, stride=patch)
        self.blocks = nn.Sequential(*(MixerBlock(tokens, width, rate) for rate in rates(drop_path, depth)))
        self.norm = nn.LayerNorm(width, EPSILON)
        self.classifier = nn.Linear(width, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits (N, num_classes) of images (N, C, H, W)."""
        tokens = self.patches(images).flatten(2).transpose(1, 2)
        return self.classifier(self.norm(self.blocks(tokens)).mean(1))


@register("model", "vit_tiny")
def vit_tiny(
    *,
    patch: Annotated[int, Ge(0)] = 0,
    drop_path: Annotated[float, Interval(ge=0, lt=1)] = 0.0,
    num_classes: int = 1000,
    input_shape: Shape = (3, 224, 224),
) -> nn.Module:
    """DeiT-Ti, a vision transformer of width 192 with 3 heads: 5.7 million parameters with 1,000 classes.

    Args:
        patch: Side of a patch in pixels; 0 for 16, or for an eighth of images below 128 pixels.
        drop_path: Probability with which a training image skips a branch of the last block. It rises linearly from 0 in
            the first block.
        num_classes: Number of classes.
        input_shape: Shape (C, H, W) of an image; H and W are multiples of the patch.

    Raises:
        ValueError: The image is not divisible into patches.

    Source: Touvron et al., Training data-efficient image transformers & distillation through attention, ICML 2021.
    """
    return VisionTransformer(192, 3, _patch(patch, input_shape), drop_path, num_classes, input_shape)


@register("model", "vit_small")
def vit_small(
    *,
    patch: Annotated[int, Ge(0)] = 0,
    drop_path: Annotated[float, Interval(ge=0, lt=1)] = 0.0,
    num_classes: int = 1000,
    input_shape: Shape = (3, 224, 224),
) -> nn.Module:
    """DeiT-S, a vision transformer of width 384 with 6 heads: 22.1 million parameters with 1,000 classes.

    Args:
        patch: Side of a patch in pixels; 0 for 16, or for an eighth of images below 128 pixels.
        drop_path: Probability with which a training image skips a branch of the last block. It rises linearly from 0 in
            the first block.
        num_classes: Number of classes.
        input_shape: Shape (C, H, W) of an image; H and W are multiples of the patch.

    Raises:
        ValueError: The image is not divisible into patches.

    Source: Touvron et al., Training data-efficient image transformers & distillation through attention, ICML 2021.
    """
    return VisionTransformer(384, 6, _patch(patch, input_shape), drop_path, num_classes, input_shape)


@register("model", "mlp_mixer_tiny")
def mlp_mixer_tiny(
    *,
    patch: Annotated[int, Ge(0)] = 0,
    drop_path: Annotated[float, Interval(ge=0, lt=1)] = 0.0,
    num_classes: int = 1000,
    input_shape: Shape = (3, 224, 224),
) -> nn.Module:
    """An MLP-Mixer of width 192 with 12 blocks, smaller than the published ones: all products are linear layers.

    Args:
        patch: Side of a patch in pixels; 0 for 16, or for an eighth of images below 128 pixels.
        drop_path: Probability with which a training image skips a branch of the last block. It rises linearly from 0 in
            the first block.
        num_classes: Number of classes.
        input_shape: Shape (C, H, W) of an image; H and W are multiples of the patch.

    Raises:
        ValueError: The image is not divisible into patches.

    Source: Tolstikhin et al., MLP-Mixer: An all-MLP architecture for vision, NeurIPS 2021.
    """
    return Mixer(192, DEPTH, _patch(patch, input_shape), drop_path, num_classes, input_shape)


def _patch(patch: int, input_shape: Shape) -> int:
    height, width = input_shape[1:]
    side = patch or (16 if min(height, width) >= 128 else max(1, min(height, width) // 8))
    if height % side or width % side:
        raise ValueError(f"images of {height}x{width} cannot be divided into patches of {side}x{side}; set patch=")
    return side
