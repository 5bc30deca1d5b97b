"""Convolution with a fixed sparsity mask on the CPU. It skips masked weights.

The constructor of a `CpuSparseConvolution` takes the mask, and every call takes the weights. An index that is built
once gathers the remaining values, so no call searches the weights for zeros.
"""

from __future__ import annotations

import ctypes
import functools
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kernels.cpu.library import open_optional
from kernels.sparse_conv import proof
from kernels.sparse_conv.neighbours import neighbours
from kernels.sparse_conv.taps import ConvolutionTaps, Integers, Pair, Taps, Window, without_border

FORMATS = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}


@dataclass(frozen=True)
class Kernels:
    """The compiled kernels, on `threads` threads, or on as many as torch uses."""

    library: ctypes.CDLL
    threads: int | None = None

    def __post_init__(self) -> None:
        pointer, number, small = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int
        self.library.pdt_blocks.argtypes = [*[pointer] * 3, *[small] * 4]
        self.library.pdt_sum_taps.argtypes = [*[pointer] * 3, small, number, number, *[pointer] * 5, small]
        self.library.pdt_sum_products.argtypes = [*[pointer] * 3, small, pointer, *[number] * 3, *[pointer] * 2, small]

    def numbers_of(self, dtype: torch.dtype) -> torch.dtype:
        """Return the type of numbers in blocks for an activation: bf16 where the processor multiplies pairs of them."""
        pairs = dtype is torch.bfloat16 and self.library.pdt_multiplies_pairs()
        return torch.bfloat16 if pairs else torch.float32

    def count(self) -> int:
        """Return the number of threads."""
        return self.threads or torch.get_num_threads()

    def convolution(
        self, kept: Tensor, stride: Pair, padding: Pair, dilation: Pair, threads: int
    ) -> CpuSparseConvolution:
        """Return a convolution whose products run on this number of threads."""
        return CpuSparseConvolution(kept, stride, padding, dilation, Kernels(self.library, threads))


@functools.cache
def library() -> Kernels | None:
    """Return the compiled kernels, built at first use; None if they are unavailable, which is logged once."""
    return open_optional("sparse_conv", "sparse convolution", Kernels, proof.of_convolutions)


def _loaded(kernels: Kernels | None) -> Kernels:
    loaded = kernels or library()
    assert loaded is not None, "sparse convolution was called without compiled kernels"
    return loaded


class Blocked(NamedTuple):
    """An activation in blocks of images, (N / lanes, C, H', W', lanes). H' and W' include a border of zeros."""

    data: Tensor
    images: int
    channels: int
    window: Window


