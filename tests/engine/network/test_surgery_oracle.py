"""Index spaces against torch-pruning's groups: the entries of tensors that are removed with a channel.

torch-pruning is right where convolutions are not grouped; there the two have to agree, channel by channel.
"""

import pytest
import torch
from cuttable_nets import bottleneck, plain, resnet
from torch import nn

from suite.choices import build_model
from suite.engine.network.channels.spaces import find_index_spaces

torch_pruning = pytest.importorskip("torch_pruning")

CIFAR = (3, 32, 32)


class Concatenating(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 3, padding=1, bias=False)
        self.left = nn.Conv2d(6, 4, 1, bias=False)
        self.right = nn.Conv2d(6, 5, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(9)
        self.last = nn.Conv2d(9, 6, 3, padding=1, bias=False)
        self.classifier = nn.Linear(6, 5)

    def forward(self, x):
        x = self.stem(x)
        joined = torch.relu(self.norm(torch.cat((self.left(x), self.right(x)), 1)))
        return self.classifier((self.last(joined) + x).mean((2, 3)))


NETS = {
    "plain": (plain, (3, 8, 8)),
    "basic": (lambda: resnet(2), (3, 8, 8)),
    "bottleneck": (bottleneck, (3, 8, 8)),
    "concatenating": (Concatenating, (3, 8, 8)),
    "resnet32": (lambda: build_model("resnet32[width=0.25]", CIFAR, 10), CIFAR),
    "resnet56": (lambda: build_model("resnet56[width=0.25]", CIFAR, 10), CIFAR),
    "vgg11": (lambda: build_model("vgg11[width=0.125]", CIFAR, 10), CIFAR),
    "resnet50": (lambda: build_model("resnet50", (3, 64, 64), 10), (3, 64, 64)),
}


def ours(spaces, space, channel):
    """Return what is removed with a channel of a space: tensor, axis and position."""
    return {
        (one.tensor, one.axis, place)
        for one in spaces[space].slices
        if one.tensor.endswith(".weight")
        for place in one.entries[channel].tolist()
    }


def theirs(graph, model, layer, channel):
    """Return the same according to torch-pruning, for an output channel of a layer."""
    names = {module: name for name, module in model.named_modules()}
    group = graph.get_pruning_group(layer, torch_pruning.prune_conv_out_channels, idxs=[channel])
    found = set()
    for step, places in group:
        module = step.target.module
        if isinstance(module, (nn.Conv2d, nn.Linear, nn.BatchNorm2d)):
            axis = int(step.handler.__name__ in ("prune_in_channels",))
            found |= {(f"{names[module]}.weight", axis, place) for place in places}
    return found


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name in ("resnet50", "resnet56") else []) for name in NETS]
)
def test_the_same_weights_go_with_each_channel(name):
    build, shape = NETS[name]
    torch.manual_seed(0)
    model = build().eval()
    spaces = find_index_spaces(model, shape)
    graph = torch_pruning.DependencyGraph().build_dependency(model, example_inputs=torch.randn(1, *shape))
    compared = 0
    for space in spaces.values():
        layers = [model.get_submodule(producer) for producer in space.producers]
        if space.frozen or not layers or not isinstance(layers[0], nn.Conv2d):
            continue
        weight = f"{space.producers[0]}.weight"
        (own,) = (one for one in space.slices if (one.tensor, one.axis) == (weight, 0))
        for channel in {0, space.size // 2, space.size - 1}:
            place = int(own.entries[channel])
            assert theirs(graph, model, layers[0], place) == ours(spaces, space.name, channel)
            compared += 1
    assert compared >= 3
