"""Lists and plans of the CUDA kernels for sparse convolution: arithmetic, without a device."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.sparse_conv import cuda_plan as tap_plan
from kernels.sparse_conv.taps import ConvolutionTaps, without_border


@st.composite
def convolutions(draw):
    """Draw the taps of a mask of any shape, and the size of an input that has an output."""
    sides = draw(st.tuples(st.integers(1, 4), st.integers(1, 4)))
    channels = draw(st.tuples(st.integers(1, 6), st.integers(1, 6)))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    kept = torch.rand(*channels, *sides, generator=generator) < draw(st.sampled_from([0.0, 0.4, 0.8, 1.0]))
    stride, dilation = (draw(st.tuples(st.integers(1, 3), st.integers(1, 2))) for _ in range(2))
    padding = draw(st.tuples(st.integers(0, 2), st.integers(0, 2)))
    least = [max(1, dilation[i] * (sides[i] - 1) + 1 - 2 * padding[i]) for i in (0, 1)]
    size = tuple(draw(st.integers(one, one + 9)) for one in least)
    return ConvolutionTaps(kept.numpy(), stride, padding, dilation), size


@settings(max_examples=100)
@given(convolutions())
def test_every_tap_is_listed_once_and_nothing_is_read_beyond_its_block(convolution):
    taps, size = convolution
    every = np.arange(len(taps.position))
    window, output_size = taps.input_window(size), taps.output_size(size)
    lists = tap_plan.sum_lists(taps.forward(), taps.stride, taps.shape[0], window)
    assert np.array_equal(np.sort(lists.nonzero_index), every)
    reads_within(lists, window, taps.shape[1], output_size, taps.stride)

    sets = tap_plan.product_sets(taps.forward(), taps.stride, window)
    number = np.concatenate([one.nonzero_index.ravel() for one in sets] or [every])
    assert np.array_equal(np.sort(number[number >= 0]), every)
    for one in sets:
        channel = np.where(one.nonzero_index < 0, one.out_channel[:, None, None], taps.position[one.nonzero_index, 0])
        assert np.array_equal(channel, np.broadcast_to(one.out_channel[:, None, None], channel.shape))

    grad = taps.grad_window(size, output_size)
    classes = taps.dgrad(size)
    listed = [tap_plan.sum_lists(place.taps, (1, 1), taps.shape[1], grad) for place in classes]
    # A tap reads only the border for every output if the image is smaller than the stride.
    assert np.array_equal(np.sort(np.concatenate([one.nonzero_index for one in listed])), every) or min(size) < max(
        taps.stride
    )
    for place, one in zip(classes, listed, strict=True):
        reads_within(one, grad, taps.shape[0], place.size, (1, 1))


def reads_within(lists, window, channels, places, step):
    """Check that the first and the last word that is read belong to the block of images."""
    if not len(lists.offset):
        return
    kinds = np.repeat([0, 1, 2], [lists.squares, lists.pairs, len(lists.offset) - lists.squares - lists.pairs])
    further = np.array([window.padded_columns + 1, 1, 0])[kinds]
    last = (places[0] - 1) * step[0] * window.padded_columns + (places[1] - 1) * step[1]
    assert lists.offset.min() >= 0
    assert (lists.offset + further).max() + last < channels * window.plane


def groups(kept, step=(1, 1), dilation=(1, 1)):
    """Return the numbers of squares, pairs and singles that the taps of one kernel form."""
    mask = np.array(kept, bool)[None, None]
    taps = ConvolutionTaps(mask, step, (1, 1), dilation).forward()
    return [len(kind.out_channel) for kind in tap_plan.neighbours(taps, step)]


def test_neighbours_are_taken_together():
    square, corner, row = ([0, 1, 1], [0, 1, 1], [0, 0, 0]), ([0, 1, 0], [1, 1, 0], [0, 1, 0]), ([1, 1, 1],)
    assert groups(square) == [1, 0, 0]
    assert groups(corner) == [0, 1, 2]
    assert groups(row) == [0, 1, 1]
    assert groups(np.ones((3, 3))) == [1, 1, 3]
    # With a step or a dilation, adjacent positions read separate values: nothing is shared, or only along rows.
    assert groups(square, step=(2, 2)) == [0, 0, 4]
    assert groups(square, step=(2, 1)) == [0, 2, 0]
    assert groups(square, dilation=(2, 2)) == [0, 0, 4]


def test_channels_with_most_taps_come_first():
    kept = np.zeros((3, 4, 1, 1), bool)
    kept[0, :1], kept[1, :3], kept[2, 1:3] = True, True, True
    window = without_border((2, 2))
    lists = tap_plan.sum_lists(ConvolutionTaps(kept, (1, 1), (0, 0), (1, 1)).forward(), (1, 1), 3, window)
    assert lists.order.tolist() == [1, 2, 0]
    assert lists.first.tolist() == [[0, 0, 0, 0], [0, 0, 0, 0], [0, 3, 5, 6]]
    assert lists.offset.tolist() == [0, 4, 8, 4, 8, 0]
    assert lists.nonzero_index.tolist() == [1, 2, 3, 4, 5, 0]


def test_tiles_fit_and_give_a_device_enough_to_do(monkeypatch):
    monkeypatch.setattr(tap_plan, "ENOUGH_WARPS", 100)
    assert tap_plan.tile_of(8, 8, 25) == (4, 4)
    assert tap_plan.tile_of(8, 8, 13) == (2, 4)
    assert tap_plan.tile_of(8, 8, 1) == (2, 2)
    assert tap_plan.tile_of(3, 9, 1000) == (2, 4)
    assert tap_plan.tile_of(9, 1, 1000) == (1, 1)
