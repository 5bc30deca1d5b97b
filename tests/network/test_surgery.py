"""Carrying out a `ReconfigPlan`: outputs, optimizer state, branches, replay, and plans that are refused."""

import copy
import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_surgery_spaces import SHAPE, Basic, reading, resnet
from torch import nn

from suite.method import ReconfigPlan
from suite.network.channels.branches import ChannelConstant
from suite.network.channels.spaces import find_index_spaces
from suite.network.channels.surgery import apply_plan
from suite.ops import convert
from tasks.models.resnet9 import resnet9


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
    """A plain net with biases, a flattening of 2x2 places and a hidden linear layer."""
    return nn.Sequential(
        *(nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(6, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten()),
        *(nn.Linear(32, 10), nn.ReLU(), nn.Linear(10, 5)),
    )


def bottleneck():
    layers = (Bottleneck(4, 6), Bottleneck(4, 6), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 5))
    return reading(nn.BatchNorm2d(4), nn.ReLU(), *layers)


def grouped():
    """ResNeXt's block, behind a depthwise convolution."""

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
    """Its input and what a convolution makes of it, strung together."""

    def __init__(self, channels, made):
        super().__init__()
        self.norm, self.conv = nn.BatchNorm2d(channels), nn.Conv2d(channels, made, 3, padding=1)

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
nets = pytest.mark.parametrize("net", NETS)


def trained(net, seed=0):
    """A net in float64 whose normalisations look trained, its spaces, and a batch of images."""
    build, shape = NETS[net]
    torch.manual_seed(seed)
    model = build().double()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            for tensor in (module.weight, module.bias, module.running_mean):
                tensor.data.normal_(0.3, 0.5)
            module.running_var.uniform_(0.5, 2.0)
    return model, find_index_spaces(model, shape), torch.randn(6, *shape, dtype=torch.float64)


def silence(model, spaces, channels):
    """Set to zero, in all producers and consumers, the channels {space: [index, ...]}."""
    layers = dict(model.named_modules())
    for name, indices in channels.items():
        for one in spaces[name].slices:
            layer, _, tensor = one.tensor.rpartition(".")
            if isinstance(layers[layer], (nn.Conv2d, nn.Linear)) and tensor == "weight":
                layers[layer].weight.data.movedim(one.axis, 0)[one.entries[indices].flatten()] = 0.0


def every_other(spaces):
    """Some channels of every space that may shrink, in each space others and fewer than all."""
    free = [space for space in spaces.values() if not space.frozen]
    return {space.name: list(range(index % 2, space.size - 1, 2 + index % 2)) for index, space in enumerate(free)}


def without(spaces, channels):
    kept = {name: [i for i in spaces[name].original if i not in indices] for name, indices in channels.items()}
    return ReconfigPlan(kept=kept)


def snapshot(model, spaces):
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}, copy.deepcopy(dict(spaces))


# Output


@nets
def test_prunetrain_3_outputs_stay_when_dead_channels_are_cut_out(net):
    model, spaces, images = trained(net)
    silence(model, spaces, every_other(spaces))
    before = model.eval()(images)
    sizes = {name: space.size for name, space in spaces.items()}
    apply_plan(model, without(spaces, every_other(spaces)), spaces, None)
    assert all(space.size < sizes[name] for name, space in spaces.items() if not space.frozen)
    torch.testing.assert_close(model(images), before, rtol=1e-12, atol=1e-12)


@nets
def test_attributes_of_every_layer_count_the_channels_that_are_left(net):
    model, spaces, _ = trained(net)
    apply_plan(model, without(spaces, every_other(spaces)), spaces, None)
    for layer in model.modules():
        if isinstance(layer, nn.Conv2d):
            assert layer.weight.shape[:2] == (layer.out_channels, layer.in_channels // layer.groups)
        elif isinstance(layer, nn.Linear):
            assert layer.weight.shape == (layer.out_features, layer.in_features)
        elif isinstance(layer, nn.BatchNorm2d):
            assert {layer.num_features} == {len(tensor) for tensor in (layer.weight, layer.bias, layer.running_var)}


# Optimizer


def step(model, optimizer, images):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(images), torch.arange(len(images)) % 5).backward()
    optimizer.step()


def make_optimizer(kind, model):
    if kind == "adam":
        return torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=0.01)


