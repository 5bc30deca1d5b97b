"""Convolutions of filters that keep one 2x2 block each, compared with torch's on the same masked weights."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import methods.backends.blocks as module
from methods.backends.blocks import BlockConvolutions
from suite.method import Geometry
from suite.ops import TORCH


def a_case(corners, channels, seed, layout=torch.channels_last, gone=0.3):
    """Return mask and weights of filters with these blocks."""
    generator = torch.Generator().manual_seed(seed)
    kept = torch.zeros(len(corners), channels, 3, 3, dtype=torch.bool)
    for number, corner in enumerate(corners):
        top, left = divmod(corner, 2)
        kept[number, :, top : top + 2, left : left + 2] = True
    kept &= (torch.rand(len(corners), channels, 1, 1, generator=generator) >= gone).expand_as(kept)
    weight = (torch.randn(kept.shape, generator=generator) * kept).contiguous(memory_format=layout)
    return kept, weight, generator


@settings(max_examples=30)
@given(
    corners=st.lists(st.integers(0, 3), min_size=1, max_size=9),
    channels=st.integers(1, 5),
    images=st.integers(1, 3),
    size=st.tuples(st.integers(5, 9), st.integers(5, 9)),
    stride=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    padding=st.tuples(st.integers(0, 3), st.integers(0, 3)),
    dilation=st.tuples(st.integers(1, 2), st.integers(1, 2)),
    layout=st.sampled_from([torch.channels_last, torch.contiguous_format]),
    seed=st.integers(0, 99),
)
def test_blocks_compute_what_the_masked_convolution_does(
    corners, channels, images, size, stride, padding, dilation, layout, seed
):
    kept, weight, generator = a_case(corners, channels, seed, layout)
    geometry = Geometry("conv", stride, padding, dilation)
    activation = torch.randn(images, channels, *size, generator=generator).contiguous(memory_format=layout)
    bias = torch.randn(len(corners), generator=generator)
    blocks = BlockConvolutions(kept)
    expected = TORCH.forward(activation, weight, bias, geometry)
    out = blocks.forward(activation, weight, bias, geometry)
    close = {"rtol": 1e-4, "atol": 1e-4}
    torch.testing.assert_close(out, expected, **close)
    grad = torch.randn(expected.shape, generator=generator).contiguous(memory_format=layout)
    torch.testing.assert_close(
        blocks.dgrad(grad, weight, activation, geometry), TORCH.dgrad(grad, weight, activation, geometry), **close
    )
    found = blocks.wgrad(grad, activation, weight, geometry, True)
    whole = TORCH.wgrad(grad, activation, weight, geometry, True)
    in_blocks = torch.zeros_like(weight)
    for number in range(len(corners)):
        top, left = divmod(corners[number], 2) if kept[number].any() else (0, 0)
        in_blocks[number, :, top : top + 2, left : left + 2] = 1
    torch.testing.assert_close(found[0][kept], whole[0][kept], **close)
    assert not found[0][in_blocks == 0].any()
    torch.testing.assert_close(found[1], whole[1], **close)


def test_sums_of_16_bit_parts_are_rounded_once():
    kept, weight, generator = a_case([0, 1, 2, 3] * 8, 16, 0)
    geometry = Geometry("conv", (1, 1), (1, 1))
    grad = torch.randn(4, 32, 8, 8, generator=generator).bfloat16()
    like, weight = torch.empty(4, 16, 8, 8, dtype=torch.bfloat16), weight.bfloat16()
    exact = TORCH.dgrad(grad.double(), weight.double(), like.double(), geometry)
    ours, theirs = (
        (one.dgrad(grad, weight, like, geometry).double() - exact).square().mean().sqrt()
        for one in (BlockConvolutions(kept), TORCH)
    )
    assert ours <= 1.6 * theirs  # each of four parts is rounded by itself before


def test_what_comes_out_has_the_memory_format_of_what_goes_in():
    kept, weight, generator = a_case([3, 0, 1, 2, 0], 4, 0)
    geometry = Geometry("conv", (1, 1), (1, 1))
    activation = torch.randn(2, 4, 8, 8, generator=generator).contiguous(memory_format=torch.channels_last)
    blocks = BlockConvolutions(kept)
    out = blocks.forward(activation, weight, None, geometry)
    assert out.is_contiguous(memory_format=torch.channels_last)
    assert blocks.dgrad(out, weight, activation, geometry).is_contiguous(memory_format=torch.channels_last)


def test_a_gradient_is_sorted_once_for_both_products(monkeypatch):
    kept, weight, generator = a_case([3, 0, 1], 4, 0)
    geometry = Geometry("conv", (1, 1), (1, 1))
    activation = torch.randn(2, 4, 8, 8, generator=generator)
    blocks = BlockConvolutions(kept)
    sorted_ones = []
    channels = module._channels
    monkeypatch.setattr(module, "_channels", lambda *given: sorted_ones.append(1) or channels(*given))
    first, second = torch.randn(2, 3, 8, 8, generator=generator), torch.randn(2, 3, 8, 8, generator=generator)
    for grad in (first, second):
        a = blocks.dgrad(grad, weight, activation, geometry)
        blocks.wgrad(grad, activation, weight, geometry, False)
        torch.testing.assert_close(a, TORCH.dgrad(grad, weight, activation, geometry), rtol=1e-4, atol=1e-4)
    assert len(sorted_ones) == 2


@pytest.mark.parametrize(
    ("kept", "message"),
    [
        (torch.ones(2, 2, 3, 3, dtype=torch.bool), "filter 0 keeps more than one 2x2 block"),
        (torch.ones(2, 2, 1, 1, dtype=torch.bool), "kernels are 1x1; blocks are of 3x3 ones"),
    ],
)
def test_other_filters_are_refused(kept, message):
    with pytest.raises(ValueError, match=message):
        BlockConvolutions(kept)
