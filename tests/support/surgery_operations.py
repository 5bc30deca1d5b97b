"""Operations between two layers whose channels surgery cuts, and operations that freeze them."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations

SHAPE, WIDTH = (3, 8, 8), 12


class Op(nn.Module):
    """A function of the output of the first layer, with parameters."""

    def __init__(self, function, **members):
        super().__init__()
        self.function = function
        for name, member in members.items():
            setattr(self, name, member)

    def forward(self, x):
        return self.function(self, x)


class Net(nn.Module):
    """A convolution, the operation, and layers behind it of which one can always be cut."""

    def __init__(self, between):
        super().__init__()
        self.first, self.norm, self.between = nn.Conv2d(3, WIDTH, 3, padding=1), nn.BatchNorm2d(WIDTH), between
        with torch.no_grad():
            out = between(torch.zeros(2, WIDTH, 8, 8))
        self.positions = tuple(range(2, out.ndim)) if out.ndim != 3 else (1,)
        self.other = nn.Linear(out.shape[-1], 7) if out.ndim < 4 else nn.Conv2d(out.shape[1], 7, 3, padding=1)
        self.head = nn.Linear(7, 5)

    def forward(self, x):
        x = torch.relu(self.other(self.between(F.silu(self.norm(self.first(x))))))
        return self.head(x.mean(self.positions) if self.positions else x)


def parameter(*shape):
    return nn.Parameter(torch.randn(shape))


def gate(last):
    return Op(
        lambda m, x: x * m.last(m.up(F.relu(m.down(F.adaptive_avg_pool2d(x, 1))))),
        down=nn.Conv2d(WIDTH, 5, 1),
        up=nn.Conv2d(5, WIDTH, 1),
        last=last,
    )


def shuffled(m, x):
    images, channels, height, width = x.shape
    x = x.view(images, 3, channels // 3, height, width)
    return torch.transpose(x, 1, 2).contiguous().view(images, channels, height, width)


def gated(m, x):
    left, right = torch.chunk(x, 2, 1)
    return left * torch.sigmoid(right)


def shuffle_block(m, x):
    """ShuffleNet's block: one half passes, the other goes through a layer, and both are shuffled."""
    left, right = x.chunk(2, dim=1)
    x = torch.cat((left, m.conv(right)), dim=1)
    images, channels, height, width = x.size()
    return x.reshape(images, 2, channels // 2, height, width).transpose(1, 2).reshape(images, channels, height, width)


# The operation, and how many channels of `first` can be removed on their own.
CUT = {
    "group norm of one channel each": (lambda: nn.GroupNorm(WIDTH, WIDTH), 12),
    "group norm": (lambda: nn.GroupNorm(4, WIDTH), 4),
    "group norm and groups that do not align": (
        lambda: nn.Sequential(nn.GroupNorm(4, WIDTH), nn.Conv2d(WIDTH, WIDTH, 1, groups=6)),
        2,
    ),
    "group norm of a concatenation": (
        lambda: nn.Sequential(Op(lambda m, x: torch.cat([x, x], 1)), nn.GroupNorm(6, 2 * WIDTH)),
        3,
    ),
    "instance norm": (lambda: nn.InstanceNorm2d(WIDTH), 12),
    "instance norm with everything": (lambda: nn.InstanceNorm2d(WIDTH, affine=True, track_running_stats=True), 12),
    "layer norm of positions": (lambda: nn.LayerNorm((8, 8)), 12),
    "squeeze and excitation": (lambda: gate(nn.Sigmoid()), 12),
    "gate of positions": (lambda: Op(lambda m, x: x * torch.sigmoid(m.gate(x)), gate=nn.Conv2d(WIDTH, 1, 1)), 12),
    "prelu": (nn.PReLU, 12),
    "prelu by channel": (lambda: nn.PReLU(WIDTH), 12),
    "chunk": (lambda: Op(lambda m, x: torch.cat(x.chunk(3, dim=1), 1)), 4),
    "chunks swapped": (lambda: Op(lambda m, x: torch.cat(x.chunk(2, 1)[::-1], 1)), 6),
    "gated linear unit": (lambda: Op(gated), 6),
    "split by a share": (lambda: Op(lambda m, x: torch.cat(x.split(x.shape[1] // 2, dim=1), 1)), 6),
    "split of rows": (lambda: Op(lambda m, x: torch.cat(x.split(3, dim=2), 2)), 12),
    "channel shuffle": (lambda: Op(shuffled), 4),
    "channel shuffle module": (lambda: nn.ChannelShuffle(4), 3),
    "channel shuffle function": (lambda: Op(lambda m, x: F.channel_shuffle(x, 2)), 6),
    "two shuffles": (lambda: nn.Sequential(nn.ChannelShuffle(2), Op(shuffled)), 2),
    "shuffle block": (lambda: Op(shuffle_block, conv=nn.Conv2d(6, 6, 1)), 6),
    "pixel shuffle": (lambda: nn.PixelShuffle(2), 3),
    "pixel shuffle function": (lambda: Op(lambda m, x: F.pixel_shuffle(x, 2)), 3),
    "pixel unshuffle": (lambda: nn.PixelUnshuffle(2), 12),
    "flatten": (nn.Flatten, 12),
    "flatten by view": (lambda: Op(lambda m, x: F.max_pool2d(x, 4).view(x.size(0), -1)), 12),
    "channels last, then flat": (lambda: Op(lambda m, x: x.permute(0, 2, 3, 1).flatten(1)), 12),
    "tokens": (lambda: Op(lambda m, x: x.flatten(2).transpose(1, 2)), 12),
    "one token": (lambda: Op(lambda m, x: x.flatten(2).transpose(1, 2)[:, 0]), 12),
    "linear on channels last": (
        lambda: Op(lambda m, x: m.linear(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2), linear=nn.Linear(WIDTH, 6)),
        12,
    ),
    "mean over space": (lambda: Op(lambda m, x: x.mean((2, 3))), 12),
    "mean, one axis at a time": (lambda: Op(lambda m, x: torch.sum(x.mean(-1), dim=2)), 12),
    "mean over tokens": (lambda: Op(lambda m, x: x.flatten(2).transpose(1, 2).mean(dim=1)), 12),
    "mean, squeezed": (lambda: Op(lambda m, x: F.adaptive_avg_pool2d(x, 1).squeeze(3).squeeze(2)), 12),
    "one layer twice": (lambda: Op(lambda m, x: m.conv(x) + m.conv(x.relu()), conv=nn.Conv2d(WIDTH, WIDTH, 1)), 12),
    "one layer after itself": (lambda: Op(lambda m, x: m.conv(m.conv(x)) + x, conv=nn.Conv2d(WIDTH, WIDTH, 1)), 12),
    "depthwise": (lambda: nn.Conv2d(WIDTH, WIDTH, 3, padding=1, groups=WIDTH), 12),
    "added parameter": (lambda: Op(lambda m, x: x + m.shift, shift=parameter(1, WIDTH, 1, 1)), 12),
    "added parameter of positions": (lambda: Op(lambda m, x: x + m.shift, shift=parameter(WIDTH, 8, 8)), 12),
    "layer scale": (
        lambda: Op(lambda m, x: m.conv(x) * m.scale + x, conv=nn.Conv2d(WIDTH, WIDTH, 1), scale=parameter(WIDTH, 1, 1)),
        12,
    ),
    "scale by brackets": (lambda: Op(lambda m, x: x * m.scale[:, None, None], scale=parameter(WIDTH)), 12),
    "scale by a view": (lambda: Op(lambda m, x: x * m.scale.view(1, -1, 1, 1), scale=parameter(WIDTH)), 12),
    "scale of tokens": (lambda: Op(lambda m, x: x.flatten(2).transpose(1, 2) * m.scale, scale=parameter(WIDTH)), 12),
    "scale used twice": (
        lambda: Op(
            lambda m, x: m.conv(x * m.scale) * m.scale, scale=parameter(WIDTH, 1, 1), conv=nn.Conv2d(WIDTH, WIDTH, 1)
        ),
        12,
    ),
    "parameter on another axis": (
        lambda: Op(lambda m, x: (x.transpose(1, 2) * m.scale).transpose(1, 2), scale=parameter(WIDTH, 1)),
        12,
    ),
    "softmax over positions": (lambda: Op(lambda m, x: x.flatten(2).softmax(-1).unsqueeze(3)), 12),
    "larger image": (lambda: nn.Upsample(scale_factor=2), 12),
    "all channels by brackets": (lambda: Op(lambda m, x: x[:, :, ::2, 1:]), 12),
}


# The operation, and the reason why the channels of `first` are frozen.
FROZEN = {
    "layer norm of channels last": (
        lambda: Op(lambda m, x: m.norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2), norm=nn.LayerNorm(WIDTH)),
        "'between.norm' is a LayerNorm, which normalises all channels together",
    ),
    "layer norm of everything": (
        lambda: nn.LayerNorm((WIDTH, 8, 8)),
        "'between' is a LayerNorm, which normalises all channels together",
    ),
    "group norm of one group": (lambda: nn.GroupNorm(1, WIDTH), "'between' is a GroupNorm of one group"),
    "computed scale": (lambda: parametrizations.weight_norm(nn.BatchNorm2d(WIDTH)), "'between.weight' is computed"),
    "function of group norm": (lambda: Op(lambda m, x: F.group_norm(x, 3)), "'group_norm' is not understood"),
    "split of fixed size": (
        lambda: Op(lambda m, x: torch.cat(x.split(4, 1), 1)),
        "'split' takes parts of a fixed size",
    ),
    "split of several sizes": (
        lambda: Op(lambda m, x: torch.cat(x.split([4, 8], 1), 1)),
        "'split' takes parts of a fixed size; 'split' takes parts of different size",
    ),
    "chunks of different size": (
        lambda: Op(lambda m, x: torch.cat(x.chunk(5, 1), 1)),
        "'chunk' takes parts of different size",
    ),
    "narrowed": (lambda: Op(lambda m, x: x.narrow(1, 2, 6)), "'narrow' is not understood"),
    "first channels": (lambda: Op(lambda m, x: x[:, :6]), "'getitem' takes channels from or to a fixed number"),
    "every other channel": (lambda: Op(lambda m, x: x[:, ::2]), "'getitem' is not understood"),
    "one channel": (lambda: Op(lambda m, x: x[:, 3].unsqueeze(1)), "'getitem' is not understood"),
    "selected": (lambda: Op(lambda m, x: x.index_select(1, torch.arange(4))), "'index_select' is not understood"),
    "shuffle of a stated size": (
        lambda: Op(lambda m, x: x.view(x.size(0), 3, 4, 8, 8).transpose(1, 2).reshape(x.size(0), 12, 8, 8)),
        "'view' is not understood",
    ),
    "flatten of a stated size": (lambda: Op(lambda m, x: x.view(-1, WIDTH * 64)), "'view' is not understood"),
    "mean over channels": (lambda: Op(lambda m, x: x - x.mean(1, keepdim=True)), "'mean' is not understood"),
    "softmax over channels": (lambda: Op(lambda m, x: x.softmax(1)), "'softmax' is not understood"),
    "grouped transposed convolution": (
        lambda: nn.ConvTranspose2d(WIDTH, 8, 2, stride=2, groups=4),
        "'between' is a ConvTranspose2d, whose inputs are not cut",
    ),
    "parameter read twice": (
        lambda: Op(lambda m, x: x * m.scale * m.scale.mean(), scale=parameter(WIDTH, 1, 1)),
        "'mean' is not understood",
    ),
    "size of a parameter": (
        lambda: Op(lambda m, x: x * m.scale / m.scale.shape[0], scale=parameter(WIDTH, 1, 1)),
        "reads it",
    ),
    "constant": (lambda: Op(lambda m, x: x + torch.ones(WIDTH, 1, 1)), "'add' is not understood"),
    "scale of a stated size": (
        lambda: Op(lambda m, x: x * m.scale.view(1, WIDTH, 1, 1), scale=parameter(WIDTH)),
        "'view' is not understood",
    ),
    "padded channels": (lambda: Op(lambda m, x: F.pad(x, (0, 0, 0, 0, 1, 1))), "'pad' is not understood"),
    "matrix product": (lambda: Op(lambda m, x: x.flatten(2) @ x.flatten(2).transpose(1, 2)), "'matmul'"),
}
