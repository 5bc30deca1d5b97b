"""Convolutions that multiply by the weights that are there, and by no others.

Which weights are there is fixed when a `CpuSparseConvolution` is made; their values come with every call. So nothing is
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
from kernels.sparse_conv.neighbours import neighbours
from kernels.sparse_conv.taps import ConvolutionTaps, Integers, Pair, Taps, Window, without_border

log = logging.getLogger("pdt.kernels")

FORMATS = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}


@functools.cache
def library() -> ctypes.CDLL | None:
    """The compiled kernels, built at first use; `None` where they cannot be had, which is logged once."""
    if os.environ.get("PDT_CPU_KERNEL") == "0":
        return None
    try:
        found, built = open_library("sparse_conv")
    except BuildError as error:
        log.warning("convolutions that skip weights: not to be had, because %s", error)
        return None
    pointer, number, small = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int
    found.pdt_blocks.argtypes = [pointer, pointer, pointer, small, small, small]
    found.pdt_sum_taps.argtypes = [pointer, pointer, pointer, number, number, *[pointer] * 5, small]
    found.pdt_sum_products.argtypes = [pointer] * 4 + [number] * 3 + [pointer, pointer, small]
    log.info("convolutions that skip weights: compiled (%s; %s)", built.compiler, built.library)
    return found


class Blocked(NamedTuple):
    """An activation in blocks of images, (N / lanes, C, H', W', lanes) fp32, H' and W' with a border of zeros."""

    data: Tensor
    images: int
    channels: int
    window: Window


def to_blocks(plain: Tensor, window: Window) -> Blocked:
    """Brings an activation (N, C, H, W), fp32, bf16 or fp16, of any strides, into blocks.

    Raises:
        TypeError: for any other type.
    """
    found = library()
    assert found is not None
    if plain.dtype not in FORMATS:
        known = ", ".join(str(dtype).removeprefix("torch.") for dtype in FORMATS)
        raise TypeError(f"convolutions that skip weights take {known}, not {str(plain.dtype).removeprefix('torch.')}")
    lanes = found.pdt_block_images()
    images, channels = plain.shape[:2]
    if plain.stride(3) != 1 and (channels == 1 or plain.stride(1) != 1):  # neither columns nor channels side by side
        plain = plain.clone(memory_format=torch.contiguous_format)
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
        stride[1] = rows * columns  # whatever the tensor says of its one channel, columns are side by side
    numbers = np.array([images, channels, rows, columns, *stride, *window[2:]], np.int64)
    found.pdt_blocks(
        numbers.ctypes.data, plain.data_ptr(), data.data_ptr(), FORMATS[plain.dtype], to_blocks, torch.get_num_threads()
    )


@dataclass(frozen=True)
class _Lists:
    """Taps by channel of the result, squares of four and those that are left: what `pdt_sum_taps` reads.

    Attributes:
        square, tap: where each channel's squares, and its other taps, begin: (channels + 1,).
        square_offset, tap_offset: of each square's first tap, and of each other tap.
        number: of the taps, those of squares first, in the compact form of the weight.
    """

    square: Integers
    square_offset: NDArray[np.int32]
    tap: Integers
    tap_offset: NDArray[np.int32]
    number: Tensor

    @staticmethod
    def of(taps: Taps, step: Pair, channels: int, window: Window) -> _Lists:
        squares, pairs, singles = (
            groups.taken(np.argsort(groups.made, kind="stable")) for groups in neighbours(taps, step)
        )
        numbers = np.concatenate([pairs.number.ravel(), singles.number.ravel()])
        others = taps.taken(np.isin(taps.number, numbers))
        return _Lists(
            np.searchsorted(squares.made, np.arange(channels + 1)).astype(np.int64),
            squares.offset(window),
            others.first(channels),
            others.offset(window),
            torch.from_numpy(np.concatenate([squares.number.ravel(), others.number])),
        )


class CpuSparseConvolution:
    """The three products of a convolution of which some weights are absent for good.

    Args:
        kept: (K, C, R, S) bool, the weights that are there.
        stride, padding, dilation: of the convolution, (rows, columns).

    Results are sums in fp32 in an order of their own; they repeat with the same number of threads. Activations may be
    fp32, bf16 or fp16, in channels-last or contiguous memory, on the CPU.
    """

    def __init__(self, kept: Tensor, stride: Pair, padding: Pair, dilation: Pair = (1, 1)) -> None:
        self._index = ConvolutionTaps(kept.cpu().numpy(), stride, padding, dilation)
        self.shape, self.density = self._index.shape, self._index.density
        self.stride, self.padding, self.dilation = stride, padding, dilation
        counts = kept.flatten(2).sum(2).flatten()
        alive = counts[counts > 0].unique()
        self._taps_each = int(alive) if alive.numel() == 1 else 1  # as many in every kernel: they are summed together
        self._flat: dict[tuple[int, ...], Tensor] = {}
        self._gathers: dict[tuple[int, tuple[int, ...]], Tensor] = {}
        self._forward: dict[Window, _Lists] = {}
        self._offset: dict[Window, NDArray[np.int32]] = {}
        self._dgrad: dict[tuple[Window, Pair], list[tuple[Pair, Pair, _Lists]]] = {}

    def values(self, weight: Tensor) -> Tensor:
        """The compact form of a weight: what is there, (taps,) fp32, in the order of output channels."""
        return _flat(weight).index_select(0, self._memory(weight)).float()

    def _values(self, weight: Tensor, lists: _Lists) -> Tensor:
        """The compact form in the order of lists, which stay as long as this does: one gather."""
        key = (id(lists), weight.stride())
        if key not in self._gathers:
            self._gathers[key] = self._memory(weight).index_select(0, lists.number)
        return _flat(weight).index_select(0, self._gathers[key]).float()

    def prepare(self, size: Pair) -> None:
        """Make what depends on the mask and on an input of (H, W) alone: all lists of all products."""
        self._forward_lists(self._index.input_window(size))
        self._dgrad_lists(self._index.grad_window(size, self._index.output_size(size)), size)

    def forward(self, activation: Tensor, weight: Tensor) -> Tensor:
        """O, (N, K, P, Q), of A, (N, C, H, W)."""
        self._index.check_channels(activation.shape[1])
        blocked = to_blocks(activation, self._index.input_window(_size(activation)))
        made = without_border(self._index.output_size(_size(activation)))
        out = Blocked(_empty_blocks(blocked, self.shape[0], made), blocked.images, self.shape[0], made)
        grid = self._grid(blocked.window, made)
        lists = self._forward_lists(blocked.window)
        _sum_taps(grid, blocked.data, out.data, 0, lists, self._values(weight, lists))
        return from_blocks(out, activation)

    def dgrad(self, grad: Tensor, weight: Tensor, activation: Tensor) -> Tensor:
        """dA of dO; of `activation` shape and memory format count alone."""
        return self.dgrad_of_blocks(self.blocks_of_grad(grad, activation), weight, activation)

    def dgrad_of_blocks(self, grad: Blocked, weight: Tensor, activation: Tensor) -> Tensor:
        """`dgrad` of what `blocks_of_grad` gave."""
        size = _size(activation)
        whole = without_border(size)
        out = Blocked(_empty_blocks(grad, self.shape[1], whole), grad.images, self.shape[1], whole)
        down, right = self.stride
        for (row, column), (rows, columns), lists in self._dgrad_lists(grad.window, size):
            grid = np.array(
                [
                    *(rows, columns),
                    *(self.shape[0], self.shape[0] * grad.window.plane, grad.window.padded_columns, 1),
                    *(self.shape[1] * whole.plane, whole.plane, down * size[1], right),
                ],
                np.int64,
            )
            _sum_taps(grid, grad.data, out.data, row * size[1] + column, lists, self._values(weight, lists))
        return from_blocks(out, activation)

    def blocks_of_grad(self, grad: Tensor, activation: Tensor) -> Blocked:
        """dO in blocks, for both gradients."""
        return to_blocks(grad, self._index.grad_window(_size(activation), _size(grad)))

    def wgrad(self, grad: Tensor, activation: Tensor, weight: Tensor) -> Tensor:
        """dW, zero where no weight is; of `weight` shape, type and memory format count alone."""
        return self.wgrad_of_blocks(self.blocks_of_grad(grad, activation), activation, weight)

    def wgrad_of_blocks(self, grad: Blocked, activation: Tensor, weight: Tensor) -> Tensor:
        """`wgrad` of what `blocks_of_grad` gave."""
        found = library()
        assert found is not None
        blocked = to_blocks(activation, self._index.input_window(_size(activation)))
        each, count = self._taps_each, len(self._index.position)
        offset = self._offsets(blocked.window)
        grid = self._grid(blocked.window, grad.window)
        plane = (self._index.position[::each, 0] * grad.window.plane).astype(np.int32)
        gradients = torch.empty(count)
        begin = (grad.window.top * grad.window.padded_columns + grad.window.left) * grad.data.shape[-1]
        status = found.pdt_sum_products(
            grid.ctypes.data, blocked.data.data_ptr(), grad.data.data_ptr() + 4 * begin, gradients.data_ptr(),
            len(grad.data), len(plane), each, plane.ctypes.data, offset.ctypes.data, torch.get_num_threads(),
        )  # fmt: skip
        if status:
            raise MemoryError(f"no memory for the weight gradient of a convolution of {count} weights")
        dense = torch.zeros_like(weight)
        _flat(dense).index_copy_(0, self._memory(dense), gradients.to(weight.dtype))
        return dense

    def _memory(self, weight: Tensor) -> Tensor:
        """Where the taps lie in the memory of a weight."""
        stride = weight.stride()
        if stride not in self._flat:
            self._flat[stride] = torch.from_numpy(self._index.memory(stride))
        return self._flat[stride]

    def _forward_lists(self, window: Window) -> _Lists:
        if window not in self._forward:
            self._forward[window] = _Lists.of(self._index.forward(), self.stride, self.shape[0], window)
        return self._forward[window]

    def _offsets(self, window: Window) -> NDArray[np.int32]:
        """Of all taps, in the order of the compact form."""
        if window not in self._offset:
            self._offset[window] = self._index.forward().offset(window)
        return self._offset[window]

    def _dgrad_lists(self, window: Window, size: Pair) -> list[tuple[Pair, Pair, _Lists]]:
        key = (window, size)
        if key not in self._dgrad:
            self._dgrad[key] = [
                (first, places, _Lists.of(taps, (1, 1), self.shape[1], window))
                for first, places, taps in self._index.dgrad(size)
            ]
        return self._dgrad[key]

    def _grid(self, given: Window, made: Window) -> NDArray[np.int64]:
        out_channels, in_channels = self.shape[:2]
        down, right = self.stride
        return np.array(
            [
                *(made.rows, made.columns),
                *(in_channels, in_channels * given.plane, down * given.padded_columns, right),
                *(out_channels * made.plane, made.plane, made.padded_columns, 1),
            ],
            np.int64,
        )


def _size(image: Tensor) -> Pair:
    return image.shape[2], image.shape[3]


def _flat(weight: Tensor) -> Tensor:
    """A weight's memory as a vector."""
    return weight.as_strided((weight.numel(),), (1,))


def _empty_blocks(like: Blocked, channels: int, window: Window) -> Tensor:
    blocks, *_, lanes = like.data.shape
    return torch.empty(blocks, channels, window.padded_rows, window.padded_columns, lanes)


def _sum_taps(grid: NDArray[np.int64], given: Tensor, out: Tensor, begin: int, lists: _Lists, values: Tensor) -> None:
    found = library()
    assert found is not None
    found.pdt_sum_taps(
        grid.ctypes.data, given.data_ptr(), out.data_ptr() + 4 * begin * out.shape[-1], len(out), len(lists.tap) - 1,
        lists.square.ctypes.data, lists.square_offset.ctypes.data, lists.tap.ctypes.data, lists.tap_offset.ctypes.data,
        values.data_ptr(), torch.get_num_threads(),
    )  # fmt: skip