@nets
@pytest.mark.parametrize("kind", ["sgd", "adam"])
def test_prunetrain_4_the_next_step_is_that_of_the_masked_big_model(net, kind):
    model, spaces, images = trained(net)
    optimizer = make_optimizer(kind, model.train())
    for _ in range(2):
        step(model, optimizer, images)
    dead = every_other(spaces)
    silence(model, spaces, dead)
    big = copy.deepcopy(model)
    big_optimizer = make_optimizer(kind, big)
    big_optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))

    index_map = apply_plan(model, without(spaces, dead), spaces, optimizer)
    big_parameters = dict(big.named_parameters())
    key = "exp_avg" if kind == "adam" else "momentum_buffer"
    for name, parameter in model.named_parameters():
        old = big_optimizer.state[big_parameters[name]][key]
        assert torch.equal(optimizer.state[parameter][key], index_map(name, old)), name
        assert optimizer.state[parameter][key].shape == parameter.shape

    step(model, optimizer, images)
    step(big, big_optimizer, images)
    for name, parameter in model.named_parameters():
        wanted = index_map(name, big_parameters[name].data)
        torch.testing.assert_close(parameter.data, wanted, rtol=1e-7, atol=1e-9, msg=name)


def test_prunetrain_4_momentum_of_a_normalisation_bias_is_its_own():
    model, spaces, images = trained("resnet9")
    optimizer = make_optimizer("sgd", model)
    step(model, optimizer, images)
    weight, bias = (optimizer.state[tensor]["momentum_buffer"].clone() for tensor in model.down.norm.parameters())
    assert not torch.equal(weight, bias)
    apply_plan(model, ReconfigPlan(kept={"down.conv": [0, 3, 7]}), spaces, optimizer)
    assert torch.equal(optimizer.state[model.down.norm.weight]["momentum_buffer"], weight[[0, 3, 7]])
    assert torch.equal(optimizer.state[model.down.norm.bias]["momentum_buffer"], bias[[0, 3, 7]])


def test_parameters_stay_the_same_objects_and_train_on_while_an_old_loss_is_held():
    model, spaces, images = trained("resnet9")
    convert(model)
    parameters = list(model.parameters())
    optimizer = make_optimizer("sgd", model)
    held = nn.functional.cross_entropy(model(images), torch.arange(6) % 5)  # keeps autograd's accumulators alive
    held.backward()
    apply_plan(model, without(spaces, every_other(spaces)), spaces, optimizer)
    assert all(after is before for after, before in zip(model.parameters(), parameters, strict=True))
    assert model.down.conv.weight.grad is None
    step(model, optimizer, images)
    assert model.down.conv.weight.grad.shape == model.down.conv.weight.shape
    del held


def test_memory_format_stays():
    model, spaces, _ = trained("basic")
    apply_plan(model, without(spaces, every_other(spaces)), spaces, None)
    assert all(tensor.is_contiguous() for tensor in model.parameters())
    assert model[5].shortcut[0].weight.stride(1) == model[5].shortcut[0].weight.stride(2) == 1

    model, spaces, images = trained("basic")
    model = model.to(memory_format=torch.channels_last)
    optimizer = make_optimizer("sgd", model)
    step(model, optimizer, images.contiguous(memory_format=torch.channels_last))
    apply_plan(model, without(spaces, every_other(spaces)), spaces, optimizer)
    for name, layer in model.named_modules():
        if isinstance(layer, nn.Conv2d):
            wanted = torch.empty(layer.weight.shape, memory_format=torch.channels_last).stride()
            assert layer.weight.stride() == wanted, name
            momentum = optimizer.state[layer.weight]["momentum_buffer"]  # of a 1x1 kernel, the strides may be either
            assert momentum.is_contiguous(memory_format=torch.channels_last), name


# Branches


def dead_branch(net, branch, inner=-1):
    """A trained net with one branch's inner space dead, and that branch."""
    model, spaces, images = trained(net)
    branch = spaces.removable_branches[branch]
    name = branch.spaces[inner]
    silence(model, spaces, {name: spaces[name].original})
    return model, spaces, images, branch


@pytest.mark.parametrize(
    ("net", "branch", "inner"),
    [
        ("resnet9", "residual1.branch", 0),
        ("resnet9", "residual2.branch", 0),
        ("basic", "3.branch", 0),
        ("basic", "5.branch", 0),  # the first of its stage
        ("bottleneck", "3.branch", 0),
        ("bottleneck", "4.branch", 1),
        ("grouped", "7.branch", 0),
    ],
)
def test_prunetrain_7_a_dead_branch_leaves_its_constant_and_the_outputs(net, branch, inner):
    model, spaces, images, branch = dead_branch(net, branch, inner)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0, momentum=0.9)  # momentum fills, weights stay
    step(model.train(), optimizer, images)
    inside = [id(parameter) for parameter in model.get_submodule(branch.name).parameters()]
    assert set(inside) <= {id(parameter) for parameter in optimizer.state}
    before = model.eval()(images)
    index_map = apply_plan(model.train(), ReconfigPlan(removed_branches=(branch.name,)), spaces, optimizer)

    left = model.get_submodule(branch.name)
    assert left.training
    torch.testing.assert_close(model.eval()(images), before, rtol=1e-12, atol=1e-12)
    assert isinstance(left, ChannelConstant)
    assert left.constant.abs().max() > 0.1
    saved, left.constant = left.constant, torch.zeros_like(left.constant)
    assert not torch.allclose(model(images), before)  # without the constant the outputs would not stay
    left.constant = saved
    # Nothing of the branch is left anywhere.
    held = [id(parameter) for group in optimizer.param_groups for parameter in group["params"]]
    assert not set(inside) & set(held)
    assert set(held) == {id(parameter) for parameter in model.parameters()}
    assert not set(inside) & {id(parameter) for parameter in optimizer.state}
    assert branch.name not in spaces.removable_branches
    assert not any(name in spaces for name in branch.spaces)
    assert not index_map.exists(branch.layers[0])
    assert index_map.exists("")
    step(model.train(), optimizer, images)


