"""The planned op against torch's own layers, and every operand of a plan."""

import re

import pytest
import torch
import torch.nn.functional as F
from planned_layers import LAYERS, gradients, identity, planned_copy
from slicing_backend import SLICING
from torch import nn
from torch.nn.utils import parametrizations

from suite.errors import UsageError
from suite.method import EMPTY_PLAN, Compact, Density, OpPlan
from suite.network.layers import PlannedConv2d, PlannedLinear, convert, restore
from suite.network.planned_layer import StepState


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("plan", [EMPTY_PLAN, OpPlan(grad_dgrad=identity), OpPlan(weight_forward=identity)])
@pytest.mark.parametrize("case", LAYERS)
def test_empty_and_identity_plans_are_bit_identical_to_torch(case, plan, dtype):
    torch.manual_seed(0)
    make, shape = LAYERS[case]
    layer, inputs = make(), torch.randn(shape)
    if inputs.ndim == 4:
        inputs = inputs.to(memory_format=torch.channels_last)
    expected = gradients(layer, inputs, dtype)
    got = gradients(planned_copy(layer, plan), inputs, dtype)
    assert expected.keys() == got.keys()
    for name, tensor in expected.items():
        assert torch.equal(tensor, got[name]), name
        assert tensor.stride() == got[name].stride() or name != "data"


def test_conversion_keeps_objects_parameters_and_names():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Sequential(nn.Linear(4, 2)))
    before, layers, names = list(model.parameters()), list(model.modules()), list(model.state_dict())
    found = convert(model)
    assert [id(p) for p in model.parameters()] == [id(p) for p in before]
    assert list(model.modules()) == layers
    assert list(model.state_dict()) == names
    assert list(found) == ["0", "1.0"]
    assert type(model[0]) is PlannedConv2d
    assert type(model[1][0]) is PlannedLinear
    restore(model)
    assert type(model[0]) is nn.Conv2d
    assert type(model[1][0]) is nn.Linear
    assert "op_plan" not in vars(model[0])


def test_parametrised_layer_is_refused_by_name():
    model = nn.Sequential(nn.Linear(4, 4), parametrizations.weight_norm(nn.Conv2d(3, 4, 3)))
    with pytest.raises(UsageError, match="'1'"):
        convert(model)


def test_subclasses_are_left_alone():
    attention = nn.MultiheadAttention(8, 2)
    assert convert(attention) == {}


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


def test_grad_dgrad_gives_the_dense_data_gradient_of_the_pruned_gradient():
    torch.manual_seed(0)
    layer, inputs = nn.Conv2d(4, 8, 3, padding=1), torch.randn(2, 4, 5, 5)

    def first_half(tensor, site):
        pruned = tensor.clone()
        pruned[:, 4:] = 0
        return pruned

    got = gradients(planned_copy(layer, OpPlan(grad_dgrad=first_half)), inputs)
    dense_grad = torch.linspace(-1, 1, got["out"].numel()).view_as(got["out"])
    expected = torch.nn.grad.conv2d_input(inputs.shape, layer.weight, first_half(dense_grad, None), padding=1)
    torch.testing.assert_close(got["data"], expected)


@pytest.mark.parametrize("case", ["conv3x3", "grouped", "linear"])
@pytest.mark.parametrize("kept", [[0, 1, 3, 5, 6, 8, 9, 11], [2], []])
def test_compact_gradient_equals_zeroed_channels(case, kept):
    """Kept channels 0,1 / 3,5 / 6,8 / 9,11 are two in each of the four groups; the others are unbalanced."""
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


def test_no_transform_runs_for_a_product_nobody_needs():
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
    """What trains is what `finish` writes: a product inside the transform is not autocast."""
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


def test_an_evaluation_is_not_metered_as_training():
    planned = planned_copy(nn.Linear(8, 12), OpPlan(weight_forward=lambda weight, site: weight * 0, backend=SLICING))
    planned.eval()(torch.randn(6, 8))
    assert not planned.meter.calls
    planned.train()(torch.randn(6, 8))
    assert planned.meter.calls == {"forward": 1}


def test_float64_is_not_cast_under_autocast():
    layer = planned_copy(nn.Conv2d(3, 4, 3).double(), OpPlan(grad_dgrad=identity))
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(torch.randn(1, 3, 5, 5, dtype=torch.float64)).dtype == torch.float64


