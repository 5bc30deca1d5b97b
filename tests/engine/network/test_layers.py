"""Planned layers: equal to torch's own, converted in place, and refused where plans are not supported."""

import copy
import pickle
import re

import pytest
import torch
import torch.nn.functional as F
from planned_layers import LAYERS, gradients, identity, planned_copy
from slicing_backend import SLICING
from torch import nn

from suite.engine.network.channels.spaces import find_index_spaces
from suite.engine.network.layers import PlannedConv2d, PlannedLinear, convert, plannable, restore, same_padding
from suite.engine.network.planned_layer import StepState
from suite.engine.network.products import TORCH
from suite.errors import UsageError
from suite.method import EMPTY_PLAN, OpPlan


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
    state = StepState(seed=7, step=5, micro_batch_index=2)
    for layer in convert(model, state).values():
        layer.op_plan = OpPlan(grad_shared=note)
    model(torch.randn(1, 3, 7, 7)).sum().backward()
    assert [(s.name, s.operand, s.step, s.micro_batch_index, s.seed) for s in seen] == [
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
        seen.append((site.step, site.micro_batch_index))
        return tensor

    layer, state = nn.Linear(4, 4), StepState()
    convert(nn.Sequential(layer), state)
    layer.op_plan = OpPlan(grad_wgrad=note)
    outputs = []
    for state.step, state.micro_batch_index in ((3, 0), (4, 1)):
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


class SameLinear(nn.Linear):
    """As in other libraries, whose subclass only casts."""

    def forward(self, input):
        return F.linear(input, self.weight, self.bias)


class SamePadding(nn.Conv2d):
    """Pads as much as the size of an input needs."""

    def forward(self, input):
        left, right, top, bottom = same_padding(self, *input.shape[-2:])
        padded = F.pad(F.pad(input, (left, right)), (0, 0, top, bottom))
        return F.conv2d(padded, self.weight, self.bias, self.stride, 0, self.dilation, self.groups)


class OtherPadding(nn.Conv2d):
    """Pads more at the beginning."""

    def forward(self, input):
        return super().forward(F.pad(input, (input.shape[-1] % 2, 0, input.shape[-2] % 2, 0)))


class StraightThrough(nn.Conv2d):
    """Has the outputs of its base class and other gradients."""

    def forward(self, input):
        return super().forward(input * 2 - input.detach())


def test_a_subclass_is_planned_if_it_computes_what_its_base_class_does():
    model = nn.Sequential(OtherPadding(3, 4, 2, 2), StraightThrough(4, 4, 3), nn.Flatten(), SameLinear(4, 2))
    layers, others = plannable(model)
    assert list(layers) == ["3"]
    assert others == {
        name: f"it is a {kind}, whose forward differs from that of its base class"
        for name, kind in (("0", "OtherPadding"), ("1", "StraightThrough"))
    }
    convert(model)
    assert isinstance(model[3], PlannedLinear)
    restore(model)
    assert type(model[3]) is SameLinear
    assert "own_class" not in vars(model[3])


class WithMask(nn.Conv2d):
    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.register_buffer("mask", torch.ones(1))

    def _conv_forward(self, input, weight, bias):
        return super()._conv_forward(input, weight * self.mask, bias)


class WithScale(nn.Linear):
    scale = 1.0

    def forward(self, input):
        return super().forward(input * self.scale)


class Keeps(nn.Linear):
    def forward(self, input):
        self.last = super().forward(input)
        return self.last


@pytest.mark.parametrize(
    ("layer", "reason"),
    [
        (WithMask(4, 4, 1), "whose own forward may depend on its attribute 'mask'"),
        (WithScale(4, 4), "whose own forward may depend on its attribute 'scale'"),
        (Keeps(4, 4), "whose own forward changes its attribute 'last'"),
    ],
)
def test_a_subclass_whose_own_forward_may_compute_something_else_later_is_not_planned(layer, reason):
    layers, others = plannable(nn.Sequential(layer))
    assert not layers
    assert others == {"0": f"it is a {type(layer).__name__}, {reason}"}
    assert convert(nn.Sequential(layer)) == {}


def test_a_forward_that_an_attribute_replaces_is_not_planned():
    layer = nn.Linear(2, 2)
    layer.forward = lambda input: 2 * F.linear(input, layer.weight)
    assert plannable(nn.Sequential(layer))[1] == {"0": "its attribute 'forward' replaces the forward of its class"}


class WithPenalty(nn.Conv2d):
    """Inherits the forward, and has hyperparameters and methods of its own."""

    strength = 0.5

    def __init__(self, *sizes, factor=2.0):
        super().__init__(*sizes)
        self.factor = factor

    def penalty(self):
        return self.factor * self.strength * self.weight.abs().sum()

    @property
    def size(self):
        return 2 * self.out_channels


def test_methods_and_the_class_of_a_subclass_stay():
    model = nn.Sequential(WithPenalty(3, 4, 1), SameLinear(4, 4))
    expected, state = model[0].penalty(), model.state_dict()
    convert(model)
    for one in (model, copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert isinstance(one[0], PlannedConv2d)
        assert isinstance(one[0], WithPenalty)
        assert isinstance(one[1], SameLinear)
        assert (one[0].penalty(), one[0].size, one[0].factor) == (expected, 8, 2.0)
        assert one.load_state_dict(state)
        assert one[0].step_state is not None
        restore(one)
        assert [type(layer) for layer in one] == [WithPenalty, SameLinear]
    twins = nn.Sequential(SameLinear(2, 2), SameLinear(2, 2))
    convert(twins)
    assert type(twins[0]) is type(twins[1])


class Final(nn.Linear):
    def __init_subclass__(cls, **options):
        raise TypeError("no subclasses, please")


def test_a_class_that_refuses_subclasses_is_planned():
    model = nn.Sequential(Final(2, 2))
    assert not find_index_spaces(nn.Sequential(nn.Flatten(), model), (2, 1, 1)).not_followed
    assert isinstance(convert(model)["0"], Final)
    restore(model)
    assert type(model[0]) is Final


def test_a_layer_of_a_subclass_follows_its_plan():
    model = nn.Sequential(WithPenalty(3, 4, 1))
    (layer,) = convert(model).values()
    layer.op_plan = OpPlan(weight_forward=lambda weight, site: 0 * weight)
    assert torch.equal(model(torch.ones(1, 3, 2, 2)), layer.bias.reshape(1, 4, 1, 1).expand(1, 4, 2, 2))


@pytest.mark.parametrize("kind", [SamePadding, "timm"])
@pytest.mark.parametrize(
    "given",
    [
        {"kernel_size": 3, "stride": 2}, {"kernel_size": (3, 5), "stride": (2, 1), "bias": False},
        {"kernel_size": 4, "dilation": 2, "groups": 2}, {"kernel_size": 2, "stride": 3},
    ],
)  # fmt: skip
def test_a_convolution_that_pads_as_its_input_needs_is_planned_bit_for_bit(kind, given):
    if kind == "timm":
        kind = pytest.importorskip("timm.layers", reason="needs the extra [timm]").Conv2dSame
    torch.manual_seed(0)
    bare = nn.Sequential(kind(4, 6, **given))
    for plan in (EMPTY_PLAN, OpPlan(grad_dgrad=identity)):
        planned = copy.deepcopy(bare)
        (layer,) = convert(planned).values()
        layer.op_plan = plan
        for rows, columns in ((8, 9), (7, 12), (6, 6)):
            inputs = torch.randn(2, 4, rows, columns, requires_grad=True)
            found = []
            for model in (bare, planned):
                output = model(inputs)
                gradients = torch.autograd.grad(output.square().sum(), [inputs, *model.parameters()])
                found.append([output, *gradients])
            padded = layer.padded_size(rows, columns)
            assert (
                found[0][0].shape[2:]
                == TORCH.forward(torch.zeros(1, 4, *padded), layer.weight, None, layer.geometry).shape[2:]
            )
            assert all(torch.equal(ours, theirs) for ours, theirs in zip(*found, strict=True))
        layer.op_plan = EMPTY_PLAN
        restore(planned)
        assert type(planned[0]) is kind


def test_an_attribute_of_the_user_is_not_overwritten():
    model = nn.Sequential(nn.Linear(2, 2))
    model[0].meter = "own"
    with pytest.raises(UsageError, match=r"layer '0' has an attribute 'meter', which a planned layer needs"):
        convert(model)
    assert model[0].meter == "own"


class Named(nn.Linear):
    name = "own"


def with_buffer(name):
    layer = nn.Linear(2, 2)
    layer.register_buffer(name, torch.ones(1))
    return layer


@pytest.mark.parametrize(
    ("layer", "name"),
    [(with_buffer("masked"), "masked"), (Named(2, 2), "name")],
)
def test_what_a_planned_layer_would_hide_is_refused_before_any_layer_is_planned(layer, name):
    model = nn.Sequential(nn.Linear(2, 2), layer)
    kinds = [type(one) for one in model]
    with pytest.raises(UsageError, match=rf"layer '1' has an attribute '{name}', which a planned layer needs"):
        convert(model)
    assert [type(one) for one in model] == kinds
    assert "own_class" not in vars(model[0])
    model(torch.ones(1, 2))
