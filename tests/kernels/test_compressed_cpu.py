"""The compiled products with a compressed output gradient against their definition, for layers of every geometry."""

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_compressed import LINEAR, Gradient, compressed

from kernels.compressed import cpu, dispatch, reference
from suite.plan import Geometry

pytestmark = pytest.mark.skipif(not dispatch.available(torch.device("cpu")), reason="no C++ compiler was found")

# The largest error relative to the largest result: of a sum in float32, and of the rounding of a result to 8 or 11
# bits, where a small error of the sum may decide between two neighbours.
ERROR = {torch.float32: 2e-6, torch.bfloat16: 2e-6 + 2.0**-7, torch.float16: 2e-6 + 2.0**-10}
dtypes = st.sampled_from([*ERROR])


def pairs(low, high):
    return st.tuples(st.integers(low, high), st.integers(low, high))


@st.composite
def convolutions(draw):
    """Draw sizes, geometry and rule of a convolution; windows of 3x3 and 5 columns are drawn often."""
    kernel = draw(st.sampled_from([(1, 1), (3, 3), (5, 5), (2, 5)]) | pairs(1, 4))
    stride, dilation, padding = draw(pairs(1, 3)), draw(pairs(1, 2)), draw(pairs(0, 2))
    groups = draw(st.sampled_from([1, 1, 2, 3]))
    least = [max(1, d * (k - 1) + 1 - 2 * p) for k, d, p in zip(kernel, dilation, padding, strict=True)]
    size = tuple(low + draw(st.integers(0, 9)) for low in least)
    inputs = groups * draw(st.integers(1, 5) | st.sampled_from([16, 32, 33, 64, 130]))
    outputs = groups * draw(st.integers(1, 40))
    m = draw(st.integers(2, 32))
    return kernel, stride, dilation, padding, groups, size, inputs, outputs, draw(st.integers(1, m)), m


