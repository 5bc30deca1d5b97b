"""`compress_nm` returns the kept elements of `prune_nm` and their channels, on every path."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from drawn_gradients import bits_of, gradients, group_shapes, layouts_of
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

import kernels
from kernels import PruneRule
from kernels.prune import compress as compress_module
from kernels.prune import reference

SCOPES = ("none", "group", "sample_channel", "channel")
Compress = Callable[..., tuple[Tensor, Tensor]]


@pytest.fixture(params=["compiled", "plain torch"])
def compress(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Compress:
    """The public function with the compiled kernel, and with plain torch in its place."""
    if request.param == "compiled":
        request.getfixturevalue("compiled")
    else:
        monkeypatch.setattr(compress_module, "backend_of", lambda grad: "reference")
    return kernels.compress_nm


def comparable(tensor: Tensor) -> Tensor:
    """Return the bits, which distinguish -0 from 0, with one pattern for every NaN."""
    return bits_of(torch.where(tensor.isnan(), torch.full_like(tensor, float("nan")), tensor))


def expand(values: Tensor, channels: Tensor, count: int, dtype: torch.dtype) -> Tensor:
    """Return the dense gradient with `count` channels."""
    dense = torch.zeros((*values.shape[:-1], count), dtype=dtype)
    return dense.scatter_(-1, channels.long(), values.to(dtype)).movedim(-1, 1)


def assert_compresses(grad: Tensor, rule: PruneRule, seed: int = 0) -> None:
    """Assert that the compressed gradient is the pruned one, bit for bit, and has the channels of the mask."""
    values, channels = kernels.compress_nm(grad, rule, seed)
    assert (values.dtype, channels.dtype) == (torch.float32, torch.int16)
    assert values.is_contiguous()
    assert channels.is_contiguous()
    kept = reference.keep_mask(grad, rule, seed)
    pruned = kernels.prune_nm(grad, rule, seed)
    assert torch.equal(channels, reference.kept_values(pruned, kept, rule)[1])
    assert torch.equal(comparable(expand(values, channels, grad.shape[1], grad.dtype)), comparable(pruned))
    # Every value is a number of the gradient's dtype.
    assert torch.equal(comparable(values), comparable(values.to(grad.dtype).float()))


@st.composite
def rules(draw: st.DrawFn) -> PruneRule:
    mode = draw(st.sampled_from(["magnitude", "random", "unbiased"]))
    return PruneRule(*draw(group_shapes()), mode, draw(st.sampled_from(SCOPES)) if mode != "unbiased" else "none")


@pytest.mark.usefixtures("compiled")
@settings(max_examples=120)
@given(gradients(special=True), rules(), st.integers(0, 2**64 - 1))
@example(torch.zeros(2, 8, 3, 3), PruneRule(2, 4), 0)
@example(torch.full((2, 8, 3, 3), -0.0), PruneRule(2, 4, rescale="sample_channel"), 0)
def test_the_compressed_gradient_is_the_pruned_one(grad, rule, seed):
    assert_compresses(grad, rule, seed)


def test_a_hand_case(compress):
    grad = torch.tensor([[1.0, 7, -3, 2, 0, 0, 0, 5, 9, -10]])
    values, channels = compress(grad, PruneRule(2, 4))
    assert values.tolist() == [[7, -3, 0, 5, 9, -10]]
    assert channels.tolist() == [[1, 2, 4, 7, 8, 9]]
    values, channels = compress(grad, PruneRule(1, 4))
    assert values.tolist() == [[7, 5, -10]]
    assert channels.tolist() == [[1, 7, 9]]
    values, channels = compress(grad.reshape(1, 10, 1, 1), PruneRule(1, 4, rescale="group"))
    torch.testing.assert_close(values, torch.tensor([13.0, 5, -19]).reshape(1, 1, 1, 3))
    assert channels.tolist() == [[[[1, 7, 9]]]]


@pytest.mark.parametrize("mode", ["magnitude", "random", "unbiased"])
@pytest.mark.parametrize(("n", "m", "channels"), [(2, 4, 16), (3, 7, 19), (4, 8, 9)])
def test_a_group_has_its_number_of_values_even_where_fewer_are_nonzero(compress, mode, n, m, channels):
    grad = torch.randn(40, channels) * (torch.rand(40, channels) < 0.3)
    rule = PruneRule(n, m, mode)
    values, numbers = compress(grad, rule, seed=1)
    assert torch.equal(expand(values, numbers, channels, grad.dtype), kernels.prune_nm(grad, rule, seed=1))
    assert (numbers.diff(dim=1) > 0).all()
    sizes = torch.tensor([min(m, channels - first) for first in range(0, channels, m)])
    for row in numbers.long() // m:
        assert torch.equal(torch.bincount(row, minlength=len(sizes)), sizes.clamp(max=n))


@pytest.mark.parametrize("rescale", SCOPES)
@pytest.mark.parametrize("mode", ["magnitude", "random"])
def test_layouts_give_the_same_result(compress, mode, rescale):
    grad = torch.randn(3, 13, 5, 4)
    rule = PruneRule(2, 4, mode, rescale)
    values, channels = compress(grad, rule, seed=5)
    assert values.shape == channels.shape == (3, 5, 4, 7)
    pruned = kernels.prune_nm(grad, rule, seed=5)
    assert torch.equal(expand(values, channels, 13, torch.float32), pruned)
    for name, same in layouts_of(grad).items():
        before = same.clone()
        found = compress(same, rule, seed=5)
        assert torch.equal(found[0], values), name
        assert torch.equal(found[1], channels), name
        assert torch.equal(same, before), name


@pytest.mark.parametrize("shape", [(0, 8, 3, 3), (2, 0, 3, 3), (2, 8, 0, 3), (0, 8), (4, 0)])
@pytest.mark.parametrize("rescale", SCOPES)
def test_empty_gradients(compress, shape, rescale):
    expected = (*shape[:1], *shape[2:], shape[1] // 2)
    for mode in ("magnitude", "random"):
        values, channels = compress(torch.empty(shape), PruneRule(2, 4, mode, rescale))
        assert values.shape == channels.shape == expected


def test_a_seed_in_memory_draws_the_same_mask(compress):
    grad = torch.randn(6, 32)
    for seed in (0, 5, 2**63 - 1, 2**63, 2**64 - 1):
        memory = torch.tensor(seed - 2**64 if seed >= 2**63 else seed)
        expected = compress(grad, PruneRule(2, 4, "random"), seed=seed)
        assert all(map(torch.equal, compress(grad, PruneRule(2, 4, "random"), seed=memory), expected))


@pytest.mark.parametrize("shape", [(2, 32, 5, 3), (6, 32), (0, 32, 5, 3), (2, 13, 4, 4)])
@pytest.mark.parametrize("mode", ["magnitude", "random"])
def test_the_operator_keeps_what_its_fake_implementation_promises(compress, shape, mode):
    arguments = (torch.randn(shape), 2, 4, mode, "sample_channel", 3)
    torch.library.opcheck(torch.ops.pdt.compress_nm.default, arguments)
    graph = torch.randn(shape, requires_grad=True)
    assert not any(result.requires_grad for result in compress(graph, PruneRule(2, 4)))


def test_a_compiled_function_takes_it_whole(compress):
    def product(grad, seed):
        values, channels = compress(grad * 1, PruneRule(2, 4, "random"), seed=seed)
        return values * channels

    whole = torch.compile(product, backend="aot_eager", fullgraph=True)
    grad = torch.randn(4, 32, 3, 3)
    for seed in (0, 1, 2**62):
        assert torch.equal(whole(grad, seed), product(grad, seed)), seed


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"grad": torch.ones(2, 8).double()}, TypeError, "grad must be float32, bfloat16, float16, got float64"),
        ({"grad": torch.ones(1, 2**15)}, ValueError, "at most 32767 channels, got 32768"),
        ({"grad": torch.ones(4)}, ValueError, r"compress_nm: grad must be \(N, K, P, Q\) or \(rows, K\)"),
        ({"seed": -1}, ValueError, r"compress_nm: seed must be in 0..2\^64-1, got seed=-1"),
        ({"seed": 1.0}, TypeError, "'float' object cannot be interpreted as an integer"),
    ],
)
def test_wrong_arguments_are_named_in_one_line(arguments, error, message):
    with pytest.raises(error, match=message) as raised:
        kernels.compress_nm(**{"grad": torch.ones(2, 8), "rule": PruneRule(2, 4), **arguments})
    assert "\n" not in str(raised.value)


@pytest.mark.usefixtures("compiled")
def test_the_most_channels_that_a_number_can_name():
    assert_compresses(torch.randn(2, 2**15 - 1), PruneRule(1, 32))
