"""Small networks whose channels and branches can be cut, and what tests do with them."""

import copy
import functools

import torch
from torch import nn

from suite.engine.network.channels.spaces import find_index_spaces
from suite.method import ReconfigPlan
from tasks.models.resnet9 import resnet9

SHAPE = (3, 8, 8)


class Basic(nn.Module):
    """A basic residual block; the shortcut is a projection if the shape changes."""

    residual_branch = "branch"

    def __init__(self, in_channels, out_channels, stride=1):
        super().__init__()
        self.branch = nn.Sequential(
            nn.Conv2d(in_channels, out_channels, 3, stride, 1, bias=False),
            nn.BatchNorm2d(out_channels),
            nn.ReLU(),
            nn.Conv2d(out_channels, out_channels, 3, 1, 1, bias=False),
            nn.BatchNorm2d(out_channels),
        )
        self.shortcut = nn.Sequential()
        if stride != 1:
            self.shortcut = nn.Sequential(
                nn.Conv2d(in_channels, out_channels, 1, stride, bias=False), nn.BatchNorm2d(out_channels)
            )

    def forward(self, x):
        return torch.relu(self.branch(x) + self.shortcut(x))


def resnet(blocks):
    """Return a net in PruneTrain's layout: three stages of basic blocks, two of which begin with a projection."""
    stages = [Basic(4, 4) for _ in range(blocks)]
    for width in (6, 8):
        stages += [Basic(stages[-1].branch[3].out_channels, width, 2)] + [
            Basic(width, width) for _ in range(blocks - 1)
        ]
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1, bias=False),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        *stages,
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 5),
    )


def reading(*layers):
    """Return a net whose first layer turns the image into 4 channels."""
    return nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), *layers)


class Bottleneck(nn.Module):
    residual_branch = "branch"

    def __init__(self, channels, inner):
        super().__init__()
        self.branch = nn.Sequential(
            nn.Conv2d(channels, inner, 1, bias=False),
            nn.BatchNorm2d(inner),
            nn.ReLU(),
            nn.Conv2d(inner, inner, 3, padding=1, bias=False),
            nn.BatchNorm2d(inner),
            nn.ReLU(),
            nn.Conv2d(inner, channels, 1, bias=False),
            nn.BatchNorm2d(channels),
        )

    def forward(self, x):
        return torch.relu(x + self.branch(x))


def plain():
    """Return a plain net with biases, a flattening of 2x2 positions and a hidden linear layer."""
    return nn.Sequential(
        *(nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(6, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten()),
        *(nn.Linear(32, 10), nn.ReLU(), nn.Linear(10, 5)),
    )


def bottleneck():
    layers = (Bottleneck(4, 6), Bottleneck(4, 6), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 5))
    return reading(nn.BatchNorm2d(4), nn.ReLU(), *layers)


def grouped():
    """Return a net with ResNeXt's block behind a depthwise convolution."""

    class Grouped(nn.Module):
        residual_branch = "branch"

        def __init__(self):
            super().__init__()
            self.branch = nn.Sequential(
                *(nn.Conv2d(6, 8, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU()),
                *(nn.Conv2d(8, 8, 3, padding=1, groups=4, bias=False), nn.BatchNorm2d(8), nn.ReLU()),
                *(nn.Conv2d(8, 6, 1, bias=False), nn.BatchNorm2d(6)),
            )

        def forward(self, x):
            return torch.relu(x + self.branch(x))

    depthwise = nn.Conv2d(4, 4, 3, padding=1, groups=4), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 6, 1)
    return reading(
        nn.BatchNorm2d(4), nn.ReLU(), *depthwise, Grouped(), Grouped(), nn.MaxPool2d(8), nn.Flatten(), nn.Linear(6, 5)
    )


class Dense(nn.Module):
    """A block that concatenates its input and the output of a convolution."""

    def __init__(self, channels, growth):
        super().__init__()
        self.norm, self.conv = nn.BatchNorm2d(channels), nn.Conv2d(channels, growth, 3, padding=1)

    def forward(self, x):
        return torch.cat([x, self.conv(torch.relu(self.norm(x)))], 1)


def concatenating():
    return reading(Dense(4, 3), Dense(7, 3), nn.BatchNorm2d(10), nn.MaxPool2d(4), nn.Flatten(), nn.Linear(40, 5))


NETS = {
    "plain": (plain, SHAPE),
    "basic": (lambda: resnet(2), SHAPE),
    "bottleneck": (bottleneck, SHAPE),
    "grouped": (grouped, SHAPE),
    "concatenating": (concatenating, SHAPE),
    "resnet9": (lambda: resnet9(width=1 / 16), (3, 16, 16)),
}


def trained(net, seed=0):
    """Return a net in float64 whose normalisations look trained, its spaces, and a batch of images."""
    *found, state = _trained(net, seed)
    torch.set_rng_state(state)
    return copy.deepcopy(found)


@functools.cache
def _trained(net, seed):
    build, shape = NETS[net]
    torch.manual_seed(seed)
    model = build().double()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            for tensor in (module.weight, module.bias, module.running_mean):
                tensor.data.normal_(0.3, 0.5)
            module.running_var.uniform_(0.5, 2.0)
    spaces, images = find_index_spaces(model, shape), torch.randn(6, *shape, dtype=torch.float64)
    return model, spaces, images, torch.get_rng_state()


def silence(model, spaces, channels):
    """Set the channels {space: [index, ...]} to zero in all producers and consumers."""
    layers = dict(model.named_modules())
    for name, indices in channels.items():
        for one in spaces[name].slices:
            if isinstance(layers[one.module], (nn.Conv2d, nn.Linear)) and one.attribute == "weight":
                layers[one.module].weight.data.movedim(one.axis, 0)[one.entries[indices].flatten()] = 0.0


def every_other(spaces):
    """Return some channels of every space that may shrink: different ones in each space, and fewer than all."""
    free = [space for space in spaces.values() if not space.frozen]
    return {space.name: list(range(index % 2, space.size - 1, 2 + index % 2)) for index, space in enumerate(free)}


def without(spaces, channels):
    kept = {name: [i for i in spaces[name].original if i not in indices] for name, indices in channels.items()}
    return ReconfigPlan(kept=kept)


def snapshot(model, spaces):
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}, copy.deepcopy(dict(spaces))


def step(model, optimizer, images):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(images), torch.arange(len(images)) % 5).backward()
    optimizer.step()


def assert_equal_steps(cut, masked, images, index_map, rtol=1e-6, atol=1e-9):
    """Check that a step of a cut network, given with its optimizer, is that of the masked network."""
    for model, optimizer in (cut, masked):
        step(model, optimizer, images)
    for name, parameter in masked[0].named_parameters():
        found, wanted = cut[0].get_parameter(name).data, index_map(name, parameter.data)
        torch.testing.assert_close(found, wanted, rtol=rtol, atol=atol, msg=name)


def make_optimizer(kind, model):
    if kind == "adam":
        return torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=0.01)
