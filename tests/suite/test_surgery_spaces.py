"""Which channels belong together: the index spaces that tracing finds, and what it refuses to understand."""

import pytest
import torch
from torch import nn

from suite.ops import convert
from suite.surgery import find_index_spaces
from tasks.models.resnet9 import resnet9

SHAPE = (3, 8, 8)


class Basic(nn.Module):
    """A basic residual block; the shortcut is a projection where the shape changes."""

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
    """PruneTrain's layout: three stages of basic blocks, the second and third of which begin with a projection."""
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
    """A net whose first layer reads the image into 4 channels."""
    return nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), *layers)


class Lambda(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


def test_resnet9_has_the_spaces_that_its_blocks_share():
    spaces = find_index_spaces(resnet9(width=0.125), (3, 32, 32))
    assert list(spaces) == [
        "input",
        "prep.conv",
        "down.conv",
        "residual1.branch.block1.conv",
        "expand.conv",
        "residual2.branch.block1.conv",
        "reduce.conv",
        "classifier",
    ]
    shared = spaces["down.conv"]
    assert shared.producers == ["down.conv", "residual1.branch.block2.conv"]
    assert shared.consumers == [("residual1.branch.block1.conv", 1), ("expand.conv", 1)]
    assert not shared.frozen
    assert not shared.may_be_empty
    assert {axis for axis in shared.axes if axis[0].startswith(("down.norm", "residual1.branch.block2.norm"))} == {
        (f"{norm}.{tensor}", 0, 1)
        for norm in ("down.norm", "residual1.branch.block2.norm")
        for tensor in ("weight", "bias", "running_mean", "running_var")
    }
    assert spaces["input"].frozen_because == "the model's input"
    assert spaces["classifier"].frozen_because == "the model's output"
    assert (spaces.model_input, spaces.model_outputs) == ("input", {"classifier"})
    assert spaces["residual1.branch.block1.conv"].may_be_empty
    branch = spaces.removable_branches["residual1.branch"]
    assert branch.spaces == ("residual1.branch.block1.conv",)
    assert branch.output == "down.conv"
    assert spaces.positions["down.conv"] == 256
    assert spaces.positions["reduce.conv"] == 36


def test_prunetrain_5_downsample_layers_consume_one_node_and_produce_the_next():
    model = resnet(5)
    spaces = find_index_spaces(model, SHAPE)
    layers = [name for name, layer in model.named_modules() if isinstance(layer, (nn.Conv2d, nn.Linear))]
    number = {name: index + 1 for index, name in enumerate(layers)}  # the paper's code counts from conv1; 34 is the fc

    def node(name):
        space = spaces[spaces.output_of[name]]
        return sorted(map(number.get, space.producers)), sorted(number[layer] for layer, _ in space.consumers)

    assert node(layers[0]) == ([1, 3, 5, 7, 9, 11], [2, 4, 6, 8, 10, 12, 14])
    assert node(layers[12]) == ([13, 14, 16, 18, 20, 22], [15, 17, 19, 21, 23, 25])
    assert node(layers[24]) == ([24, 25, 27, 29, 31, 33], [26, 28, 30, 32, 34])
    assert len(spaces.removable_branches) == 15


def test_a_linear_layer_behind_a_flattening_has_a_block_of_inputs_for_each_channel():
    spaces = find_index_spaces(
        reading(nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64, 10), nn.ReLU(), nn.Linear(10, 2)), SHAPE
    )
    assert spaces["0"].consumers == [("3", 16)]
    assert ("3.weight", 1, 16) in spaces["0"].axes
    assert spaces["3"].consumers == [("5", 1)]


@pytest.mark.parametrize(
    "through",
    [
        lambda x: x.mean((2, 3)),
        lambda x: torch.flatten(nn.functional.adaptive_avg_pool2d(x, 1), 1),
        lambda x: nn.functional.adaptive_max_pool2d(0.5 * torch.relu(x), 1).view(x.size(0), -1),
        lambda x: nn.functional.dropout(x * torch.sigmoid(x) + 1, 0.5, False).amax((2, 3)),
    ],
)
def test_functions_that_leave_channels_alone_are_followed(through):
    spaces = find_index_spaces(reading(Lambda(through), nn.Linear(4, 2)), SHAPE)
    assert not spaces["0"].frozen
    assert spaces["0"].consumers == [("2", 1)]


