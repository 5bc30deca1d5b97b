"""Random networks for surgery: each follows from a seed.

A network is a random chain of blocks: residuals, splits, concatenations, shuffles, grouped and depthwise convolutions,
attention, squeeze-and-excitation, arithmetic with shapes, loops, intervals of channels, and operations that mix
channels. What is found about one: the share of the channels that can be cut; how many sets of channels the trial cut
had to freeze, because labelling alone would have cut them wrongly; and the differences of `masked_cuts`.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from masked_cuts import differences
from torch import Tensor, nn

from suite.engine.network.channels.spaces import find_index_spaces
from suite.engine.network.channels.trial_cut import CHANGES_OUTPUTS, freeze_what_fails

SHAPE, CLASSES = (3, 8, 8), 5
WIDTHS = (8, 12, 16)
MOST_BLOCKS = 6
OUTPUTS, STEP = 1e-4, 1e-5
"""Differences above these are wrong cuts. AdamW magnifies rounding errors where a gradient is zero, as that of a bias
before an instance normalisation."""
ACTIVATIONS = (nn.ReLU, nn.GELU, nn.SiLU, nn.Hardswish, nn.Tanh, nn.Identity)


class Block(nn.Module):
    """Part of a random network; reads and returns (N, C, H, W).

    Attributes:
        width: Channels of the output.
    """

    def __init__(self, draw: random.Random, width: int) -> None:
        super().__init__()
        self.width = width
        self.build(draw, width)

    def build(self, draw: random.Random, width: int) -> None:
        """Create the layers."""


def conv(draw: random.Random, given: int, out: int, size: int | None = None, groups: int = 1) -> nn.Sequential:
    """Return a convolution with a random normalisation and activation."""
    size = size or draw.choice((1, 3))
    norms: list[Callable[[], nn.Module]] = [
        lambda: nn.BatchNorm2d(out), lambda: nn.BatchNorm2d(out), nn.Identity, lambda: nn.GroupNorm(2, out),
        lambda: nn.InstanceNorm2d(out, affine=True),
    ]  # fmt: skip
    layer = nn.Conv2d(given, out, size, padding=size // 2, groups=groups, bias=draw.random() < 0.5)
    return nn.Sequential(layer, draw.choice(norms)(), draw.choice(ACTIVATIONS)())


class Plain(Block):
    """A convolution to another width, perhaps grouped."""

    def build(self, draw: random.Random, width: int) -> None:
        self.width = draw.choice(WIDTHS)
        self.layer = conv(draw, width, self.width, groups=draw.choice((1, 1, 2, 4)))

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


class Residual(Block):
    """A branch that is added, subtracted or multiplied."""

    def build(self, draw: random.Random, width: int) -> None:
        inner = draw.choice(WIDTHS)
        self.branch = nn.Sequential(conv(draw, width, inner), conv(draw, inner, width))
        self.how = draw.randrange(4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.branch(x)
        return (x + y, x - 0.5 * y, x * torch.sigmoid(y), torch.maximum(x, x + y))[self.how]


class Separable(Block):
    """An inverted residual with a depthwise convolution and squeeze-and-excitation."""

    def build(self, draw: random.Random, width: int) -> None:
        inner = 2 * width
        self.expand, self.depthwise = conv(draw, width, inner, 1), conv(draw, inner, inner, 3, groups=inner)
        self.squeeze, self.excite = nn.Conv2d(inner, 4, 1), nn.Conv2d(4, inner, 1)
        self.project = nn.Conv2d(inner, width, 1)
        self.linear = draw.random() < 0.5
        if self.linear:
            self.squeeze, self.excite = nn.Linear(inner, 4), nn.Linear(4, inner)  # type: ignore[assignment]

    def forward(self, x: Tensor) -> Tensor:
        y = self.depthwise(self.expand(x))
        if self.linear:
            weights = self.excite(F.relu(self.squeeze(y.mean((2, 3)))))[:, :, None, None]
        else:
            weights = self.excite(F.relu(self.squeeze(F.adaptive_avg_pool2d(y, 1))))
        return x + self.project(y * weights.sigmoid())


class Split(Block):
    """Parts that go different ways and are joined again, perhaps with a shuffle."""

    def build(self, draw: random.Random, width: int) -> None:
        half = width // 2
        self.layer, self.how, self.shuffles = conv(draw, half, half), draw.randrange(5), draw.randrange(3)

    def forward(self, x: Tensor) -> Tensor:
        half = x.shape[1] // 2
        if self.how == 0:
            first, second = x.chunk(2, dim=1)
        elif self.how == 1:
            first, second = x.split(half, 1)
        elif self.how == 2:
            first, second = x[:, : self.width // 2], x[:, self.width // 2 :]
        elif self.how == 3:
            first, second = torch.split(x, [self.width // 2, self.width // 2], dim=1)
        else:
            parts = [*torch.chunk(x, 2, 1)]
            first, second = parts[0], parts[-1]
        y = torch.cat([first, self.layer(second)], 1)
        if self.shuffles == 1:
            n, c, h, w = y.shape
            y = y.view(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, -1, h, w)
        return F.channel_shuffle(y, 4) if self.shuffles == 2 else y


class Dense(Block):
    """New channels behind the old ones, some of which are then left out."""

    def build(self, draw: random.Random, width: int) -> None:
        self.more = conv(draw, width, 4)
        self.left = draw.choice((0, 0, 4))
        self.width = width + 4 - self.left

    def forward(self, x: Tensor) -> Tensor:
        y = torch.cat((x, self.more(x)), dim=1)
        return y[:, self.left :] if self.left else y[:, : self.width, :, :]


class Loop(Block):
    """Layers in a loop, with conditions on shapes and arithmetic with them."""

    def build(self, draw: random.Random, width: int) -> None:
        self.layers = nn.ModuleList(conv(draw, width, width, 3) for _ in range(draw.randint(1, 3)))
        self.how = draw.randrange(5)

    def forward(self, x: Tensor, scale: float = 0.5, *, extra: Tensor | None = None) -> Tensor:
        if x.dim() != 4 or x.shape[-1] < 2:
            raise ValueError(f"a tensor of shape {tuple(x.shape)}")
        kept = []
        for number, layer in enumerate(self.layers):
            x = x + scale * layer(x)
            if number % 2 == 0:
                kept.append(x)
        if extra is not None:
            x = x + extra
        if self.how == 0:
            x = x / x.shape[1] ** 0.5
        elif self.how == 1:
            x = x * (x.size(2) / len(kept))
        elif self.how == 2:
            x = x * x.view(x.size(0), x.size(1), -1).mean(-1)[..., None, None]
        elif self.how == 3:
            x = torch.stack([x, kept[0]]).sum(0)
        return sum(kept[1:], x)


class Attention(Block):
    """Attention over the places, with heads."""

    def build(self, draw: random.Random, width: int) -> None:
        self.how, self.heads = draw.randrange(3), 2
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.own = nn.MultiheadAttention(width, 2, batch_first=True) if self.how == 2 else nn.Identity()
        self.norm = draw.choice((nn.LayerNorm, nn.Identity))(width)

    def forward(self, x: Tensor) -> Tensor:
        n, c, h, w = x.shape
        tokens = self.norm(x.flatten(2).transpose(1, 2))
        if self.how == 2:
            found, _ = self.own(tokens, tokens, tokens)
        else:
            qkv = self.qkv(tokens)
            if self.how == 0:
                q, k, v = qkv.reshape(n, h * w, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
            else:
                q, k, v = (part.view(n, h * w, self.heads, -1).transpose(1, 2) for part in qkv.chunk(3, dim=-1))
            found = self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, h * w, c))
        return x + found.transpose(1, 2).reshape(n, c, h, w)


class Constants(Block):
    """Parameters and buffers with a value per channel, and constants."""

    def build(self, draw: random.Random, width: int) -> None:
        self.scale = nn.Parameter(torch.rand(width, 1, 1) + 0.5)
        self.register_buffer("shift", torch.rand(1, width, 1, 1), persistent=draw.random() < 0.5)
        self.table = nn.ParameterList([nn.Parameter(torch.rand(width)) for _ in range(2)])
        self.plain, self.how = torch.rand(1, width, 1, 1), draw.randrange(4)

    def forward(self, x: Tensor) -> Tensor:
        x = x * self.scale + self.shift
        if self.how == 0:
            return x * self.table[0].view(1, -1, 1, 1) + self.table[1][None, :, None, None]
        if self.how == 1:
            return x + self.plain
        return x.float().to(self.scale.dtype) if self.how == 2 else x.pow(2).clamp(max=4.0)


class Mixed(Block):
    """Operations that mix channels."""

    def build(self, draw: random.Random, width: int) -> None:
        self.how = draw.randrange(7)
        self.spatial, self.weight = nn.Conv2d(2, 1, 3, padding=1), nn.Parameter(torch.randn(width, width, 1, 1) / 4)
        self.norm, self.eca = nn.LayerNorm(width), nn.Conv1d(1, 1, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        if self.how == 0:
            pooled = torch.cat([x.mean(1, keepdim=True), x.amax(1, keepdim=True)], 1)
            return x * self.spatial(pooled).sigmoid()
        if self.how == 1:
            return x + F.conv2d(x, self.weight)
        if self.how == 2:
            return self.norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        if self.how == 3:
            return x * self.eca(x.mean((2, 3)).unsqueeze(1)).transpose(1, 2).unsqueeze(-1).sigmoid()
        if self.how == 4:
            return x + torch.einsum("nchw,kc->nkhw", x, self.weight[:, :, 0, 0])
        if self.how == 5:
            return F.normalize(x, dim=1) + x.flip(1)
        return x + torch.roll(x, 1, 1) * torch.softmax(x, 1)


class Places(Block):
    """Operations on places: pooling, padding, and exchanges of places and channels."""

    def build(self, draw: random.Random, width: int) -> None:
        self.how = draw.randrange(5)
        self.layer = conv(draw, 4 * width, width, 1)
        self.shared = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        if self.how == 0:
            return F.interpolate(F.max_pool2d(x, 2), scale_factor=2.0)
        if self.how == 1:
            return F.avg_pool2d(F.pad(x, (1, 1, 1, 1)), 3, 1)
        if self.how == 2:
            return F.interpolate(self.layer(F.pixel_unshuffle(x, 2)), scale_factor=2)
        if self.how == 3:
            return self.shared(torch.relu(self.shared(x)))  # one layer twice
        return F.pixel_shuffle(torch.cat([self.shared(x)] * 4, 1), 2)[..., ::2, ::2]


BLOCKS = (Plain, Plain, Residual, Separable, Split, Split, Dense, Loop, Attention, Constants, Mixed, Places)


class RandomNetwork(nn.Module):
    """A network that follows from a seed."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        draw = random.Random(seed)
        torch.manual_seed(seed)
        width = draw.choice(WIDTHS)
        blocks: list[nn.Module] = [nn.Conv2d(SHAPE[0], width, 3, padding=1)]
        for _ in range(draw.randint(2, MOST_BLOCKS)):
            block = draw.choice(BLOCKS)(draw, width)
            width = block.width
            blocks.append(block)
        self.body, self.flattens = nn.Sequential(*blocks), draw.random() < 0.3
        self.head = nn.Linear(16 * width if self.flattens else width, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits of images, (N, CLASSES)."""
        x = self.body(images)
        return self.head(F.adaptive_avg_pool2d(x, 4).flatten(1) if self.flattens else x.mean((2, 3)))


class Found(NamedTuple):
    """What was found about a random network: names of its blocks, channels that can be cut, sets of channels that the
    trial cut froze, and differences to the masked network, which are 0 if nothing can be cut.
    """

    blocks: str
    free: int
    frozen_by_trial: int
    outputs: float
    step: float

    @property
    def is_wrong(self) -> bool:
        """Whether the network is cut wrongly."""
        return not (self.outputs < OUTPUTS and self.step < STEP)


def examine(seed: int) -> Found:
    """Build the network of a seed, cut a third of its free channels, and compare it with a masked copy."""
    model = RandomNetwork(seed)
    spaces = find_index_spaces(model, SHAPE)
    freeze_what_fails(model, spaces, SHAPE)
    produced = [space for space in spaces.values() if space.producers]
    free = sum(space.size for space in produced if not space.frozen)
    by_trial = sum(space.frozen_because == CHANGES_OUTPUTS for space in produced)
    blocks = " ".join(f"{type(block).__name__}{getattr(block, 'how', '')}" for block in model.body[1:])
    outputs, step = differences(model, spaces, SHAPE, True) if free else (0.0, 0.0)
    return Found(blocks, free, by_trial, outputs, step or 0.0)
