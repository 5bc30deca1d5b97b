"""Channel gating: layers at a node are cut individually, and gather and scatter its channels."""

import copy
import json

import pytest
import torch
from cuttable_nets import SHAPE, assert_equal_steps, make_optimizer, step, trained
from torch import nn

from methods.prunetrain import PruneTrain
from suite.engine.cost.flops import count_model
from suite.engine.network.channels.spaces import find_index_spaces
from suite.engine.network.channels.surgery import apply_plan
from suite.method import ReconfigPlan
from suite.ops import apply, convert
from tasks.models.cifar_resnet import resnet32

NODES = {"basic": ("0", "5.shortcut.0", "7.shortcut.0"), "bottleneck": ("0",), "resnet9": ("down.conv", "expand.conv")}


def nodes(net, spaces):
    """Return the nodes of a net's residual stages, by the names of their spaces."""
    found = tuple(
        name
        for name, space in spaces.items()
        if not space.frozen and not space.may_be_empty and max(len(space.producers), len(space.consumers)) > 1
    )
    assert len(found) == len(NODES[net])
    return found


def silence_own(model, spaces, gated):
    """Set different channels of each layer at the nodes to zero; return the remaining ones by the new space."""
    layers, kept = dict(model.named_modules()), {}
    for node in gated:
        for number, one in enumerate(one for one in spaces[node].slices if one.tensor.endswith("weight")):
            name = one.tensor.removesuffix(".weight")
            if isinstance(layers[name], (nn.Conv2d, nn.Linear)):
                gone = list(range(number % 2, spaces[node].size - 1, 2))
                layers[name].weight.data.movedim(one.axis, 0)[one.entries[gone].flatten()] = 0.0
                kept[f"{name}:{'in' if one.axis else 'out'}"] = [i for i in spaces[node].original if i not in gone]
    return kept


def without_bias(net):
    """Return a trained net whose first convolution has no bias, which dead channels of a gated layer would emit."""
    model, spaces, images = trained(net)
    if net == "bottleneck":
        model[0].bias = None
        spaces = find_index_spaces(model, SHAPE)
    return model, spaces, images


nets = pytest.mark.parametrize("net", NODES)


@nets
def test_what_each_layer_does_not_need_is_cut_and_outputs_stay(net):
    model, spaces, images = without_bias(net)
    gated = nodes(net, spaces)
    kept = silence_own(model, spaces, gated)
    before = model.eval()(images)
    widths = {name: layer.num_features for name, layer in model.named_modules() if isinstance(layer, nn.BatchNorm2d)}
    apply_plan(model, ReconfigPlan(gated=gated, kept=kept), spaces, None)
    torch.testing.assert_close(model(images), before, rtol=1e-12, atol=1e-12)
    for name, layer in model.named_modules():
        if isinstance(layer, nn.Conv2d):
            assert layer.weight.shape[:2] == (layer.out_channels, layer.in_channels)
            if f"{name}:out" in kept:
                assert layer.out_channels == len(kept[f"{name}:out"])
        elif isinstance(layer, nn.BatchNorm2d):
            assert layer.num_features == widths[name]  # the node keeps all of its channels
    for name, channels in kept.items():
        assert spaces[name].original == channels
    assert all(spaces[name].frozen_because == "its layers are gated" for name in gated)


@nets
def test_prunetrain_4_the_next_step_of_a_gated_net_is_that_of_the_masked_one(net):
    model, spaces, images = without_bias(net)
    convert(model)
    optimizer = make_optimizer("sgd", model.train())
    for _ in range(2):
        step(model, optimizer, images)
    gated = nodes(net, spaces)
    kept = silence_own(model, spaces, gated)
    big, other = copy.deepcopy((model, optimizer))
    index_map = apply_plan(model, ReconfigPlan(gated=gated, kept=kept), spaces, optimizer)
    assert_equal_steps((model, optimizer), (big, other), images, index_map, rtol=1e-7)


@nets
def test_gates_are_replayed_and_load(net):
    model, spaces, images = without_bias(net)
    gated = nodes(net, spaces)
    kept = silence_own(model, spaces, gated)
    plans = [ReconfigPlan(gated=gated, kept=kept)]
    apply_plan(model, plans[0], spaces, None)
    plans.append(ReconfigPlan(kept={name: channels[1:] for name, channels in kept.items() if len(channels) > 1}))
    apply_plan(model, plans[1], spaces, None)
    again, again_spaces, _ = without_bias(net)
    for plan in json.loads(json.dumps([plan.to_json() for plan in plans])):
        apply_plan(again, ReconfigPlan.from_json(plan), again_spaces, None)
    again.load_state_dict(model.state_dict(), strict=True)
    assert torch.equal(again.eval()(images), model.eval()(images))
    assert dict(again_spaces) == dict(spaces)


def test_a_gated_branch_goes_with_its_inner_channels():
    model, spaces, images = trained("basic")
    gated = nodes("basic", spaces)
    kept = silence_own(model, spaces, gated)
    apply_plan(model, ReconfigPlan(gated=gated, kept=kept), spaces, None)
    branch = spaces.removable_branches["6.branch"]
    model[6].branch[0].weight.data.zero_()
    model[6].branch[3].weight.data.zero_()
    before = model.eval()(images)
    apply_plan(model, ReconfigPlan(removed_branches=("6.branch",)), spaces, None)
    torch.testing.assert_close(model(images), before, rtol=1e-12, atol=1e-12)
    assert len(model[6].branch.constant) == model[5].shortcut[1].num_features
    assert not any(name.startswith("6.branch") for name in spaces)
    assert branch.name not in spaces.removable_branches