def test_prunetrain_7_a_stage_entry_keeps_its_shortcut():
    model, spaces, images, branch = dead_branch("basic", "5.branch")
    apply_plan(model, ReconfigPlan(removed_branches=(branch.name,)), spaces, None)
    assert isinstance(model[5], Basic)
    assert isinstance(model[5].shortcut[0], nn.Conv2d)
    assert spaces[branch.outputs[0]].producers == ["5.shortcut.0", "6.branch.3"]
    assert model(images).shape == (6, 5)


def test_channels_go_with_a_branch_and_after_it():
    model, spaces, images, branch = dead_branch("resnet9", "residual1.branch")
    silence(model, spaces, {"down.conv": [0, 1, 5]})
    before = model.eval()(images)
    kept = [i for i in spaces["down.conv"].original if i not in (0, 1)]
    apply_plan(model, ReconfigPlan(kept={"down.conv": kept}, removed_branches=(branch.name,)), spaces, None)
    torch.testing.assert_close(model(images), before, rtol=1e-12, atol=1e-12)
    apply_plan(model, ReconfigPlan(kept={"down.conv": [i for i in kept if i != 5]}), spaces, None)
    torch.testing.assert_close(model(images), before, rtol=1e-12, atol=1e-12)
    assert len(model.residual1.branch.constant) == spaces["down.conv"].size == len(kept) - 1
    # The pruned model is itself one that can be traced.
    again = find_index_spaces(model, (3, 16, 16))
    assert {name: space.size for name, space in again.items()} == {name: space.size for name, space in spaces.items()}


def test_a_branch_that_is_not_dead_leaves_what_its_last_normalisation_emits_for_zero():
    model, spaces, _ = trained("resnet9")
    apply_plan(model, ReconfigPlan(removed_branches=("residual1.branch",)), spaces, None)
    norm = trained("resnet9")[0].residual1.branch.block2.norm
    emitted = norm.bias - norm.weight * norm.running_mean / (norm.running_var + norm.eps).sqrt()
    torch.testing.assert_close(model.residual1.branch.constant, emitted.relu(), rtol=1e-12, atol=1e-12)


# Replay, other models, index map


@nets
def test_prunetrain_10_plans_replayed_on_a_new_model_give_one_that_loads(net):
    model, spaces, images = trained(net)
    channels = every_other(spaces)
    plans = [without(spaces, channels)]
    apply_plan(model, plans[0], spaces, None)
    second = {name: space.original[1:] for name, space in spaces.items() if not space.frozen and space.size > 1}
    plans.append(ReconfigPlan(kept=second, removed_branches=tuple(spaces.removable_branches)[:1]))
    apply_plan(model, plans[1], spaces, None)

    again, again_spaces, _ = trained(net, seed=1)
    for plan in json.loads(json.dumps([plan.to_json() for plan in plans])):
        apply_plan(again, ReconfigPlan.from_json(plan), again_spaces, None)
    again.load_state_dict(model.state_dict(), strict=True)
    assert torch.equal(again.eval()(images), model.eval()(images))
    assert dict(again_spaces) == dict(spaces)
    assert again_spaces.removable_branches == spaces.removable_branches


def test_an_average_of_the_weights_is_cut_alike():
    model, spaces, images = trained("resnet9")
    average = copy.deepcopy(model)
    plan = ReconfigPlan(kept=without(spaces, every_other(spaces)).kept, removed_branches=("residual2.branch",))
    apply_plan(model, plan, spaces, None, extra=[average])
    assert torch.equal(average.eval()(images), model.eval()(images))


