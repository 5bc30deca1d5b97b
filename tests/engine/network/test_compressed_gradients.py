"""Compressed output gradients: who multiplies them, what is expanded, and what is refused."""

import re

import pytest
import torch
from compressing import CompressedBackend, expanded, largest
from planned_layers import LAYERS, gradients, planned_copy
from torch import Tensor, nn

from suite.errors import UsageError
from suite.method import Compressed, Density, OpPlan

OPERANDS = ("grad_shared", "grad_dgrad", "grad_wgrad")
GRADIENTS = {"grad_shared": {"data", "weight", "bias"}, "grad_dgrad": {"data"}, "grad_wgrad": {"weight"}}


@pytest.mark.parametrize(
    ("case", "operand"), [*((case, "grad_shared") for case in LAYERS), *(("conv3x3", one) for one in OPERANDS[1:])]
)
def test_a_compressed_gradient_is_expanded_for_torch_with_equal_bits(case, operand):
    torch.manual_seed(0)
    make, shape = LAYERS[case]
    layer, inputs, prune = make(), torch.randn(shape), largest(2, 5)  # groups of 5, 5 and 2 channels
    plain = gradients(layer, inputs)
    wanted = gradients(planned_copy(layer, OpPlan(**{operand: expanded(prune)})), inputs)
    small = planned_copy(layer, OpPlan(**{operand: prune}))
    got = gradients(small, inputs)
    for name, tensor in wanted.items():
        if (name, operand) == ("bias", "grad_shared"):
            torch.testing.assert_close(got[name], tensor)
        else:
            assert torch.equal(got[name], tensor)
        changed = name in GRADIENTS[operand]
        assert torch.allclose(tensor, plain[name], rtol=1e-4, atol=1e-4) != changed
    assert small.meter.take() == Density()


BOTH = ("dgrad", "wgrad")
HANDED = [("conv3x3", one, some, torch.float32) for one in OPERANDS for some in (BOTH, BOTH[:1], BOTH[1:], ())]
HANDED += [(case, "grad_shared", BOTH, torch.bfloat16) for case in LAYERS]
HANDED += [(case, "grad_shared", BOTH, torch.float32) for case in LAYERS if case != "conv3x3"]


@pytest.mark.parametrize(("case", "operand", "products", "dtype"), HANDED)
def test_a_backend_gets_it_compressed_in_the_products_that_it_names(case, operand, products, dtype):
    torch.manual_seed(0)
    make, shape = LAYERS[case]
    layer, inputs, prune = make(), torch.randn(shape), largest(2, 5)
    wanted = gradients(planned_copy(layer, OpPlan(**{operand: expanded(prune)})), inputs, dtype)
    backend = CompressedBackend(*products)
    small = planned_copy(layer, OpPlan(**{operand: prune}, backend=backend))
    got = gradients(small, inputs, dtype)
    # Both paths round to the type of the products once; sums in bfloat16 of the dense path may be rounded in between.
    limit = {"rtol": 1e-4, "atol": 1e-4} if dtype == torch.float32 else {"rtol": 2e-2, "atol": 2e-1}
    for name, tensor in wanted.items():
        torch.testing.assert_close(got[name], tensor, **limit)
    compressed = {one for one in ("dgrad", "wgrad") if one in products and operand in ("grad_shared", f"grad_{one}")}
    assert backend.seen == {one: Compressed if one in compressed else Tensor for one in ("dgrad", "wgrad")}
    share = (2 + 2 + 2) / 12
    assert small.meter.take() == Density(1.0, *(share if one in compressed else 1.0 for one in ("dgrad", "wgrad")))


@pytest.mark.parametrize("case", ["conv3x3", "linear"])
def test_a_compiled_graph_multiplies_it_as_an_eager_step_does(case):
    torch.manual_seed(0)
    make, shape = LAYERS[case]
    layer, inputs = make(), torch.randn(shape)
    for plan in (
        OpPlan(grad_shared=largest(1, 4), backend=CompressedBackend("dgrad", "wgrad")),
        OpPlan(grad_dgrad=largest(1, 4)),
    ):
        eager = gradients(planned_copy(layer, plan), inputs)
        planned = planned_copy(layer, plan)
        planned.compile(backend="aot_eager", fullgraph=True)
        for name, tensor in gradients(planned, inputs).items():
            torch.testing.assert_close(tensor, eager[name], rtol=1e-5, atol=1e-5)


