"""Sparse convolution equals masked dense convolution: all three products, for any shape."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.sparse_conv.cpu import CpuSparseConvolution, Window, from_blocks, to_blocks
from kernels.sparse_conv.reference import products
from methods.clicktrain.patterns import generic_pool

pytestmark = pytest.mark.usefixtures("compiled")
RELATIVE = {torch.float32: 1e-4, torch.bfloat16: 2.0**-7, torch.float16: 2.0**-10}


def patterned(out_channels, in_channels, absent, generator):
    """Return a mask with patterns, and with whole kernels masked."""
    pool = generic_pool(12)
    numbers = torch.randint(len(pool), (out_channels, in_channels), generator=generator)
    kernels = torch.rand(out_channels, in_channels, 1, 1, generator=generator) >= absent
    return pool[numbers].view(out_channels, in_channels, 3, 3) & kernels


def dgrad(convolution, grad, weight, activation):
    """Return the data gradient of an output gradient in torch's layout."""
    return convolution.dgrad(convolution.blocks_of_grad(grad, activation), weight, activation)


def wgrad(convolution, grad, activation, weight):
    """Return the weight gradient of an output gradient in torch's layout."""
    return convolution.wgrad(convolution.blocks_of_grad(grad, activation), activation, weight)


def compare(
    kept, images, size, stride, padding, dilation=1, dtype=torch.float32, last=True, seed=0,
    convolution=CpuSparseConvolution, device="cpu",
):  # fmt: skip
    """Compare the three products with those of a masked dense convolution in float64, and return them."""
    generator = torch.Generator().manual_seed(seed)
    layout = torch.channels_last if last else torch.contiguous_format

    def draw(*shape):
        return torch.randn(*shape, generator=generator).to(dtype).contiguous(memory_format=layout)

    activation, weight = draw(images, kept.shape[1], *size), draw(*kept.shape)
    exact = [(activation.double()).requires_grad_(), (weight * kept).double().requires_grad_()]
    out = F.conv2d(*exact, None, stride, padding, dilation)
    grad = draw(*out.shape)
    out.backward(grad.double())
    taps = convolution(kept, *((one, one) if isinstance(one, int) else one for one in (stride, padding, dilation)))
    activation, weight, grad = (given.to(device) for given in (activation, weight, grad))
    found = (
        taps.forward(activation, weight),
        dgrad(taps, grad, weight, activation),
        wgrad(taps, grad, activation, weight),
    )
    assert all(one.device == activation.device for one in found)
    found = tuple(one.cpu() for one in found)
    for ours, theirs in zip(found, (out.detach(), exact[0].grad, exact[1].grad * kept), strict=True):
        assert ours.dtype == dtype
        assert ours.shape == theirs.shape
        error = (ours.double() - theirs).abs().max() if theirs.numel() else torch.zeros(())
        assert error <= RELATIVE[dtype] * theirs.abs().max().clamp_min(1e-6)
    assert not found[2][~kept].any()
    return found


@settings(max_examples=60)
@given(
    st.integers(1, 20), st.integers(1, 20), st.integers(1, 40), st.tuples(st.integers(1, 19), st.integers(1, 19)),
    st.integers(1, 3), st.integers(0, 3), st.sampled_from([0.0, 0.5, 0.9, 1.0]), st.booleans(), st.integers(0, 2**31),
)  # fmt: skip
def test_patterns_of_any_shape(out_channels, in_channels, images, size, stride, padding, absent, last, seed):
    if min(size) + 2 * padding < 3:
        return
    kept = patterned(out_channels, in_channels, absent, torch.Generator().manual_seed(seed))
    compare(kept, images, size, stride, padding, last=last, seed=seed)


@settings(max_examples=30)
@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 3), st.integers(1, 2), st.booleans(), st.integers(0, 2**31))
def test_any_weights_may_be_absent(rows, columns, stride, dilation, last, seed):
    """Kernels of any size with a random number of weights in each."""
    generator = torch.Generator().manual_seed(seed)
    kept = torch.rand(5, 7, rows, columns, generator=generator) > 0.6
    compare(kept, 3, (9, 11), stride, 1, dilation, last=last, seed=seed)


@settings(max_examples=40)
@given(
    *[st.tuples(st.integers(low, high), st.integers(low, high)) for low, high in ((1, 3), (0, 3), (1, 2))],
    st.booleans(), st.integers(0, 2**31),
)  # fmt: skip
def test_rows_and_columns_may_differ_in_everything(stride, padding, dilation, last, seed):
    kept = patterned(5, 6, 0.3, torch.Generator().manual_seed(seed))
    compare(kept, 3, (11, 8), stride, padding, dilation, last=last, seed=seed)


@pytest.mark.parametrize(
    "given",
    [
        pytest.param(lambda: torch.randn(5, 4, 6, 7).contiguous(memory_format=torch.channels_last)[:, :1], id="sliced"),
        pytest.param(lambda: torch.randn(5, 1, 1, 1).expand(5, 1, 6, 7), id="expanded"),
        pytest.param(lambda: torch.randn(5, 1, 7, 6).transpose(2, 3), id="transposed"),
        pytest.param(lambda: torch.randn(5, 6, 7, 2)[..., :1].permute(0, 3, 1, 2), id="one of two"),
    ],
)
def test_one_channel_is_read_where_its_columns_lie(given):
    """The stride of a dimension of size 1 is arbitrary, and adjacent memory belongs to another tensor."""
    torch.manual_seed(0)
    activation = given()
    kept = patterned(4, 1, 0.0, torch.Generator().manual_seed(0))
    weight = torch.randn(4, 1, 3, 3) * kept
    taps = CpuSparseConvolution(kept, (1, 1), (1, 1))
    torch.testing.assert_close(taps.forward(activation, weight), F.conv2d(activation, weight, padding=1))
    grad = torch.randn(5, 4, 6, 7)
    one = patterned(1, 4, 0.0, torch.Generator().manual_seed(0))
    back = CpuSparseConvolution(one, (1, 1), (1, 1))
    other = torch.randn(1, 4, 3, 3) * one
    expected = torch.nn.grad.conv2d_input(grad.shape, other, activation, padding=1)
    torch.testing.assert_close(dgrad(back, activation, other, grad), expected)
    expected = torch.nn.grad.conv2d_weight(grad, other.shape, activation, padding=1) * one
    torch.testing.assert_close(wgrad(back, activation, grad, other), expected, rtol=1e-4, atol=1e-4)