def to_blocks(plain: Tensor, window: Window, kernels: Kernels | None = None) -> Blocked:
    """Convert an activation (N, C, H, W) with any strides, fp32, bf16 or fp16, into blocks.

    Raises:
        TypeError: The activation has another dtype.
    """
    loaded = _loaded(kernels)
    if plain.dtype not in FORMATS:
        known = ", ".join(str(dtype).removeprefix("torch.") for dtype in FORMATS)
        raise TypeError(f"sparse convolution supports {known}, not {str(plain.dtype).removeprefix('torch.')}")
    dtype = loaded.numbers_of(plain.dtype)
    lanes = loaded.library.pdt_vector_bytes() // dtype.itemsize
    images, channels = plain.shape[:2]
    if plain.stride(3) != 1 and (channels == 1 or plain.stride(1) != 1):  # neither columns nor channels are adjacent
        plain = plain.clone(memory_format=torch.contiguous_format)
    shape = (-(-images // lanes), channels, window.padded_rows, window.padded_columns, lanes)
    data = torch.empty(shape, dtype=dtype)
    _convert(loaded, plain, data, window, to_blocks=True)
    return Blocked(data, images, channels, window)


def from_blocks(blocked: Blocked, like: Tensor, kernels: Kernels | None = None) -> Tensor:
    """Convert blocks without a border to (N, C, H, W) with the dtype and memory format of `like`."""
    window = blocked.window
    layout = torch.channels_last if like.is_contiguous(memory_format=torch.channels_last) else torch.contiguous_format
    shape = (blocked.images, blocked.channels, window.rows, window.columns)
    plain = torch.empty(shape, dtype=like.dtype, memory_format=layout)
    _convert(_loaded(kernels), plain, blocked.data, window, to_blocks=False)
    return plain


def _convert(loaded: Kernels, plain: Tensor, data: Tensor, window: Window, *, to_blocks: bool) -> None:
    images, channels, rows, columns = plain.shape
    stride = list(plain.stride())
    if channels == 1:
        stride[1] = rows * columns  # the stride of a single channel is arbitrary; its columns are adjacent
    numbers = np.array([images, channels, rows, columns, *stride, *window[2:]], np.int64)
    loaded.library.pdt_blocks(
        numbers.ctypes.data, plain.data_ptr(), data.data_ptr(), FORMATS[plain.dtype], _in_pairs(data), to_blocks,
        loaded.count(),
    )  # fmt: skip


def _in_pairs(blocks: Tensor) -> bool:
    return blocks.dtype is torch.bfloat16


@dataclass(frozen=True)
class _Lists:
    """Taps sorted by channel of the result, squares of four and all others, as `pdt_sum_taps` reads them.

    Attributes:
        square_starts, tap_starts: (channels + 1,), index at which each channel's squares and its other taps begin.
        square_offset: Memory offset that the first tap of each square reads.
        tap_offset: Memory offset that each other tap reads.
        nonzero_index: Index of each tap among the taps of the weight, first those of squares.
    """

    square_starts: Integers
    square_offset: NDArray[np.int32]
    tap_starts: Integers
    tap_offset: NDArray[np.int32]
    nonzero_index: Tensor

    @staticmethod
    def of(taps: Taps, step: Pair, channels: int, window: Window) -> _Lists:
        squares, pairs, singles = (
            groups.select(np.argsort(groups.out_channel, kind="stable")) for groups in neighbours(taps, step)
        )
        indices = np.concatenate([pairs.nonzero_index.ravel(), singles.nonzero_index.ravel()])
        others = taps.select(np.isin(taps.nonzero_index, indices))
        return _Lists(
            np.searchsorted(squares.out_channel, np.arange(channels + 1)).astype(np.int64),
            squares.offset(window),
            others.starts(channels),
            others.offset(window),
            torch.from_numpy(np.concatenate([squares.nonzero_index.ravel(), others.nonzero_index])),
        )


class CpuSparseConvolution:
    """The three products of a convolution with a fixed sparsity mask, on the CPU. They skip masked weights.

    Results are sums in fp32. They are reproducible for a number of threads, but are summed in another order than
    torch's. Activations may be fp32, bf16 or fp16, in channels-last or contiguous memory.

    Args:
        kept: (K, C, R, S) bool, True for every weight that is not masked.
        stride, padding, dilation: Those of the convolution, each (rows, columns).
        kernels: The compiled kernels; `None` for those of this process.

    Attributes:
        density: Share of the weights that are not masked.
    """

    def __init__(
        self, kept: Tensor, stride: Pair, padding: Pair, dilation: Pair = (1, 1), kernels: Kernels | None = None
    ) -> None:
        self._kernels = kernels
        self._index = ConvolutionTaps(kept.cpu().numpy(), stride, padding, dilation)
        self.shape, self.density = self._index.shape, self._index.density
        self.stride, self.padding, self.dilation = stride, padding, dilation
        counts = kept.flatten(2).sum(2).flatten()
        nonempty = counts[counts > 0].unique()
        # The weight gradient sums the taps of a kernel together if all nonempty kernels have the same number of them.
        self._taps_per_kernel = int(nonempty) if nonempty.numel() == 1 else 1
        # All that follows depends only on the mask, image sizes and memory formats, so it is built once.
        self._memory_offset: dict[tuple[int, ...], Tensor] = {}
        self._gathers: dict[tuple[int, tuple[int, ...]], Tensor] = {}
        self._forward: dict[Window, _Lists] = {}
        self._offset: dict[Window, NDArray[np.int32]] = {}
        self._dgrad: dict[tuple[Window, Pair], list[tuple[Pair, Pair, _Lists]]] = {}

    def prepare(self, size: Pair) -> None:
        """Build the lists of all products for an input of (H, W)."""
        self._forward_lists(self._index.input_window(size))
        self._dgrad_lists(self._index.grad_window(size, self._index.output_size(size)), size)

    def values(self, weight: Tensor) -> Tensor:
        """Return the weights that are not masked, (taps,) fp32, sorted by output channel."""
        return _flat(weight).index_select(0, self._memory_offsets(weight)).float()

    def forward(self, activation: Tensor, weight: Tensor) -> Tensor:
        """Return the output, (N, K, P, Q), of an activation (N, C, H, W)."""
        self._index.check_channels(activation.shape[1])
        blocked = to_blocks(activation, self._index.input_window(_size(activation)), self._kernels)
        window = without_border(self._index.output_size(_size(activation)))
        out = Blocked(_empty_blocks(blocked, self.shape[0], window), blocked.images, self.shape[0], window)
        grid = self._grid(blocked.window, window)
        lists = self._forward_lists(blocked.window)
        _sum_taps(_loaded(self._kernels), grid, blocked.data, out.data, 0, lists, self._listed_values(weight, lists))
        return from_blocks(out, activation, self._kernels)

    def blocks_of_grad(self, grad: Tensor, activation: Tensor) -> Blocked:
        """Return the output gradient in the layout that `dgrad` and `wgrad` read."""
        return to_blocks(grad, self._index.grad_window(_size(activation), _size(grad)), self._kernels)

    def dgrad(self, grad: Blocked, weight: Tensor, activation: Tensor) -> Tensor:
        """Return the data gradient, with the shape and memory format of `activation`. Its values are not read."""
        size = _size(activation)
        window = without_border(size)
        out = Blocked(_empty_blocks(grad, self.shape[1], window), grad.images, self.shape[1], window)
        row_stride, col_stride = self.stride
        for (row, column), (rows, columns), lists in self._dgrad_lists(grad.window, size):
            grid = np.array(
                [
                    *(rows, columns),
                    *(self.shape[0], self.shape[0] * grad.window.plane, grad.window.padded_columns, 1),
                    *(self.shape[1] * window.plane, window.plane, row_stride * size[1], col_stride),
                ],
                np.int64,
            )
            values = self._listed_values(weight, lists)
            _sum_taps(_loaded(self._kernels), grid, grad.data, out.data, row * size[1] + column, lists, values)
        return from_blocks(out, activation, self._kernels)

    def wgrad(self, grad: Blocked, activation: Tensor, weight: Tensor) -> Tensor:
        """Return the weight gradient, zero where masked, with the shape, dtype and memory format of `weight`."""
        loaded = _loaded(self._kernels)
        blocked = to_blocks(activation, self._index.input_window(_size(activation)), self._kernels)
        taps_per_kernel, count = self._taps_per_kernel, len(self._index.position)
        offset = self._offsets(blocked.window)
        grid = self._grid(blocked.window, grad.window)
        plane = (self._index.position[::taps_per_kernel, 0] * grad.window.plane).astype(np.int32)
        gradients = torch.empty(count, dtype=torch.float32)
        begin = grad.window.top * grad.window.padded_columns + grad.window.left
        status = loaded.library.pdt_sum_products(
            grid.ctypes.data, blocked.data.data_ptr(), _pointer(grad.data, begin), _in_pairs(blocked.data),
            gradients.data_ptr(), len(grad.data), len(plane), taps_per_kernel, plane.ctypes.data, offset.ctypes.data,
            loaded.count(),
        )  # fmt: skip
        if status:
            raise MemoryError(f"no memory for the weight gradient of a convolution with {count} weights")
        dense = torch.zeros_like(weight)
        _flat(dense).index_copy_(0, self._memory_offsets(dense), gradients.to(weight.dtype))
        return dense

    def _listed_values(self, weight: Tensor, lists: _Lists) -> Tensor:
        """Return the values of the taps in the order of lists that live as long as this object."""
        key = (id(lists), weight.stride())
        if key not in self._gathers:
            self._gathers[key] = self._memory_offsets(weight).index_select(0, lists.nonzero_index)
        return _flat(weight).index_select(0, self._gathers[key])

    def _memory_offsets(self, weight: Tensor) -> Tensor:
        """Return the offsets of the taps in the memory of a weight."""
        stride = weight.stride()
        if stride not in self._memory_offset:
            self._memory_offset[stride] = torch.from_numpy(self._index.memory_offsets(stride))
        return self._memory_offset[stride]

    def _forward_lists(self, window: Window) -> _Lists:
        if window not in self._forward:
            self._forward[window] = _Lists.of(self._index.forward(), self.stride, self.shape[0], window)
        return self._forward[window]

    def _offsets(self, window: Window) -> NDArray[np.int32]:
        """Return the memory offset that each tap reads, sorted by output channel."""
        if window not in self._offset:
            self._offset[window] = self._index.forward().offset(window)
        return self._offset[window]

    def _dgrad_lists(self, window: Window, size: Pair) -> list[tuple[Pair, Pair, _Lists]]:
        key = (window, size)
        if key not in self._dgrad:
            self._dgrad[key] = [
                (first, positions, _Lists.of(taps, (1, 1), self.shape[1], window))
                for first, positions, taps in self._index.dgrad(size)
            ]
        return self._dgrad[key]

    def _grid(self, read: Window, written: Window) -> NDArray[np.int64]:
        """Return the fields of `pdt::Grid` for an input and an output (or an output gradient) of these windows."""
        out_channels, in_channels = self.shape[:2]
        row_stride, col_stride = self.stride
        return np.array(
            [
                *(written.rows, written.columns),
                *(in_channels, in_channels * read.plane, row_stride * read.padded_columns, col_stride),
                *(out_channels * written.plane, written.plane, written.padded_columns, 1),
            ],
            np.int64,
        )


def _size(image: Tensor) -> Pair:
    return image.shape[2], image.shape[3]


def _flat(weight: Tensor) -> Tensor:
    return weight.as_strided((weight.numel(),), (1,))


def _empty_blocks(like: Blocked, channels: int, window: Window) -> Tensor:
    blocks, *_, lanes = like.data.shape
    return like.data.new_empty(blocks, channels, window.padded_rows, window.padded_columns, lanes)


def _pointer(blocks: Tensor, vectors: int) -> int:
    """Return the address of a vector of blocks."""
    return blocks.data_ptr() + vectors * blocks.shape[-1] * blocks.itemsize


def _sum_taps(
    loaded: Kernels, grid: NDArray[np.int64], read: Tensor, out: Tensor, begin: int, lists: _Lists, values: Tensor
) -> None:
    values = values.to(out.dtype)
    loaded.library.pdt_sum_taps(
        grid.ctypes.data, read.data_ptr(), _pointer(out, begin), _in_pairs(out), len(out),
        len(lists.tap_starts) - 1, lists.square_starts.ctypes.data, lists.square_offset.ctypes.data,
        lists.tap_starts.ctypes.data, lists.tap_offset.ctypes.data, values.data_ptr(), loaded.count(),
    )  # fmt: skip