def operands(images, drawn, dtype, seed=0):
    """Return a compressed gradient, an activation, a weight, and the geometry."""
    kernel, stride, dilation, padding, groups, size, inputs, outputs, n, m = drawn
    generator = torch.Generator().manual_seed(seed)
    activation = torch.randn(images, inputs, *size, generator=generator).to(dtype)
    weight = torch.randn(outputs, inputs // groups, *kernel, generator=generator).to(dtype)
    out = [
        (s + 2 * p - d * (k - 1) - 1) // t + 1
        for s, p, d, k, t in zip(size, padding, dilation, kernel, stride, strict=True)
    ]
    _, grad = compressed((images, outputs, *out), n, m, generator, dtype)
    return grad, activation, weight, Geometry("conv", stride, padding, dilation, groups)


def agree(found, product, grad, *operands):
    """Compare with the definition; errors are relative to the sums of magnitudes, since terms may cancel."""
    weight = next(operand for operand in reversed(operands) if isinstance(operand, torch.Tensor))
    expected = product(grad, *operands)
    magnitudes = (one.abs() if isinstance(one, torch.Tensor) else one for one in operands)
    terms = product(grad._replace(values=grad.values.abs()), *magnitudes)
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    error = (found.double() - expected.double()).abs().max() / terms.double().abs().max().clamp(min=1e-30)
    assert error <= ERROR[weight.dtype], error


@settings(max_examples=150)
@given(convolutions(), dtypes, st.integers(1, 3), st.booleans())
def test_products_of_convolutions(drawn, dtype, images, channels_last):
    grad, activation, weight, geometry = operands(images, drawn, dtype)
    layout = torch.channels_last if channels_last else torch.contiguous_format
    activation, weight = activation.contiguous(memory_format=layout), weight.contiguous(memory_format=layout)
    size = drawn[5]
    found = dispatch.data_gradient(grad, weight, size, geometry)
    assert found.is_contiguous(memory_format=torch.channels_last)
    agree(found, reference.data_gradient, grad, weight, size, geometry)
    found = dispatch.weight_gradient(grad, activation, weight, geometry)
    assert found.stride() == weight.stride()
    agree(found, reference.weight_gradient, grad, activation, weight, geometry)


@settings(max_examples=30)
@given(st.integers(1, 300), st.integers(1, 140), st.integers(1, 70), st.integers(2, 32), dtypes)
def test_products_of_linear_layers(rows, inputs, outputs, m, dtype):
    generator = torch.Generator().manual_seed(0)
    activation = torch.randn(rows, inputs, generator=generator).to(dtype)
    weight = torch.randn(outputs, inputs, generator=generator).to(dtype)
    _, grad = compressed((rows, outputs), 1, m, generator, dtype)
    found = dispatch.data_gradient(grad, weight, (1, 1), LINEAR)
    agree(found, reference.data_gradient, grad, weight, (1, 1), LINEAR)
    found = dispatch.weight_gradient(grad, activation, weight, LINEAR)
    agree(found, reference.weight_gradient, grad, activation, weight, LINEAR)


# Batches and images that are divided into several units, tiles of weights and parts of the weight gradient.
LARGE = [
    ((3, 3), (1, 1), (1, 1), (1, 1), 1, (40, 40), 16, 64, 2, 16),
    ((3, 3), (2, 2), (1, 1), (1, 1), 1, (41, 40), 32, 96, 1, 4),
    ((3, 3), (1, 1), (1, 1), (1, 1), 1, (4, 4), 64, 256, 2, 16),
    ((1, 1), (1, 1), (1, 1), (0, 0), 1, (20, 20), 144, 72, 3, 32),
    ((3, 3), (1, 1), (1, 1), (1, 1), 2, (30, 70), 24, 60, 2, 8),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("drawn", LARGE, ids=str)
def test_products_do_not_depend_on_the_number_of_threads(drawn, dtype):
    images = 70 if drawn[5] == (4, 4) else 5
    grad, activation, weight, geometry = operands(images, drawn, dtype)
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append(
                (
                    dispatch.data_gradient(grad, weight, drawn[5], geometry),
                    dispatch.weight_gradient(grad, activation, weight, geometry),
                )
            )
    finally:
        torch.set_num_threads(before)
    agree(found[0][0], reference.data_gradient, grad, weight, drawn[5], geometry)
    agree(found[0][1], reference.weight_gradient, grad, activation, weight, geometry)
    for other in found[1:]:
        assert all(torch.equal(one, two) for one, two in zip(found[0], other, strict=True))


@pytest.mark.parametrize("drawn", LARGE, ids=str)
def test_errors_in_bfloat16_are_those_of_torch(drawn):
    grad, activation, weight, geometry = operands(5, drawn, torch.bfloat16)
    doubles = [one.double() for one in (activation, weight)]
    exact = (
        reference.data_gradient(grad, doubles[1], drawn[5], geometry),
        reference.weight_gradient(grad, *doubles, geometry),
    )
    of_torch = torch.ops.aten.convolution_backward(
        reference._dense(grad, len(weight)).bfloat16(), activation, weight, None, geometry.stride, geometry.padding,
        geometry.dilation, False, (0, 0), geometry.groups, (True, True, False),
    )  # fmt: skip
    found = (
        dispatch.data_gradient(grad, weight, drawn[5], geometry),
        dispatch.weight_gradient(grad, activation, weight, geometry),
    )
    for ours, theirs, right in zip(found, of_torch, exact, strict=False):
        assert (ours - right).norm() <= 1.01 * (theirs - right).norm()


@pytest.mark.parametrize("dtype", ERROR)
def test_the_weights_of_a_pruned_channel_are_not_read(dtype):
    weight = torch.ones(4, 2, dtype=dtype)
    weight[0] = torch.inf
    kept = torch.ones(1, 1, dtype=torch.int16)
    grad = Gradient(torch.ones(1, 1), kept, 1, 4)
    assert dispatch.data_gradient(grad, weight, (1, 1), LINEAR).tolist() == [[1.0, 1.0]]


def test_an_empty_batch():
    drawn = ((3, 3), (1, 1), (1, 1), (1, 1), 1, (4, 4), 16, 8, 1, 4)
    grad, activation, weight, geometry = operands(2, drawn, torch.float32)
    empty = grad._replace(values=grad.values[:0], channels=grad.channels[:0])
    found = dispatch.data_gradient(empty, weight, (4, 4), geometry)
    assert found.shape == (0, 16, 4, 4)
    found = dispatch.weight_gradient(empty, activation[:0], weight, geometry)
    assert torch.equal(found, torch.zeros_like(weight))


def test_what_does_not_fit_is_refused():
    drawn = ((1, 1), (1, 1), (1, 1), (0, 0), 1, (4, 4), 16, 8, 1, 4)
    (values, channels, *_), _, weight, geometry = operands(2, drawn, torch.float32)
    for wrong_values, wrong_channels, n, message in (
        (values, channels, 2, "2 of every 4 of 8 channels has 4 values a pixel"),
        (values.double(), channels, 1, "float32 values and int16 channels"),
        (values, channels.int(), 1, "float32 values and int16 channels"),
        (values.transpose(1, 2), channels.transpose(1, 2), 1, "both contiguous"),
        (values[0, 0], channels[0, 0], 1, "4 dimensions"),
    ):
        with pytest.raises(ValueError, match=message):
            dispatch.data_gradient(Gradient(wrong_values, wrong_channels, n, 4), weight, (4, 4), geometry)


@pytest.mark.parametrize("wrong", [-1, 3, 8, 12, 30_000, -30_000])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("place", [(0, 0, 0, 1), (1, 3, 3, 1)], ids=["first", "last"])
def test_channels_outside_of_their_group_are_refused(wrong, groups, place):
    """Value 1 belongs to channels 4 to 7; other numbers would be indices outside of the kernels' memory."""
    drawn = ((3, 3), (1, 1), (1, 1), (1, 1), groups, (4, 4), 8 * groups, 8, 1, 4)
    grad, activation, weight, geometry = operands(2, drawn, torch.float32)
    grad.channels[place] = wrong
    message = "1 of every 4 of 8 channels has a value whose channel is not in its group"
    with pytest.raises(ValueError, match=message):
        dispatch.data_gradient(grad, weight, (4, 4), geometry)
    with pytest.raises(ValueError, match=message):
        dispatch.weight_gradient(grad, activation, weight, geometry)


def test_channels_outside_of_a_short_last_group_are_refused():
    values, weight = torch.ones(3, 3), torch.ones(10, 5)
    for last, fits in ((7, False), (8, True), (9, True), (10, False)):
        grad = Gradient(values, torch.tensor([0, 7, last], dtype=torch.int16).repeat(3, 1), 1, 4)
        if fits:
            dispatch.data_gradient(grad, weight, (1, 1), LINEAR)
            continue
        with pytest.raises(ValueError, match="not in its group"):
            dispatch.data_gradient(grad, weight, (1, 1), LINEAR)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_only_numbers_of_kept_channels_reach_the_gradients(bad):
    """Channel 1 is never kept: its broken weights are ignored. A broken kept value is not."""
    channels = torch.tensor([0, 4], dtype=torch.int16).repeat(2, 3, 3, 1)
    grad = Gradient(torch.ones(2, 3, 3, 2), channels, 1, 4)
    weight, activation, geometry = torch.ones(8, 16, 1, 1), torch.ones(2, 16, 3, 3), Geometry("conv")
    weight[1] = bad
    found = dispatch.data_gradient(grad, weight, (3, 3), geometry)
    assert torch.equal(found, torch.full_like(found, 2.0))
    grad.values[1, 2, 2, 0] = bad
    found = dispatch.data_gradient(grad, weight, (3, 3), geometry)
    assert not found[1, :, 2, 2].isfinite().any()
    assert found.isfinite().sum() == found.numel() - 16
    found = dispatch.weight_gradient(grad, activation, weight, geometry)
    assert not found[0].isfinite().any()
    assert found[1:].isfinite().all()


def test_layers_that_do_not_fit_are_refused():
    drawn = ((1, 1), (1, 1), (1, 1), (0, 0), 2, (4, 4), 16, 8, 1, 4)
    grad, activation, weight, geometry = operands(2, drawn, torch.float32)
    for n, m in ((0, 4), (5, 4), (1, 0)):
        with pytest.raises(ValueError, match="with 1 <= n <= m"):
            dispatch.data_gradient(grad._replace(n=n, m=m), weight, (4, 4), geometry)
    for wrong_groups in (0, 3):
        with pytest.raises(ValueError, match=f"cannot be divided into {wrong_groups} groups"):
            dispatch.data_gradient(grad, weight, (4, 4), dataclasses.replace(geometry, groups=wrong_groups))
    for wrong in (activation[:1], activation[:, :8], activation.double(), activation[0]):
        with pytest.raises(ValueError, match=r"begin with \(2, 16\), and torch.float32 on cpu"):
            dispatch.weight_gradient(grad, wrong, weight, geometry)
    many = torch.zeros(2, 8192)
    with pytest.raises(ValueError, match="at most 32767 channels"):
        dispatch.data_gradient(Gradient(many, many.short(), 1, 4), torch.zeros(32768, 1), (1, 1), LINEAR)


def test_nothing_is_compiled_when_the_kernels_are_switched_off(monkeypatch):
    monkeypatch.setenv("PDT_CPU_KERNEL", "0")
    assert cpu.library.__wrapped__() is None
