"""The products of planned layers: their operands, compact gradients, backends, and tensors saved for backward."""

import pytest
import torch
import torch.nn.functional as F
from planned_layers import LAYERS, gradients, identity, planned_copy
from slicing_backend import SLICING
from torch import nn

from suite.method import Compact, Density, OpPlan


def test_each_operand_reaches_only_its_product():
    torch.manual_seed(0)
    layer, inputs = nn.Conv2d(4, 6, 3, padding=1), torch.randn(2, 4, 5, 5)
    plain = gradients(layer, inputs)

    def doubled(tensor, site):
        return tensor * 2

    def scaled(**changed):
        got = gradients(planned_copy(layer, OpPlan(**changed)), inputs)
        return {name for name, tensor in plain.items() if not torch.allclose(got[name], tensor, rtol=1e-5, atol=1e-6)}

    assert scaled(grad_dgrad=doubled) == {"data"}
    assert scaled(grad_wgrad=doubled) == {"weight"}
    assert scaled(grad_shared=doubled) == {"data", "weight", "bias"}
    assert scaled(weight_forward=doubled) == {"out", "data"}


@pytest.mark.parametrize("case", ["conv3x3", "grouped", "linear"])
@pytest.mark.parametrize("kept", [[0, 1, 3, 5, 6, 8, 9, 11], [2], []])
def test_compact_gradient_equals_zeroed_channels(case, kept):
    """Kept channels 0,1 / 3,5 / 6,8 / 9,11 are two per group in each of the four groups; the others are unbalanced."""
    torch.manual_seed(0)
    make, shape = LAYERS[case]
    layer, inputs, index = make(), torch.randn(shape), torch.tensor(kept, dtype=torch.int64)

    def zeroed(tensor, site):
        return torch.zeros_like(tensor).index_copy_(1, index, tensor.index_select(1, index))

    def compact(tensor, site):
        return Compact(tensor.index_select(1, index), index)

    expected = gradients(planned_copy(layer, OpPlan(grad_shared=zeroed)), inputs)
    small = planned_copy(layer, OpPlan(grad_shared=compact))
    got = gradients(small, inputs)
    for name, tensor in expected.items():
        torch.testing.assert_close(got[name], tensor, rtol=1e-5, atol=1e-6)
    executed = small.meter.take()
    unbalanced = case == "grouped" and len(kept) == 1
    share = 1.0 if unbalanced else len(kept) / 12
    assert executed == Density(1.0, pytest.approx(share), pytest.approx(share))


def test_compact_gradient_is_expanded_where_another_transform_follows():
    torch.manual_seed(0)
    layer, inputs, index = nn.Conv2d(4, 8, 3), torch.randn(2, 4, 6, 6), torch.tensor([1, 2])
    shapes = []

    def compact(tensor, site):
        return Compact(tensor.index_select(1, index), index)

    def look(tensor, site):
        shapes.append(tensor.shape[1])
        return tensor

    gradients(planned_copy(layer, OpPlan(grad_shared=compact, grad_dgrad=look)), inputs)
    assert shapes == [8]


@pytest.mark.parametrize("case", ["conv3x3", "conv5x5-stride2", "grouped", "linear"])
def test_slicing_backend_equals_masked_dense_and_says_what_it_executed(case):
    torch.manual_seed(0)
    make, shape = LAYERS[case]
    layer, inputs = make(), torch.randn(shape)
    mask = torch.ones_like(layer.weight)
    mask[:3] = 0
    mask[:, ::2] = 0

    def masked(weight, site):
        return weight * mask

    expected = gradients(planned_copy(layer, OpPlan(weight_forward=masked)), inputs)
    small = planned_copy(layer, OpPlan(weight_forward=masked, backend=SLICING))
    got = gradients(small, inputs)
    for name, tensor in expected.items():
        torch.testing.assert_close(got[name], tensor, rtol=1e-4, atol=1e-5)
    share = 1.0 if case == "grouped" else 9 / 12 * 1 / 2
    assert small.meter.take() == Density(pytest.approx(share), pytest.approx(share), 1.0)


def test_masked_weight_is_computed_once_a_forward_and_applies_in_evaluation():
    calls = []
    layer = nn.Conv2d(4, 4, 3)

    def masked(weight, site):
        calls.append(site)
        return weight * 0

    planned = planned_copy(layer, OpPlan(weight_forward=masked))
    gradients(planned, torch.randn(1, 4, 5, 5))
    assert len(calls) == 1
    with torch.no_grad():
        out = planned.eval()(torch.randn(1, 4, 5, 5))
    torch.testing.assert_close(out, layer.bias.detach().view(1, 4, 1, 1).expand_as(out))


def test_no_transform_runs_for_a_product_that_is_not_needed():
    called = set()

    def note(tensor, site):
        called.add(site.operand)
        return tensor

    plan = OpPlan(grad_dgrad=note, grad_wgrad=note)
    first = planned_copy(nn.Conv2d(3, 4, 3), plan)
    first(torch.randn(1, 3, 5, 5)).sum().backward()
    assert called == {"grad_wgrad"}
    called.clear()
    frozen = planned_copy(nn.Conv2d(3, 4, 3), plan).requires_grad_(False)
    inputs = torch.randn(1, 3, 5, 5).to(memory_format=torch.channels_last).requires_grad_()
    frozen(inputs).sum().backward()
    assert called == {"grad_dgrad"}
    assert inputs.grad.is_contiguous(memory_format=torch.channels_last)


def test_planned_op_keeps_no_more_for_backward_than_torch():
    def kept(layer):
        sizes, parameters = {}, {p.data_ptr() for p in layer.parameters()}

        def pack(tensor):
            if tensor.data_ptr() not in parameters:
                sizes[tensor.data_ptr()] = tensor.numel() * tensor.element_size()
            return tensor

        inputs = torch.randn(4, 8, 16, 16, requires_grad=True)
        with (
            torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor),
            torch.autocast("cpu", torch.bfloat16),
        ):
            out = layer(inputs)
        return sum(sizes.values()), out

    layer = nn.Conv2d(8, 8, 3, padding=1)
    dense, _ = kept(layer)
    planned, _ = kept(planned_copy(layer, OpPlan(grad_dgrad=identity)))
    assert 0 < planned <= dense


def test_a_weight_transform_multiplies_the_master_weight_and_the_cast_comes_after():
    """A product inside the transform is not autocast, so that `finish` writes the weights that were trained."""
    torch.manual_seed(0)
    layer, inputs, turn = nn.Linear(8, 12), torch.randn(6, 8), torch.randn(8, 8)
    seen = []

    def turned(weight, site):
        seen.append(weight @ turn)
        return seen[-1]

    planned = planned_copy(layer, OpPlan(weight_forward=turned))
    used = layer.weight @ turn
    with torch.autocast("cpu", torch.bfloat16):
        out = planned(inputs)
        finished = planned.forward_weight(planned.weight)
    assert [weight.dtype for weight in seen] == [torch.float32] * 2
    assert torch.equal(finished, used)
    half = torch.bfloat16
    assert torch.equal(out, F.linear(inputs.to(half), used.to(half), layer.bias.to(half)))