def test_site_tells_layer_operand_step_and_slot_and_keys_differ():
    seen = []

    def note(tensor, site):
        seen.append(site)
        return tensor

    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3))
    state = StepState(seed=7, step=5, slot=2)
    for layer in convert(model, state).values():
        layer.op_plan = OpPlan(grad_shared=note)
    model(torch.randn(1, 3, 7, 7)).sum().backward()
    assert [(s.name, s.operand, s.step, s.slot, s.seed) for s in seen] == [
        ("1", "grad_shared", 5, 2, 7),
        ("0", "grad_shared", 5, 2, 7),
    ]
    assert seen[0].key != seen[1].key
    assert 0 <= seen[0].key < 2**63
    first = torch.rand(3, generator=seen[0].generator())
    assert torch.equal(first, torch.rand(3, generator=seen[0].generator()))


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_gradient_checkpointing_draws_the_same_mask_again(use_reentrant):
    def dropped(weight, site):
        return weight * (torch.rand(weight.shape, generator=site.generator()) < 0.5)

    torch.manual_seed(0)
    layer, inputs = nn.Conv2d(4, 4, 3), torch.randn(1, 4, 6, 6)
    plan = OpPlan(weight_forward=dropped)
    expected = gradients(planned_copy(layer, plan), inputs)
    planned = planned_copy(layer, plan)
    inputs = inputs.clone().requires_grad_()
    out = torch.utils.checkpoint.checkpoint(planned, inputs, use_reentrant=use_reentrant)
    (out * torch.linspace(-1, 1, out.numel()).view_as(out)).sum().backward()
    assert torch.equal(inputs.grad, expected["data"])
    assert torch.equal(planned.weight.grad, expected["weight"])


def test_inference_mode_and_double_use_work():
    torch.manual_seed(0)
    layer, inputs = nn.Linear(6, 6), torch.randn(3, 6)
    planned = planned_copy(layer, OpPlan(grad_dgrad=identity))
    with torch.inference_mode():
        assert torch.equal(planned(inputs), layer(inputs))
    expected, got = (gradients(nn.Sequential(each, each), inputs) for each in (layer, planned))
    for one, other in zip(expected.values(), got.values(), strict=True):
        torch.testing.assert_close(one, other)


def test_backward_inside_autocast_does_not_cast_again():
    torch.manual_seed(0)
    layer, inputs = nn.Conv2d(4, 4, 3), torch.randn(1, 4, 6, 6, requires_grad=True)
    planned = planned_copy(layer, OpPlan(grad_dgrad=identity))
    out = planned(inputs)
    with torch.autocast("cpu", torch.bfloat16):
        out.sum().backward()
    expected = torch.autograd.grad(F.conv2d(inputs, layer.weight, layer.bias).sum(), inputs)[0]
    assert torch.equal(inputs.grad, expected)


def test_backward_belongs_to_the_micro_batch_of_its_forward():
    seen = []

    def note(tensor, site):
        seen.append((site.step, site.slot))
        return tensor

    layer, state = nn.Linear(4, 4), StepState()
    convert(nn.Sequential(layer), state)
    layer.op_plan = OpPlan(grad_wgrad=note)
    outputs = []
    for state.step, state.slot in ((3, 0), (4, 1)):
        outputs.append(layer(torch.randn(2, 4)).sum())
    for output in outputs:
        output.backward()
    assert seen == [(3, 0), (4, 1)]


@pytest.mark.parametrize("case", ["conv3x3", "linear"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("autocast", [False, True])
def test_mixed_types_are_taken_or_refused_as_torch_does(case, dtype, autocast):
    make, shape = LAYERS[case]
    layer, inputs = make(), torch.ones(shape, dtype=dtype)
    planned = planned_copy(layer, OpPlan(grad_dgrad=identity))
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        try:
            expected = layer(inputs)
        except RuntimeError as error:
            with pytest.raises(RuntimeError, match=re.escape(str(error))):
                planned(inputs)
        else:
            assert autocast
            assert torch.equal(planned(inputs), expected)


def double_backward(layer, inputs):
    (grad,) = torch.autograd.grad(layer(inputs).square().sum(), inputs, create_graph=True)
    grad.square().sum().backward()


def forward_mode(layer, inputs):
    with torch.autograd.forward_ad.dual_level():
        layer(torch.autograd.forward_ad.make_dual(inputs.detach(), inputs.detach()))


TRANSFORMS = {
    "torch.func.grad": lambda layer, inputs: torch.func.grad(lambda x: layer(x).sum())(inputs),
    "torch.func.vmap": lambda layer, inputs: torch.func.vmap(layer)(inputs),
    "torch.func.jvp": lambda layer, inputs: torch.func.jvp(layer, (inputs,), (inputs,)),
    "hvp": lambda layer, inputs: torch.autograd.functional.hvp(lambda x: layer(x).square().sum(), inputs, inputs),
    "double backward": double_backward,
    "forward mode": forward_mode,
}


@pytest.mark.filterwarnings("ignore:`torch.jit.script`")
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_what_differentiates_a_planned_layer_in_another_way_is_refused_by_name(transform):
    inputs = torch.randn(3, 8, requires_grad=True)
    planned = planned_copy(nn.Linear(8, 4), OpPlan(grad_dgrad=identity))
    with pytest.raises(UsageError, match="layer '0' follows a method's plan, which does not support"):
        TRANSFORMS[transform](planned, inputs)
    planned.op_plan = EMPTY_PLAN
    TRANSFORMS[transform](planned, inputs)