@nets
def test_the_index_map_gives_what_is_left_of_every_tensor(net):
    model, spaces, _ = trained(net)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    plan = ReconfigPlan(without(spaces, every_other(spaces)).kept, tuple(spaces.removable_branches)[:1])
    index_map = apply_plan(model, plan, spaces, None)
    after = model.state_dict()
    for name, tensor in before.items():
        assert index_map.exists(name) == (name in after)
        if name in after:
            assert torch.equal(index_map(name, tensor), after[name])


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_prunetrain_9_cuts_compose_and_counts_never_grow(data):
    model, spaces, images = trained("basic")
    original = copy.deepcopy(model)
    for _ in range(3):
        sizes = {name: space.size for name, space in spaces.items()}
        kept = {}
        for name, space in spaces.items():
            if not space.frozen and data.draw(st.booleans()):
                kept[name] = sorted(data.draw(st.sets(st.sampled_from(space.original), min_size=1)))
        apply_plan(model, ReconfigPlan(kept=kept), spaces, None)
        assert all(space.size <= sizes[name] for name, space in spaces.items())
    assert spaces["input"].size == 3
    assert model.eval()(images).shape == (6, 5)
    weight = original[5].branch[0].weight
    wanted = weight[spaces["5.branch.0"].original][:, spaces["0"].original]
    assert torch.equal(model[5].branch[0].weight, wanted)


# Refusals


@pytest.mark.parametrize(
    ("plan", "reason"),
    [
        (ReconfigPlan(kept={"down.con": [0]}), "did you mean 'down.conv'"),
        (ReconfigPlan(kept={"down.conv": [2, 1]}), "do not ascend"),
        (ReconfigPlan(kept={"down.conv": [1, 1]}), "do not ascend"),
        (ReconfigPlan(kept={"down.conv": [0, 99]}), "cannot keep channel 99"),
        (ReconfigPlan(kept={"expand.conv": [0, 1, 2]}), "cannot keep channel 1,"),  # it went before
        (ReconfigPlan(kept={"down.conv": []}), "has to keep a channel"),
        (ReconfigPlan(kept={"residual2.branch.block1.conv": []}), "remove its branch instead"),
        (ReconfigPlan(kept={"input": [0]}), "frozen: the model's input"),
        (ReconfigPlan(kept={"classifier": [0]}), "frozen: the model's output"),
        (ReconfigPlan(removed_branches=("residual1.branch",)), "cannot be removed"),  # it went before
        (ReconfigPlan(removed_branches=("residual2.branch", "residual2.branch")), "removed twice"),
    ],
)
def test_a_plan_that_cannot_be_carried_out_changes_nothing(plan, reason):
    model, spaces, images = trained("resnet9")
    optimizer = make_optimizer("sgd", model)
    step(model, optimizer, images)
    first = ReconfigPlan(kept={"expand.conv": [0, 2, 3]}, removed_branches=("residual1.branch",))
    apply_plan(model, first, spaces, optimizer)
    tensors, found = snapshot(model, spaces)
    state = copy.deepcopy(optimizer.state_dict())
    # A part that could be carried out comes along, and is not.
    plan = ReconfigPlan(kept={"prep.conv": [0, 1], **plan.kept}, removed_branches=plan.removed_branches)
    with pytest.raises(ValueError, match=reason):
        apply_plan(model, plan, spaces, optimizer)
    assert {name: tensor.shape for name, tensor in model.state_dict().items()} == {
        name: tensor.shape for name, tensor in tensors.items()
    }
    assert all(torch.equal(tensors[name], tensor) for name, tensor in model.state_dict().items())
    assert dict(spaces) == found
    assert str(optimizer.state_dict()) == str(state)


def test_an_extra_model_that_differs_changes_nothing():
    model, spaces, _ = trained("resnet9")
    tensors, _ = snapshot(model, spaces)
    other = resnet9(width=1 / 8)
    with pytest.raises(ValueError, match="extra model"):
        apply_plan(model, ReconfigPlan(kept={"prep.conv": [0]}), spaces, None, extra=[other])
    assert all(torch.equal(tensors[name], tensor) for name, tensor in model.state_dict().items())


def test_branch_whose_dead_end_is_no_constant_is_refused_and_left():
    """Zeros in the first convolution alone: the second pads the constant behind it, which leaves a border."""
    torch.manual_seed(0)
    model = resnet9(width=1 / 16)
    model.residual2.branch.block1.conv.weight.data.zero_()
    model.residual2.branch.block1.norm.bias.data.fill_(1.0)
    before = {name: tensor.shape for name, tensor in model.state_dict().items()}
    spaces = find_index_spaces(model, (3, 16, 16))
    plan = ReconfigPlan(removed_branches=("residual2.branch",))
    with pytest.raises(ValueError, match="its output is not constant"):
        apply_plan(model, plan, spaces, None)
    assert {name: tensor.shape for name, tensor in model.state_dict().items()} == before
    assert "residual2.branch" in spaces.removable_branches


@pytest.mark.parametrize("training", [True, False])
def test_what_replaces_a_branch_is_in_its_mode(training):
    model = resnet9(width=1 / 16).train(training)
    spaces = find_index_spaces(model, (3, 16, 16))
    apply_plan(model, ReconfigPlan(removed_branches=("residual1.branch",)), spaces, None)
    assert model.residual1.branch.training == training
