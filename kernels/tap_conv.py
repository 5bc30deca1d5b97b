"""Convolutions that multiply by the weights that are there, and by no others.

Which weights are there is fixed when a `TapConvolution` is made; their values come with every call. So nothing is
searched for zeros: making the compact form of a weight is one gather by an index that was made once.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import os
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kernels.cpu.build import BuildError
from kernels.cpu.library import open_library

log = logging.getLogger("pdt.kernels")

FORMATS = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
Pair = tuple[int, int]


@functools.cache
def library() -> ctypes.CDLL | None:
    """The compiled kernels, built at first use; `None` where they cannot be had, which is logged once."""
    if os.environ.get("PDT_CPU_KERNEL") == "0":
        return None
    try:
        found, built = open_library("pattern_conv")
    except BuildError as error:
        log.warning("convolutions that skip weights: not to be had, because %s", error)
        return None
    pointer, number, small = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int
    found.pdt_blocks.argtypes = [pointer, pointer, pointer, small, small, small]
    found.pdt_sum_taps.argtypes = [pointer, pointer, pointer, number, number, pointer, pointer, pointer, small]
    found.pdt_sum_products.argtypes = [pointer] * 4 + [number] * 3 + [pointer, pointer, small]
    log.info("convolutions that skip weights: compiled (%s; %s)", built.compiler, built.library)
    return found


class Window(NamedTuple):
    """An image within its border: rows and columns of both, and where the image begins."""

    rows: int
    columns: int
    top: int
    left: int
    padded_rows: int
    padded_columns: int

    @property
    def plane(self) -> int:
        return self.padded_rows * self.padded_columns


class Blocked(NamedTuple):
    """An activation in blocks of images, (N / lanes, C, H', W', lanes) fp32, H' and W' with a border of zeros."""

    data: Tensor
    images: int
    channels: int
    window: Window


def to_blocks(plain: Tensor, window: Window) -> Blocked:
    """Brings an activation (N, C, H, W), fp32, bf16 or fp16, into blocks."""
    found = library()
    assert found is not None
    lanes = found.pdt_block_images()
    images, channels = plain.shape[:2]
    if plain.stride(1) != 1 and plain.stride(3) != 1:
        plain = plain.contiguous()
    data = torch.empty(-(-images // lanes), channels, window.padded_rows, window.padded_columns, lanes)
    _convert(found, plain, data, window, to_blocks=True)
    return Blocked(data, images, channels, window)


def from_blocks(blocked: Blocked, like: Tensor) -> Tensor:
    """Brings blocks without a border back to (N, C, H, W), of the type and memory format of `like`."""
    found = library()
    assert found is not None
    window = blocked.window
    layout = torch.channels_last if like.is_contiguous(memory_format=torch.channels_last) else torch.contiguous_format
    shape = (blocked.images, blocked.channels, window.rows, window.columns)
    plain = torch.empty(shape, dtype=like.dtype, memory_format=layout)
    _convert(found, plain, blocked.data, window, to_blocks=False)
    return plain


def _convert(found: ctypes.CDLL, plain: Tensor, data: Tensor, window: Window, *, to_blocks: bool) -> None:
    images, channels, rows, columns = plain.shape
    stride = list(plain.stride())
    if channels == 1:
        stride[1] = rows * columns  # strides of a single channel say nothing
        stride[3] = 1
    numbers = np.array([images, channels, rows, columns, *stride, *window[2:]], np.int64)
    found.pdt_blocks(
        numbers.ctypes.data, plain.data_ptr(), data.data_ptr(), FORMATS[plain.dtype], to_blocks, torch.get_num_threads()
    )


@dataclass(frozen=True)
class _Taps:
    """Taps by output channel: where each channel's begin, their offsets in the input, and their numbers among all."""

    first: NDArray[np.int64]
    offset: NDArray[np.int32]
    number: Tensor