def test_a_shared_gradient_is_expanded_once(monkeypatch):
    calls = []
    dense = Compressed.dense
    monkeypatch.setattr(Compressed, "dense", lambda self: calls.append(self) or dense(self))
    layer, inputs = nn.Conv2d(4, 8, 3), torch.randn(2, 4, 6, 6)
    for backend, times in ((None, 1), (CompressedBackend("wgrad"), 1), (CompressedBackend("dgrad", "wgrad"), 0)):
        calls.clear()
        gradients(planned_copy(layer, OpPlan(grad_shared=largest(2, 4), backend=backend)), inputs)
        assert len(calls) == times


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(2, 10, 3, 4), (5, 10)])
def test_dense_is_in_channels_last_order_and_in_the_type_of_the_gradient(shape, dtype):
    grad = torch.randn(shape).to(dtype)
    found = largest(3, 4)(grad, None)
    dense = found.dense()
    kept = dense != 0
    assert (dense.dtype, dense.shape) == (dtype, grad.shape)
    assert dense.movedim(1, -1).is_contiguous()
    assert torch.equal(dense[kept], grad[kept])
    assert kept.movedim(1, -1).flatten(0, -2).sum(1).eq(3 + 3 + 2).all()
    assert found.share == 8 / 10
    sums = dense.movedim(1, 0).flatten(1).double().sum(1).to(dtype)
    torch.testing.assert_close(found.channel_sums(), sums)


def made(grad, **changed):
    found = largest(2, 4)(grad, None)
    fields = {name: getattr(found, name) for name in ("values", "channels", "shape", "dtype", "n", "m")}
    return Compressed(**{**fields, **changed})


FAULTS = {
    "too few values": lambda grad: made(grad, n=3),
    "64-bit channels": lambda grad: made(grad, channels=made(grad).channels.long()),
    "another layout": lambda grad: made(grad, channels=made(grad).channels.movedim(-1, 1)),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_fields_that_do_not_agree_are_refused(fault):
    with pytest.raises(ValueError, match=r"^Compressed: a gradient of shape \(2, 8, 4, 5\) that keeps .:4 needs .*got"):
        FAULTS[fault](torch.randn(2, 8, 4, 5))


@pytest.mark.parametrize(("n", "m"), [(0, 4), (5, 4)])
def test_n_outside_of_its_range_is_refused(n, m):
    with pytest.raises(ValueError, match=rf"^Compressed: n must be in 1 \.\. m, got n={n} and m={m}$"):
        made(torch.randn(2, 8, 4, 5), n=n, m=m)


MISMATCHES = {
    "another type": (lambda grad: made(grad, dtype=torch.bfloat16), r"of shape \(2, 8, 4, 4\) and torch.bfloat16"),
    "another shape": (lambda grad: made(grad[:1]), r"of shape \(1, 8, 4, 4\) and torch.float32"),
}


@pytest.mark.parametrize("case", MISMATCHES)
@pytest.mark.parametrize("operand", OPERANDS)
def test_a_gradient_of_something_else_is_refused_with_the_layer_and_the_operand(case, operand):
    make, what = MISMATCHES[case]
    layer = planned_copy(nn.Conv2d(4, 8, 3), OpPlan(**{operand: lambda grad, site: make(grad)}))
    line = (
        f"^{operand} of layer '0' returned a Compressed {what} on cpu, but the gradient that it was given has shape "
        f"{re.escape('(2, 8, 4, 4) and torch.float32 on cpu')}$"
    )
    with pytest.raises(UsageError, match=line):
        gradients(layer, torch.randn(2, 4, 6, 6))


def test_a_weight_cannot_be_compressed():
    layer = planned_copy(nn.Linear(4, 8), OpPlan(weight_forward=largest(2, 4)))
    with pytest.raises(UsageError, match="weight_forward of layer '0' returned a Compressed; only output gradients"):
        layer(torch.randn(3, 4))
