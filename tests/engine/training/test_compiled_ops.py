"""Tests of the operators of planned layers in compiled graphs."""

import copy
import gc
import weakref

import pytest
import torch
from planned_layers import LAYERS, gradients, identity, planned_copy
from torch import nn

from suite.engine.network import planned_layer, products
from suite.method import Compact, OpPlan
from suite.ops import convert


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()


def together(layer, inputs, compiled=lambda function: function):
    """Loss and all gradients of one forward and backward in one function."""

    def loss(inputs):
        out = layer(inputs)
        return (out * torch.linspace(-1, 1, out.numel()).view_as(out)).sum()

    inputs = inputs.clone().requires_grad_()
    value = compiled(loss)(inputs)
    value.backward()
    return {"loss": value.detach(), "data": inputs.grad} | {n: p.grad for n, p in layer.named_parameters()}


@pytest.mark.parametrize(
    ("case", "plan"),
    [(case, OpPlan(grad_dgrad=identity)) for case in LAYERS if case not in ("conv3x3", "conv1x1", "same", "linear")]
    + [(case, OpPlan(weight_forward=identity)) for case in ("conv3x3", "linear")],
)
def test_compiled_op_is_bit_identical_to_torch(case, plan):
    torch.manual_seed(0)
    make, shape = LAYERS[case]
    layer, inputs = make(), torch.randn(shape)
    if inputs.ndim == 4:
        inputs = inputs.to(memory_format=torch.channels_last)
    planned = planned_copy(layer, plan)
    # The loss is in the graph too: at its edge, torch may change the memory format of a gradient.
    expected, got = (
        together(layer, inputs),
        together(planned, inputs, torch.compile(backend="aot_eager", fullgraph=True)),
    )
    for name, tensor in expected.items():
        assert torch.equal(tensor, got[name]), name


def test_frozen_weights_and_first_layers_get_what_they_need():
    torch.manual_seed(0)
    called = []

    def note(tensor, site):
        called.append(site.operand)
        return tensor

    layer, inputs = nn.Conv2d(4, 6, 3), torch.randn(2, 4, 6, 6)
    planned = planned_copy(layer, OpPlan(grad_dgrad=note, grad_wgrad=note))
    planned.compile(backend="aot_eager", fullgraph=True)
    planned(inputs).sum().backward()
    assert called == ["grad_wgrad"]
    called.clear()
    planned.requires_grad_(False)
    data = inputs.clone().requires_grad_()
    planned(data).sum().backward()
    assert called == ["grad_dgrad"]
    expected = inputs.clone().requires_grad_()
    layer(expected).sum().backward()
    assert torch.equal(data.grad, expected.grad)


def test_a_new_plan_needs_no_new_graph_and_another_kind_of_plan_a_new_one():
    torch.manual_seed(0)
    layer, inputs = nn.Conv2d(4, 8, 3), torch.randn(2, 4, 6, 6)
    planned = planned_copy(layer, OpPlan(grad_dgrad=identity))
    planned.compile(backend="aot_eager", fullgraph=True)
    index = torch.tensor([1, 2])
    plans = (
        (OpPlan(grad_dgrad=lambda grad, site: grad * 0), 1),
        (OpPlan(grad_shared=lambda grad, site: Compact(grad.index_select(1, index), index)), 1),
        (OpPlan(weight_forward=lambda weight, site: weight * 2), 2),
        (OpPlan(), 3),
    )
    gradients(planned, inputs)
    before = torch._dynamo.utils.counters["stats"]["unique_graphs"] - 1
    for plan, graphs in plans:
        planned.op_plan = plan
        expected = gradients(planned_copy(layer, plan), inputs)
        planned.zero_grad()
        for name, tensor in gradients(planned, inputs).items():
            torch.testing.assert_close(tensor, expected[name], rtol=1e-6, atol=1e-6)
        assert torch._dynamo.utils.counters["stats"]["unique_graphs"] - before == graphs


def test_a_graph_keeps_no_layer_alive_and_a_copy_is_another_layer():
    layer = nn.Conv2d(4, 4, 3)
    convert(nn.Sequential(layer))
    duplicate = copy.deepcopy(layer)
    assert duplicate.handle != layer.handle
    assert planned_layer._LAYERS[duplicate.handle] is duplicate
    gone, handle = weakref.ref(layer), layer.handle
    del layer
    gc.collect()
    assert gone() is None
    assert handle not in planned_layer._LAYERS


@pytest.mark.parametrize(("case", "masked"), [("conv3x3", False), ("linear", True)])
def test_ops_of_a_graph_are_what_they_tell_the_compiler(case, masked):
    """Shapes, types and strides as announced, nothing aliased, gradients registered."""
    make, shape = LAYERS[case]
    layer = planned_copy(make(), OpPlan(weight_forward=identity) if masked else OpPlan(grad_dgrad=identity))
    inputs = torch.randn(shape)
    inputs = inputs.to(memory_format=torch.channels_last) if inputs.ndim == 4 else inputs
    operands = (inputs.requires_grad_(), layer.weight, layer.bias, layer.handle, masked)
    torch.library.opcheck(products._forward_op, operands)
    out, _ = products._forward_op(*operands)
    needs = [True, False, True]
    gradients_op = (torch.randn_like(out), inputs.detach(), layer.weight.detach(), layer.handle, needs)
    torch.library.opcheck(products._backward_op, gradients_op)