class TapConvolution:
    """The three products of a convolution of which some weights are absent for good.

    Args:
        kept: (K, C, R, S) bool, the weights that are there.
        stride, padding, dilation: of the convolution, (rows, columns).

    Results are sums in fp32 in an order of their own; they repeat with the same number of threads. Activations may be
    fp32, bf16 or fp16, in channels-last or contiguous memory, on the CPU.
    """

    def __init__(self, kept: Tensor, stride: Pair, padding: Pair, dilation: Pair = (1, 1)) -> None:
        self.shape = tuple(kept.shape)
        self.stride, self.padding, self.dilation = stride, padding, dilation
        taps = np.argwhere(kept.cpu().numpy())  # in the order of output channels, input channels, positions
        self._taps = taps.astype(np.int64)
        self.density = len(taps) / max(kept.numel(), 1)
        counts = kept.flatten(2).sum(2).flatten()
        alive = counts[counts > 0].unique()
        self._taps_each = int(alive) if alive.numel() == 1 else 1  # as many in every kernel: they are summed together
        self._flat: dict[tuple[int, ...], Tensor] = {}
        self._forward: dict[Window, _Taps] = {}
        self._dgrad: dict[tuple[Window, Pair], list[tuple[Pair, Pair, _Taps]]] = {}

    def values(self, weight: Tensor) -> Tensor:
        """The compact form of a weight: what is there, (taps,) fp32, in the order of output channels."""
        return _flat(weight).index_select(0, self._index(weight)).float()

    def forward(self, activation: Tensor, weight: Tensor) -> Tensor:
        """O, (N, K, P, Q), of A, (N, C, H, W)."""
        given = self._input_window(activation)
        blocked = to_blocks(activation, given)
        rows, columns = self._output_size(activation)
        out = self._blocks_of_output(blocked, rows, columns)
        if given not in self._forward:
            self._forward[given] = self._forward_taps(given)
        taps = self._forward[given]
        grid = self._grid(given, Window(rows, columns, 0, 0, rows, columns), self.shape[1], self.shape[0])
        _sum_taps(grid, blocked.data, out.data, 0, taps, self.values(weight))
        return from_blocks(out, activation)

    def dgrad(self, grad: Tensor, weight: Tensor, activation: Tensor) -> Tensor:
        """dA of dO; of `activation` shape and memory format count alone."""
        blocked = to_blocks(grad, self._grad_window(activation, grad))
        return self.dgrad_of_blocks(blocked, weight, activation)

    def dgrad_of_blocks(self, grad: Blocked, weight: Tensor, activation: Tensor) -> Tensor:
        """`dgrad` of what `blocks_of_grad` gave."""
        size = (activation.shape[2], activation.shape[3])
        key = (grad.window, size)
        if key not in self._dgrad:
            self._dgrad[key] = self._dgrad_taps(grad.window, size)
        whole = Window(*size, 0, 0, *size)
        out = Blocked(_empty_blocks(grad, self.shape[1], whole), grad.images, self.shape[1], whole)
        values = self.values(weight)
        for (row, column), (rows, columns), taps in self._dgrad[key]:
            grid = np.array(
                [
                    *(rows, columns),
                    *(self.shape[0], self.shape[0] * grad.window.plane, grad.window.padded_columns, 1),
                    *(self.shape[1] * whole.plane, whole.plane, self.stride[0] * size[1], self.stride[1]),
                ],
                np.int64,
            )
            _sum_taps(grid, grad.data, out.data, row * size[1] + column, taps, values.index_select(0, taps.number))
        return from_blocks(out, activation)

    def blocks_of_grad(self, grad: Tensor, activation: Tensor) -> Blocked:
        """dO in blocks, for both gradients."""
        return to_blocks(grad, self._grad_window(activation, grad))

    def wgrad(self, grad: Tensor, activation: Tensor, weight: Tensor) -> Tensor:
        """dW, zero where no weight is; of `weight` shape, type and memory format count alone."""
        return self.wgrad_of_blocks(self.blocks_of_grad(grad, activation), activation, weight)

    def wgrad_of_blocks(self, grad: Blocked, activation: Tensor, weight: Tensor) -> Tensor:
        """`wgrad` of what `blocks_of_grad` gave."""
        found = library()
        assert found is not None
        given = self._input_window(activation)
        blocked = to_blocks(activation, given)
        if given not in self._forward:
            self._forward[given] = self._forward_taps(given)
        taps, each = self._forward[given], self._taps_each
        grid = self._grid(given, grad.window, self.shape[1], self.shape[0])
        plane = (self._taps[::each, 0] * grad.window.plane).astype(np.int32)
        gradients = torch.empty(len(self._taps))
        begin = (grad.window.top * grad.window.padded_columns + grad.window.left) * grad.data.shape[-1]
        status = found.pdt_sum_products(
            grid.ctypes.data, blocked.data.data_ptr(), grad.data.data_ptr() + 4 * begin, gradients.data_ptr(),
            len(grad.data), len(plane), each, plane.ctypes.data, taps.offset.ctypes.data, torch.get_num_threads(),
        )  # fmt: skip
        if status:
            raise MemoryError(f"no memory for the weight gradient of a convolution of {len(self._taps)} weights")
        dense = torch.zeros_like(weight)
        _flat(dense).index_copy_(0, self._index(dense), gradients.to(weight.dtype))
        return dense

    def _index(self, weight: Tensor) -> Tensor:
        """Where the taps lie in the memory of a weight."""
        stride = weight.stride()
        if stride not in self._flat:
            self._flat[stride] = torch.from_numpy(self._taps @ np.array(stride, np.int64))
        return self._flat[stride]

    def _input_window(self, activation: Tensor) -> Window:
        rows, columns = activation.shape[2:]
        above, beside = self.padding
        return Window(rows, columns, above, beside, rows + 2 * above, columns + 2 * beside)

    def _output_size(self, activation: Tensor) -> Pair:
        sizes = [
            (activation.shape[2 + axis] + 2 * self.padding[axis] - self.dilation[axis] * (self.shape[2 + axis] - 1) - 1)
            // self.stride[axis]
            + 1
            for axis in (0, 1)
        ]
        return sizes[0], sizes[1]

    def _grad_window(self, activation: Tensor, grad: Tensor) -> Window:
        """dO within a border as wide as any offset of the data gradient needs."""
        borders = []
        for axis in (0, 1):
            size, given = activation.shape[2 + axis], grad.shape[2 + axis]
            before = after = 0
            for first in range(self.stride[axis]):
                count = -(-(size - first) // self.stride[axis])
                for _, shift in self._shifts(axis, first):
                    before, after = max(before, -shift), max(after, count - 1 + shift - (given - 1))
            borders.append((before, after))
        (top, bottom), (left, right) = borders
        rows, columns = grad.shape[2:]
        return Window(rows, columns, top, left, rows + top + bottom, columns + left + right)

    def _shifts(self, axis: int, first: int) -> list[Pair]:
        """Positions of the kernel that reach input rows first, first + stride ...: with the output row of the first."""
        found = []
        for position in range(self.shape[2 + axis]):
            reach = first + self.padding[axis] - position * self.dilation[axis]
            if reach % self.stride[axis] == 0:
                found.append((position, reach // self.stride[axis]))
        return found

    def _blocks_of_output(self, given: Blocked, rows: int, columns: int) -> Blocked:
        window = Window(rows, columns, 0, 0, rows, columns)
        return Blocked(_empty_blocks(given, self.shape[0], window), given.images, self.shape[0], window)

    def _grid(self, given: Window, made: Window, in_channels: int, out_channels: int) -> NDArray[np.int64]:
        down, right = self.stride
        return np.array(
            [
                *(made.rows, made.columns),
                *(in_channels, in_channels * given.plane, down * given.padded_columns, right),
                *(out_channels * made.plane, made.plane, made.padded_columns, 1),
            ],
            np.int64,
        )

    def _forward_taps(self, given: Window) -> _Taps:
        out, channel, row, column = self._taps.T
        offset = channel * given.plane + row * self.dilation[0] * given.padded_columns + column * self.dilation[1]
        first = np.searchsorted(out, np.arange(self.shape[0] + 1))
        return _Taps(first.astype(np.int64), offset.astype(np.int32), torch.arange(len(out)))

    def _dgrad_taps(self, window: Window, size: Pair) -> list[tuple[Pair, Pair, _Taps]]:
        """For every class of input places that a stride tells apart: its first place, how many, and their taps."""
        found = []
        out, channel, row, column = self._taps.T
        for first_row in range(min(self.stride[0], size[0])):
            for first_column in range(min(self.stride[1], size[1])):
                down = np.full(self.shape[2], np.iinfo(np.int32).min, np.int64)
                right = np.full(self.shape[3], np.iinfo(np.int32).min, np.int64)
                for position, shift in self._shifts(0, first_row):
                    down[position] = shift
                for position, shift in self._shifts(1, first_column):
                    right[position] = shift
                number = np.flatnonzero((down[row] > np.iinfo(np.int32).min) & (right[column] > np.iinfo(np.int32).min))
                number = number[np.argsort(channel[number], kind="stable")]
                first = np.searchsorted(channel[number], np.arange(self.shape[1] + 1))
                offset = (
                    out[number] * window.plane
                    + (down[row[number]] + window.top) * window.padded_columns
                    + right[column[number]]
                    + window.left
                )
                places = tuple(
                    -(-(size[axis] - start) // self.stride[axis])
                    for axis, start in enumerate((first_row, first_column))
                )
                taps = _Taps(first.astype(np.int64), offset.astype(np.int32), torch.from_numpy(number))
                found.append(((first_row, first_column), (places[0], places[1]), taps))
        return found


def _flat(weight: Tensor) -> Tensor:
    """A weight's memory as a vector."""
    return weight.as_strided((weight.numel(),), (1,))


def _empty_blocks(like: Blocked, channels: int, window: Window) -> Tensor:
    blocks, *_, lanes = like.data.shape
    return torch.empty(blocks, channels, window.padded_rows, window.padded_columns, lanes)


def _sum_taps(grid: NDArray[np.int64], given: Tensor, out: Tensor, begin: int, taps: _Taps, values: Tensor) -> None:
    found = library()
    assert found is not None
    found.pdt_sum_taps(
        grid.ctypes.data, given.data_ptr(), out.data_ptr() + 4 * begin * out.shape[-1], len(out), len(taps.first) - 1,
        taps.first.ctypes.data, taps.offset.ctypes.data, values.data_ptr(), torch.get_num_threads(),
    )  # fmt: skip
