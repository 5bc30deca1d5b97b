"""Index spaces: which channels belong together, and which operations freeze them."""

import pytest
import torch
from cuttable_nets import SHAPE, reading, resnet
from torch import nn

from suite.engine.network.channels.spaces import find_index_spaces
from suite.ops import convert
from tasks.models.resnet9 import resnet9


def test_resnet9_has_the_spaces_that_its_blocks_share():
    spaces = find_index_spaces(resnet9(width=0.125), (3, 32, 32))
    shared = spaces["down.conv"]
    assert shared.producers == ["down.conv", "residual1.branch.block2.conv"]
    assert shared.consumers == ["residual1.branch.block1.conv", "expand.conv"]
    assert not shared.frozen
    assert not shared.may_be_empty
    assert spaces["input"].frozen_because == "the model's input"
    assert spaces["classifier"].frozen_because == "the model's output"
    assert (spaces.model_input, spaces.model_outputs) == ("input", {"classifier"})
    assert spaces["residual1.branch.block1.conv"].may_be_empty
    branch = spaces.removable_branches["residual1.branch"]
    assert branch.spaces == ("residual1.branch.block1.conv",)
    assert branch.outputs == ("down.conv",)
    assert spaces.positions["down.conv"] == 256
    assert spaces.positions["reduce.conv"] == 36


def test_prunetrain_5_downsample_layers_consume_one_node_and_produce_the_next():
    model = resnet(5)
    spaces = find_index_spaces(model, SHAPE)
    layers = [name for name, layer in model.named_modules() if isinstance(layer, (nn.Conv2d, nn.Linear))]
    number = {name: index + 1 for index, name in enumerate(layers)}  # the paper's code counts from conv1; 34 is the fc

    def node(name):
        (space,) = (spaces[space] for space in spaces.outputs_of(name))
        return sorted(map(number.get, space.producers)), sorted(map(number.get, space.consumers))

    assert node(layers[0]) == ([1, 3, 5, 7, 9, 11], [2, 4, 6, 8, 10, 12, 14])
    assert node(layers[12]) == ([13, 14, 16, 18, 20, 22], [15, 17, 19, 21, 23, 25])
    assert node(layers[24]) == ([24, 25, 27, 29, 31, 33], [26, 28, 30, 32, 34])
    assert len(spaces.removable_branches) == 15


def test_positions_of_a_linear_layer_are_the_rows_of_an_image():
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.Flatten(2), nn.Linear(64, 5), nn.Flatten(), nn.Linear(20, 2))
    spaces = find_index_spaces(model, (3, 8, 8))
    assert spaces.positions == {"0": 64, "2": 4, "4": 1}
    assert spaces.input_sizes == {"0": (8, 8), "2": (), "4": ()}


def test_a_layer_that_runs_twice_unites_the_channels_of_both_runs():
    shared = nn.Conv2d(4, 4, 3, padding=1)
    spaces = find_index_spaces(reading(shared, shared, nn.Conv2d(4, 2, 8), nn.Flatten()), SHAPE)
    assert spaces["0"].producers == ["0", "1"]
    assert spaces["0"].consumers == ["1", "3"]
    assert sorted(one.axis for one in spaces["0"].slices if one.tensor == "1.weight") == [0, 1]
    assert [entry for entry in spaces["0"].counts if entry[0] == "1"] == [
        ("1", "out_channels", 1),
        ("1", "in_channels", 1),
    ]


class Standardised(nn.Conv2d):
    """A convolution that computes something different from its base class."""

    def forward(self, x):
        return nn.functional.conv2d(x, self.weight - self.weight.mean(), self.bias)


@pytest.mark.parametrize("layer", [Standardised(4, 6, 1), nn.Sequential(nn.Flatten(2), nn.Conv1d(4, 6, 1))])
def test_layers_of_other_classes_are_not_followed(layer):
    spaces = find_index_spaces(reading(layer, nn.Flatten(), nn.Linear(384, 2)), SHAPE)
    assert spaces["0"].frozen
    assert any("'1" in step for step in spaces.not_followed)


def entries(spaces, space, tensor, axis):
    (found,) = (one.entries for one in spaces[space].slices if (one.tensor, one.axis) == (tensor, axis))
    return found.tolist()


def test_a_group_of_a_grouped_convolution_is_one_channel():
    layers = nn.BatchNorm2d(4), nn.Conv2d(4, 8, 3, groups=2), nn.BatchNorm2d(8), nn.Conv2d(8, 2, 6)
    spaces = find_index_spaces(reading(*layers), SHAPE)
    assert spaces["0"].size == 2
    assert (spaces["0"].producers, spaces["0"].consumers) == (["0", "2"], ["4"])
    assert spaces.grouped == {"2"}
    assert entries(spaces, "0", "0.weight", 0) == [[0, 1], [2, 3]]
    assert entries(spaces, "0", "2.weight", 0) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert not [one for one in spaces["0"].slices if (one.tensor, one.axis) == ("2.weight", 1)]
    assert {entry for entry in spaces["0"].counts if entry[0] == "2"} == {
        ("2", "groups", 1),
        ("2", "in_channels", 2),
        ("2", "out_channels", 4),
    }


def test_a_depthwise_convolution_hands_its_channels_on():
    spaces = find_index_spaces(reading(nn.Conv2d(4, 8, 3, groups=4), nn.Conv2d(8, 2, 6)), SHAPE)
    assert spaces["0"].size == 4
    assert entries(spaces, "0", "2.weight", 1) == [[0, 1], [2, 3], [4, 5], [6, 7]]


def test_finding_leaves_the_model_as_it_was_and_works_on_planned_layers():
    model = resnet(1).train()
    model[1].eval()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    modes = [module.training for module in model.modules()]
    bare = find_index_spaces(model, SHAPE)
    assert [module.training for module in model.modules()] == modes
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert not any(module._forward_hooks for module in model.modules())
    convert(model)
    assert dict(find_index_spaces(model, SHAPE)) == dict(bare)