@pytest.mark.parametrize(
    ("net", "space", "reason"),
    [
        ("grouped", "6", "'6' has a bias, which its removed channels emit too"),
        ("grouped", "0", "grouped convolution"),
        ("concatenating", "0", "come from several index spaces"),
        ("plain", "11", "the model's output"),
        ("plain", "nothing", "there is no index space 'nothing' to gate"),
        ("basic", "3.branch.0", "it is inside a removable branch"),
    ],
)
def test_what_cannot_be_gated_is_refused_and_nothing_changed(net, space, reason):
    model, spaces, _ = trained(net)
    if net == "grouped":
        model[0].bias = model[0].bias if space != "0" else None
        spaces = find_index_spaces(model, SHAPE)
    elif net == "concatenating":
        model[0].bias = None
        spaces = find_index_spaces(model, SHAPE)
    name = next((name for name, found in spaces.items() if space in found.producers), space)
    before = copy.deepcopy(dict(spaces)), list(model.state_dict())
    with pytest.raises(ValueError, match=reason):
        apply_plan(model, ReconfigPlan(gated=(name,)), spaces, None)
    assert (dict(spaces), list(model.state_dict())) == before


class Named(nn.Module):
    """A residual sum of layers whose input is passed by name."""

    def __init__(self):
        super().__init__()
        self.first, self.second = (nn.Conv2d(count, 8, 3, padding=1, bias=False) for count in (3, 8))
        self.head = nn.Linear(8, 4, bias=False)

    def forward(self, images):
        x = self.first(input=images)
        return self.head(input=(x + self.second(input=x)).mean((2, 3)))


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_a_gated_layer_takes_its_input_by_name(layout):
    torch.manual_seed(0)
    model, images = Named(), torch.randn(2, *SHAPE).contiguous(memory_format=layout)
    assert count_model(model, SHAPE)["macs"] == 64 * 9 * 8 * (3 + 8) + 8 * 4
    spaces = find_index_spaces(model, SHAPE)
    with torch.no_grad():
        model.second.weight[:, ::2] = 0.0
        before = model(images)
        plan = ReconfigPlan(gated=("first",), kept={"second:in": spaces["first"].original[1::2]})
        apply_plan(model, plan, spaces, None)
        assert model.second.weight.shape[1] == 4
        torch.testing.assert_close(model(images), before)


def test_a_gate_is_put_once():
    model, spaces, _ = trained("basic")
    gated = nodes("basic", spaces)
    apply_plan(model, ReconfigPlan(gated=gated), spaces, None)
    with pytest.raises(ValueError, match="its layer is gated already"):
        apply_plan(model, ReconfigPlan(gated=("3.branch.0:in",)), spaces, None)


def test_gates_keep_the_memory_format():
    model, spaces, images = trained("basic")
    gated = nodes("basic", spaces)
    apply_plan(model, ReconfigPlan(gated=gated, kept=silence_own(model, spaces, gated)), spaces, None)
    model = model.to(memory_format=torch.channels_last)
    seen = []
    for layer in model.modules():
        if isinstance(layer, nn.Conv2d):
            layer.register_forward_hook(lambda layer, inputs, output: seen.extend([inputs[0], output]))
    model(images.contiguous(memory_format=torch.channels_last))
    assert all(tensor.is_contiguous(memory_format=torch.channels_last) for tensor in seen)


def pruned(gating):
    """Return a ResNet-32 whose layers have different dead channels, pruned by PruneTrain."""
    torch.manual_seed(0)
    model = resnet32(width=0.25)
    method = PruneTrain(interval=1, gating=gating)
    hooks = apply(model, method, input_shape=(3, 32, 32), num_classes=10, epochs=2, batch_size=4)
    generator = torch.Generator().manual_seed(1)
    for name, layer in hooks.ctx.layers.items():
        for axis in (0, 1):
            if not (name == "conv1" and axis == 1) and not (name == "fc" and axis == 0):
                dead = torch.rand(layer.weight.shape[axis], generator=generator) < 0.3
                layer.weight.data.movedim(axis, 0)[dead] = 1e-5
    images = torch.randn(4, 3, 32, 32, generator=generator)
    plan = hooks.plan_epoch_end()
    before = model.eval()(images)
    hooks.apply_plan(plan)
    torch.testing.assert_close(model(images), before, rtol=1e-4, atol=1e-5)
    return plan, model, hooks, images


def test_prunetrain_gated_executes_fewer_flops_than_by_the_union_and_goes_on():
    _, union, _, _ = pruned(gating=False)
    plan, gated, hooks, images = pruned(gating=True)
    assert len(plan.gated) == 3
    flops = [count_model(model, (3, 32, 32))["inference_flops"] for model in (union, gated)]
    assert flops[1] < 0.95 * flops[0]
    assert hooks.method._nodes(hooks.ctx) == {}
    # Another reconfiguration cuts a channel of one layer that has died in the meantime.
    (name,) = (name for name in hooks.ctx.spaces if name == "layer2.1.branch.conv1:in")
    space = hooks.ctx.spaces[name]
    hooks.ctx.layers["layer2.1.branch.conv1"].weight.data[:, 0] = 0.0
    first = space.original[0]
    plan = hooks.plan_epoch_end()
    assert first not in plan.kept[name]
    assert not plan.gated
    before = gated.eval()(images)
    hooks.apply_plan(plan)
    torch.testing.assert_close(gated(images), before, rtol=1e-4, atol=1e-5)
    nn.functional.cross_entropy(gated.train()(images), torch.arange(4)).backward()
    assert all(parameter.grad is not None for parameter in gated.parameters())