@pytest.mark.parametrize(
    ("layers", "frozen", "reason"),
    [
        ([nn.Conv2d(4, 8, 3, groups=2), nn.Conv2d(8, 2, 6), nn.Flatten()], {"0", "1"}, "'1' is a grouped convolution"),
        ([nn.GroupNorm(2, 4), nn.Conv2d(4, 2, 8), nn.Flatten()], {"0"}, "'1' is not understood"),
        ([Lambda(lambda x: torch.cat([x, x], 1)), nn.Conv2d(8, 2, 8), nn.Flatten()], {"0"}, "'cat' is not understood"),
        ([Lambda(lambda x: x.view(-1, 256)), nn.Linear(256, 2)], {"0"}, "'view' is not understood"),
        ([Lambda(lambda x: x.chunk(2, 1)[0]), nn.Conv2d(2, 2, 8), nn.Flatten()], {"0"}, "'chunk' is not understood"),
        ([Lambda(lambda x: x.mean(1, keepdim=True) + x), nn.Conv2d(4, 2, 8), nn.Flatten()], {"0"}, "'mean'"),
        ([Lambda(lambda x: x + torch.ones(4, 1, 1)), nn.Conv2d(4, 2, 8), nn.Flatten()], {"0"}, "'add' is not"),
        (
            [nn.utils.parametrizations.weight_norm(nn.Conv2d(4, 8, 3)), nn.Conv2d(8, 2, 6), nn.Flatten()],
            {"0"},
            "'1' is not understood",
        ),
    ],
)  # fmt: skip
def test_what_is_not_understood_freezes_the_spaces_that_it_touches(layers, frozen, reason):
    spaces = find_index_spaces(reading(*layers), SHAPE)
    assert {name for name in spaces if spaces[name].frozen} >= frozen
    assert all(reason in spaces[name].frozen_because for name in frozen)
    # An understood layer behind the trouble is free: its own channels are not touched.
    spaces = (
        find_index_spaces(reading(*layers[:-1], nn.Conv2d(2, 3, 1), nn.Flatten()), SHAPE) if len(layers) == 3 else {}
    )
    assert all(not space.frozen for name, space in spaces.items() if space.producers == ["2"])


def test_a_model_that_cannot_be_traced_is_frozen_as_a_whole():
    model = reading(Lambda(lambda x: x if x.sum() > 0 else -x), nn.Conv2d(4, 2, 8), nn.Flatten())
    spaces = find_index_spaces(model, SHAPE)
    assert list(spaces) == ["0", "2"]
    assert all("cannot be traced" in space.frozen_because for space in spaces.values())
    assert spaces.positions == {"0": 64, "2": 1}


def test_a_layer_that_runs_twice_unites_the_channels_of_both_runs():
    shared = nn.Conv2d(4, 4, 3, padding=1)
    spaces = find_index_spaces(reading(shared, shared, nn.Conv2d(4, 2, 8), nn.Flatten()), SHAPE)
    assert spaces["0"].producers == ["0", "1"]
    assert spaces["0"].consumers == [("1", 1), ("3", 1)]
    assert sorted(axis for axis in spaces["0"].axes if axis[0] == "1.weight") == [
        ("1.weight", 0, 1),
        ("1.weight", 1, 1),
    ]


def test_a_branch_whose_dead_channels_would_leave_no_constant_is_fixed():
    class Deep(nn.Module):
        residual_branch = "branch"

        def __init__(self, last):
            super().__init__()
            chain = [nn.Conv2d(4, 4, 1), nn.ReLU(), nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), last]
            self.branch = nn.Sequential(*chain)

        def forward(self, x):
            return x + self.branch(x)

    fixed = find_index_spaces(reading(Deep(nn.Conv2d(4, 4, 3, padding=1)), nn.Flatten(), nn.Linear(256, 2)), SHAPE)
    assert not fixed.removable_branches
    assert "pads" in fixed.fixed_branches["1.branch"]
    assert not any(space.may_be_empty for space in fixed.values())
    free = find_index_spaces(reading(Deep(nn.Conv2d(4, 4, 1)), nn.Flatten(), nn.Linear(256, 2)), SHAPE)
    assert free.removable_branches["1.branch"].spaces == ("1.branch.0", "1.branch.2")


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


def test_torchvision_nets_are_understood_but_for_grouped_convolutions():
    torchvision = pytest.importorskip("torchvision")
    resnet18 = find_index_spaces(torchvision.models.resnet18(num_classes=3), (3, 32, 32))
    assert [name for name in resnet18 if resnet18[name].frozen] == ["input", "fc"]
    assert len(resnet18["layer2.0.conv2"].producers) == 3
    mobile = find_index_spaces(torchvision.models.mobilenet_v2(num_classes=3, width_mult=0.25), (3, 32, 32))
    assert "grouped" in mobile["features.0.0"].frozen_because
    assert not mobile["features.18.0"].frozen
