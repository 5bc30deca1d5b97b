"""Carrying out a `ReconfigPlan`: outputs, optimizer state, branches, replay, and plans that are refused."""

import copy
import json

import pytest
import torch
from cuttable_nets import (
    NETS,
    assert_equal_steps,
    every_other,
    make_optimizer,
    silence,
    snapshot,
    step,
    trained,
    without,
)
from torch import nn

from suite.engine.network.channels.surgery import apply_plan
from suite.method import ReconfigPlan
from suite.ops import convert
from tasks.models.resnet9 import resnet9

nets = pytest.mark.parametrize("net", NETS)


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


@nets
@pytest.mark.parametrize("kind", ["sgd", "adam"])
def test_prunetrain_4_the_next_step_is_that_of_the_masked_big_model(net, kind):
    model, spaces, images = trained(net)
    optimizer = make_optimizer(kind, model.train())
    for _ in range(2):
        step(model, optimizer, images)
    dead = every_other(spaces)
    silence(model, spaces, dead)
    big, big_optimizer = copy.deepcopy((model, optimizer))

    index_map = apply_plan(model, without(spaces, dead), spaces, optimizer)
    big_parameters = dict(big.named_parameters())
    key = "exp_avg" if kind == "adam" else "momentum_buffer"
    for name, parameter in model.named_parameters():
        old = big_optimizer.state[big_parameters[name]][key]
        assert torch.equal(optimizer.state[parameter][key], index_map(name, old)), name
        assert optimizer.state[parameter][key].shape == parameter.shape
    assert_equal_steps((model, optimizer), (big, big_optimizer), images, index_map, rtol=1e-7)


def test_parameters_stay_the_same_objects_and_train_on_while_an_old_loss_is_held():
    model, spaces, images = trained("resnet9")
    convert(model)
    parameters = list(model.parameters())
    optimizer = make_optimizer("sgd", model)
    held = nn.functional.cross_entropy(model(images), torch.arange(6) % 5)  # keeps gradient accumulators alive
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
            momentum = optimizer.state[layer.weight]["momentum_buffer"]  # a 1x1 kernel may have either strides
            assert momentum.is_contiguous(memory_format=torch.channels_last), name


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


# Refusals


@pytest.mark.parametrize(
    ("plan", "reason"),
    [
        (ReconfigPlan(kept={"down.con": [0]}), "did you mean 'down.conv'"),
        (ReconfigPlan(kept={"down.conv": [2, 1]}), "do not ascend"),
        (ReconfigPlan(kept={"down.conv": [0, 99]}), "cannot keep channel 99"),
        (ReconfigPlan(kept={"expand.conv": [0, 1, 2]}), "cannot keep channel 1,"),  # it was removed before
        (ReconfigPlan(kept={"down.conv": []}), "has to keep a channel"),
        (ReconfigPlan(kept={"residual2.branch.block1.conv": []}), "remove its branch instead"),
        (ReconfigPlan(kept={"input": [0]}), "frozen: the model's input"),
        (ReconfigPlan(removed_branches=("residual1.branch",)), "cannot be removed"),  # it was removed before
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
    # The valid part of the plan must not be carried out either.
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
