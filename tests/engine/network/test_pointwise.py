"""1x1 convolutions with a stride on the CPU: correct in every geometry, and differentiable like torch's own."""

import copy

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from suite.method import EMPTY_PLAN, OpPlan
from suite.ops import convert

IDENTITY = OpPlan(grad_dgrad=lambda grad, site: grad)
CASES = {
    "stride 2": ({"stride": 2}, (3, 5, 9, 8)),
    "unequal, padded": ({"stride": (1, 3), "padding": (2, 1)}, (3, 5, 9, 8)),
    "reflected": ({"stride": 2, "padding": 1, "padding_mode": "reflect"}, (3, 5, 9, 8)),
    "grouped": ({"stride": 3, "groups": 5}, (3, 5, 9, 8)),
    "no bias": ({"stride": 2, "bias": False}, (3, 5, 9, 8)),
    "unbatched": ({"stride": 2}, (5, 9, 8)),
    "one channel": ({"stride": 2}, (3, 1, 9, 8)),
    "one pixel": ({"stride": 2}, (3, 5, 1, 1)),
}


def gradients(layer, inputs):
    inputs = inputs.clone().requires_grad_()
    out = layer(inputs)
    out.backward(torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view(out.shape))
    return [out.detach(), inputs.grad, *(parameter.grad for parameter in layer.parameters())]


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("plan", [EMPTY_PLAN, IDENTITY])
@pytest.mark.parametrize("case", CASES)
def test_products_are_those_of_float64(case, plan, layout):
    options, shape = CASES[case]
    torch.manual_seed(0)
    layer, inputs = nn.Conv2d(shape[-3], 10, 1, **options), torch.randn(shape)
    if inputs.ndim == 4:
        inputs = inputs.contiguous(memory_format=layout)
    right = gradients(copy.deepcopy(layer).double(), inputs.double())
    convert(layer)
    layer.op_plan = plan
    found = gradients(layer, inputs)
    for value, wanted in zip(found, right, strict=True):
        torch.testing.assert_close(value.double(), wanted, rtol=1e-5, atol=1e-5)
    if inputs.ndim == 4:
        assert found[1].is_contiguous(memory_format=layout)


def test_an_empty_plan_can_be_differentiated_twice_mapped_and_compiled():
    torch.manual_seed(0)
    layer = nn.Conv2d(3, 4, 1, 2).double()
    convert(layer)
    images = torch.randn(2, 3, 5, 5, dtype=torch.double, requires_grad=True)
    assert torch.autograd.gradgradcheck(layer, (images,))
    one_by_one = torch.func.vmap(torch.func.grad(lambda image: layer(image).square().sum()))(images.detach())
    layer(images).square().sum().backward()
    torch.testing.assert_close(one_by_one, images.grad)
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    for value, wanted in zip(gradients(compiled, images.detach()), gradients(layer, images.detach()), strict=True):
        torch.testing.assert_close(value, wanted)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script")  # torch itself uses it in forward mode
@pytest.mark.parametrize("options", [{"stride": 2}, {"stride": (1, 3), "padding": (2, 1)}])
def test_an_empty_plan_can_be_differentiated_forward(options):
    torch.manual_seed(0)
    own = nn.Conv2d(3, 4, 1, **options).double()
    layer = copy.deepcopy(own)
    convert(layer)
    images, tangent = torch.randn(2, 2, 3, 5, 7, dtype=torch.double)

    def tangents(layer):
        """Return the tangents of the output, and of the gradient of its cube."""
        slope = torch.func.grad(lambda given: layer(given).pow(3).sum())
        return [torch.func.jvp(function, (images,), (tangent,))[1] for function in (layer, slope)]

    for found, wanted in zip(tangents(layer), tangents(own), strict=True):
        torch.testing.assert_close(found, wanted)


class Strides(TorchDispatchMode):
    """Notes the strides of convolutions and of their gradients."""

    def __init__(self):
        super().__init__()
        self.seen = set()

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        if function.overloadpacket in (torch.ops.aten.convolution, torch.ops.aten.convolution_backward):
            names = [argument.name for argument in function._schema.arguments]
            self.seen.add(tuple(arguments[names.index("stride")]))
        return function(*arguments, **(keywords or {}))


@pytest.mark.parametrize("plan", [EMPTY_PLAN, IDENTITY])
def test_onednn_gets_no_stride(plan):
    """With few channels and one, the kernels of oneDNN 3.13 crash, or weight gradients are wrong."""
    layer = nn.Conv2d(4, 8, 1, 2).to(memory_format=torch.channels_last)
    convert(layer)
    layer.op_plan = plan
    with Strides() as strides:
        gradients(layer, torch.randn(3, 4, 9, 8).to(memory_format=torch.channels_last))
    assert strides.seen == {(1, 1)}