def test_one_object_serves_images_of_several_sizes():
    """Sizes 7 and 8 have the same output size at stride 2 without padding."""
    kept = patterned(4, 3, 0.0, torch.Generator().manual_seed(0))
    weight = torch.randn(4, 3, 3, 3) * kept
    taps = CpuSparseConvolution(kept, (2, 2), (0, 0))
    for size in (7, 8, 7):
        activation = torch.randn(2, 3, size, size)
        grad = torch.randn(2, 4, 3, 3)
        torch.testing.assert_close(taps.forward(activation, weight), F.conv2d(activation, weight, stride=2))
        expected = torch.nn.grad.conv2d_input(activation.shape, weight, grad, stride=2)
        torch.testing.assert_close(dgrad(taps, grad, weight, activation), expected)


def test_what_it_cannot_multiply_is_refused():
    taps = CpuSparseConvolution(patterned(4, 3, 0.0, torch.Generator().manual_seed(0)), (1, 1), (1, 1))
    with pytest.raises(ValueError, match="the input has 6 channels and the weights 3"):
        taps.forward(torch.randn(1, 6, 4, 4), torch.randn(4, 3, 3, 3))
    with pytest.raises(TypeError, match="supports float32, bfloat16, float16, not float64"):
        taps.forward(torch.randn(1, 3, 4, 4).double(), torch.randn(4, 3, 3, 3).double())


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_16_bits_are_summed_in_fp32(dtype, last):
    compare(patterned(20, 18, 0.5, torch.Generator().manual_seed(0)), 9, (8, 9), 1, 1, dtype=dtype, last=last)


def test_errors_in_bfloat16_are_those_of_torch():
    generator = torch.Generator().manual_seed(0)
    kept = patterned(20, 18, 0.5, generator)
    activation, grad = (torch.randn(70, channels, 9, 7, generator=generator).bfloat16() for channels in (18, 20))
    weight = (torch.randn(kept.shape, generator=generator) * kept).bfloat16()
    geometry = ((1, 1), (1, 1), (1, 1))
    data, weights, _ = torch.ops.aten.convolution_backward(
        grad, activation, weight, None, *geometry, False, (0, 0), 1, (True, True, False)
    )
    of_torch = F.conv2d(activation, weight, None, *geometry), data, weights * kept
    taps = CpuSparseConvolution(kept, *geometry)
    found = (
        taps.forward(activation, weight), dgrad(taps, grad, weight, activation), wgrad(taps, grad, activation, weight)
    )  # fmt: skip
    exact = products(kept, *(given.double() for given in (activation, weight, grad)), *geometry)
    for ours, theirs, right in zip(found, of_torch, exact, strict=True):
        assert (ours - right).norm() <= 1.01 * (theirs - right).norm()


def test_rows_that_do_not_fit_the_cache_together():
    """Channels and positions exceed half a second-level cache, so that rows are divided into tiles."""
    compare(patterned(4, 96, 0.9, torch.Generator().manual_seed(0)), 16, (33, 30), 1, 1)


def test_outputs_have_the_memory_format_of_activations():
    kept = patterned(8, 8, 0.5, torch.Generator().manual_seed(0))
    for last in (False, True):
        out, grad, _ = compare(kept, 4, (6, 6), 1, 1, last=last)
        layout = torch.channels_last if last else torch.contiguous_format
        assert out.is_contiguous(memory_format=layout)
        assert grad.is_contiguous(memory_format=layout)


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (17, 19, 5, 3), (16, 16, 16, 16), (3, 1, 4, 20)])
def test_blocks_give_back_what_they_were_given(shape, last):
    plain = torch.randn(shape).contiguous(memory_format=torch.channels_last if last else torch.contiguous_format)
    rows, columns = shape[2:]
    bordered = to_blocks(plain, Window(rows, columns, 2, 1, rows + 3, columns + 4))
    inside = bordered.data[:, :, 2 : 2 + rows, 1 : 1 + columns]
    assert bordered.data.abs().sum() == pytest.approx(inside.abs().sum().item(), rel=1e-5)  # the border is zero
    for image in range(shape[0]):
        block, lane = divmod(image, bordered.data.shape[-1])
        assert torch.equal(inside[block, ..., lane], plain[image])
    whole = Window(rows, columns, 0, 0, rows, columns)
    assert torch.equal(from_blocks(to_blocks(plain, whole), plain), plain)


def test_values_are_those_of_unmasked_weights():
    kept = patterned(6, 5, 0.5, torch.Generator().manual_seed(1))
    weight = torch.randn(6, 5, 3, 3)
    taps = CpuSparseConvolution(kept, (1, 1), (1, 1))
    for layout in (torch.contiguous_format, torch.channels_last):
        assert torch.equal(taps.values(weight.contiguous(memory_format=layout)), weight[kept])
    assert taps.density == pytest.approx(kept.float().mean().item())
