"""Surgery on random nets: the cut net computes the same as the masked net."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from suite.engine.network.channels.spaces import find_index_spaces
from suite.engine.network.channels.surgery import apply_plan
from suite.method import ReconfigPlan

SHAPE = (3, 6, 6)
STEPS = ("conv", "grouped", "depthwise", "norm", "relu", "add", "cat", "gate", "branch", "size", "count", "training")


class RandomNet(nn.Module):
    """A net of random steps; each computes an activation of 6x6 positions from earlier activations.

    Args:
        steps: (kind, number of one activation, number of another, channels); what does not fit is left out.
        flat: whether the end is a flattening of all places, or their mean.
    """

    def __init__(self, steps, flat):
        super().__init__()
        self.layers = nn.ModuleList()
        self.program, channels = [], [3]
        for kind, one, other, width in [("conv", 0, 0, 4), *steps]:
            one, other = one % len(channels), other % len(channels)
            given = channels[one]
            layer, produced = None, given
            if kind == "conv":
                layer, produced = nn.Conv2d(given, width, 3, padding=1, bias=bool(width % 2)), width
            elif kind == "grouped":
                groups = max(g for g in (1, 2, 3) if given % g == 0)
                layer, produced = nn.Conv2d(given, groups * 2, 3, padding=1, groups=groups), groups * 2
            elif kind == "depthwise":
                layer, produced = nn.Conv2d(given, given * 2, 3, padding=1, groups=given), given * 2
            elif kind == "norm":
                layer = nn.BatchNorm2d(given)
            elif kind in ("add", "gate"):
                if channels[other] != given:
                    continue
            elif kind == "cat":
                produced = given + channels[other]
            elif kind == "branch":
                layer = nn.Sequential(nn.Conv2d(given, width, 1), nn.ReLU(), nn.Conv2d(width, given, 1))
            elif kind in ("count", "training"):
                layer = nn.Conv2d(given, given, 1)
            self.layers.append(layer or nn.Identity())
            self.program.append((kind, one, other))
            channels.append(produced)
        self.flat = flat
        self.head = nn.Linear(channels[-1] * (36 if flat else 1), 5)

    def forward(self, x):
        found = [x]
        for layer, (kind, one, other) in zip(self.layers, self.program, strict=True):
            if kind == "relu":
                found.append(torch.relu(found[one]))
            elif kind == "add":
                found.append(found[one] + found[other])
            elif kind == "gate":
                found.append(found[one] * torch.sigmoid(found[other].mean((2, 3), keepdim=True)))
            elif kind == "cat":
                found.append(torch.cat((found[one], found[other]), dim=1))
            elif kind == "branch":
                found.append(found[one] + layer(found[one]))
            elif kind == "size":
                found.append(found[one] / found[one].shape[1])
            elif kind == "count":
                found.append(layer(found[one]) / layer.in_channels)
            elif kind == "training":
                found.append(found[one] + layer(found[one]) if self.training else found[one])
            else:
                found.append(layer(found[one]))
        end = found[-1]
        return self.head(end.flatten(1) if self.flat else end.mean((2, 3)))


nets = st.builds(
    RandomNet,
    st.lists(
        st.tuples(st.sampled_from(STEPS), st.integers(0, 8), st.integers(0, 8), st.integers(1, 5)),
        min_size=1,
        max_size=8,
    ),
    st.booleans(),
)


def outputs(model, images):
    """Return the outputs in training, with normalisation in evaluation mode, and in evaluation."""
    model.train()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eval()
    return model(images), model.eval()(images)


def masked(model, spaces, kept):
    """Set the weights to zero that read removed channels: those of consumers and of grouped convolutions."""
    layers = dict(model.named_modules())
    for name, channels in kept.items():
        gone = [index for index, channel in enumerate(spaces[name].original) if channel not in channels]
        for one in spaces[name].slices:
            layer = layers[one.module]
            if isinstance(layer, (nn.Conv2d, nn.Linear)):
                dict(model.named_parameters())[one.tensor].data.movedim(one.axis, 0)[one.entries[gone].flatten()] = 0.0


@pytest.mark.filterwarnings("ignore:Initializing zero-element")
@settings(max_examples=25)
@given(data=st.data())
def test_surgery_by_random_kept_sets_equals_masking(data):
    torch.manual_seed(data.draw(st.integers(0, 1000)))
    model = data.draw(nets).double()
    for layer in model.modules():
        if isinstance(layer, nn.BatchNorm2d):
            for tensor in (layer.weight, layer.bias, layer.running_mean):
                tensor.data.normal_(0.3, 0.5)
    images = torch.randn(4, *SHAPE, dtype=torch.float64)
    spaces = find_index_spaces(model, SHAPE)
    assert not spaces.not_followed
    for _ in range(2):
        kept = {
            name: sorted(data.draw(st.sets(st.sampled_from(space.original), min_size=1)))
            for name, space in spaces.items()
            if not space.frozen
        }
        masked(model, spaces, kept)
        before = outputs(model, images)
        parameters = sum(parameter.numel() for parameter in model.parameters())
        shrinks = any(len(channels) < spaces[name].size for name, channels in kept.items())
        apply_plan(model, ReconfigPlan(kept=kept), spaces, None)
        torch.testing.assert_close(outputs(model, images), before, rtol=1e-10, atol=1e-10)
        assert (sum(parameter.numel() for parameter in model.parameters()) < parameters) == shrinks
        assert {name: space.original for name, space in spaces.items() if name in kept} == kept
        for space in spaces.values():
            for one in space.slices:
                assert len(one.entries) == space.size
