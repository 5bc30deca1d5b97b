"""Convolution with a fixed sparsity mask on a CUDA device, by kernels that CuPy compiles at first use.

Launches use torch's current stream, allocate through torch and never wait for the device. Lists of taps go to the
device when a size first occurs. A CUDA graph may therefore capture a call after its shapes have run.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from kernels.cuda import library
from kernels.cuda.plan import Launch
from kernels.sparse_conv.cuda_plan import (
    Grid,
    SumLists,
    images_of_block,
    plan_from_blocks,
    plan_products,
    plan_sum,
    plan_to_blocks,
    product_sets,
    sum_lists,
)
from kernels.sparse_conv.taps import ConvolutionTaps, Integers, Pair, PositionClass, Window, without_border


@dataclass(frozen=True)
class CudaBlocked:
    """An activation in blocks of images, (blocks, C, H', W', images per block), in the activation's dtype.

    H' and W' include a border of zeros. A block has 32 images in fp32 and 64 in 16 bits: one word per lane of a warp.
    """

    data: Tensor
    images: int
    channels: int
    window: Window


def available(device: torch.device) -> bool:
    """Return whether a device has these kernels: a CUDA device with CuPy that can compile."""
    return device.type == "cuda" and library.load().available


def to_blocks(plain: Tensor, window: Window) -> CudaBlocked:
    """Convert an activation (N, C, H, W), fp32, bf16 or fp16, into blocks."""
    last = plain.is_contiguous(memory_format=torch.channels_last)
    plain = plain if last else plain.contiguous()
    blocked = _empty(plain.shape[0], plain.shape[1], window, plain)
    launch = plan_to_blocks(tuple(plain.shape), window, library.DTYPES[plain.dtype], last=last)
    _run(launch, {"plain": plain, "blocked": blocked.data})
    return blocked


def from_blocks(blocked: CudaBlocked, like: Tensor) -> Tensor:
    """Convert blocks to (N, C, H, W), without their border, in the memory format of `like`."""
    last = like.is_contiguous(memory_format=torch.channels_last)
    layout = torch.channels_last if last else torch.contiguous_format
    shape = (blocked.images, blocked.channels, blocked.window.rows, blocked.window.columns)
    plain = torch.empty(shape, dtype=blocked.data.dtype, device=blocked.data.device, memory_format=layout)
    launch = plan_from_blocks(shape, blocked.window, library.DTYPES[plain.dtype], last=last)
    _run(launch, {"blocked": blocked.data, "plain": plain})
    return plain


@dataclass(frozen=True)
class _Sum:
    """Lists of one product, their copies on the device, and the index of its first value among those of all classes."""

    lists: SumLists
    tensors: dict[str, Tensor]
    begin: int


@dataclass(frozen=True)
class _DataGradient:
    """Classes of positions with their sums, and the index of each value among the taps of the weight."""

    classes: list[tuple[PositionClass, _Sum]]
    nonzero_index: Integers


@dataclass(frozen=True)
class _Products:
    """Number of sets of each kind of groups, their lists on the device, and the index of each value among the taps."""

    sets: tuple[tuple[Pair, int], ...]
    tensors: dict[str, Tensor]
    nonzero_index: Integers


class CudaSparseConvolution:
    """The three products of a convolution with a fixed sparsity mask, on a CUDA device. They skip masked weights.

    Results are sums in fp32, rounded once, in an order that depends on the shapes only. They are therefore reproducible
    bit for bit. Activations may be fp32, bf16 or fp16, in channels-last or contiguous memory, on one CUDA device.

    Args:
        kept: (K, C, R, S) bool, True for every weight that is not masked.
        stride, padding, dilation: Those of the convolution, each (rows, columns).

    Attributes:
        density: Share of the weights that are not masked.
    """

    def __init__(self, kept: Tensor, stride: Pair, padding: Pair, dilation: Pair = (1, 1)) -> None:
        self._index = ConvolutionTaps(kept.cpu().numpy(), stride, padding, dilation)
        self.shape, self.density = self._index.shape, self._index.density
        self.stride, self.padding, self.dilation = stride, padding, dilation
        self._indices: dict[Hashable, Tensor] = {}
        self._forward: dict[Hashable, _Sum] = {}
        self._dgrad: dict[Hashable, _DataGradient] = {}
        self._wgrad: dict[Hashable, _Products] = {}

    def forward(self, activation: Tensor, weight: Tensor) -> Tensor:
        """Return the output, (N, K, P, Q), of an activation (N, C, H, W)."""
        self._index.check_channels(activation.shape[1])
        blocked = to_blocks(activation, self._index.input_window(_size(activation)))
        window = without_border(self._index.output_size(_size(activation)))
        out = _empty(blocked.images, self.shape[0], window, activation)
        key = (blocked.window, activation.device)
        if key not in self._forward:
            lists = sum_lists(self._index.forward(), self.stride, self.shape[0], blocked.window)
            self._forward[key] = _Sum(lists, _on_device(lists, activation.device), 0)
        found = self._forward[key]
        grid = Grid(
            *(window.rows, window.columns, self.stride),
            *(self.shape[1] * blocked.window.plane, blocked.window.padded_columns),
            *(0, self.shape[0] * window.plane, window.plane, window.columns, 1),
        )
        value = self._gathered(weight, ("forward", key), found.lists.nonzero_index)
        _sum(grid, found, blocked, out, value)
        return from_blocks(out, activation)

    def blocks_of_grad(self, grad: Tensor, activation: Tensor) -> CudaBlocked:
        """Return the output gradient in the layout that `dgrad` and `wgrad` read."""
        return to_blocks(grad, self._index.grad_window(_size(activation), _size(grad)))

    def dgrad(self, grad: CudaBlocked, weight: Tensor, activation: Tensor) -> Tensor:
        """Return the data gradient, with the shape and memory format of `activation`. Its values are not read."""
        size = _size(activation)
        window = without_border(size)
        out = _empty(grad.images, self.shape[1], window, grad.data)
        key = (grad.window, size, grad.data.device)
        if key not in self._dgrad:
            self._dgrad[key] = self._dgrad_lists(grad.window, size, grad.data.device)
        value = self._gathered(weight, ("dgrad", key), self._dgrad[key].nonzero_index)
        for positions, found in self._dgrad[key].classes:
            grid = Grid(
                *(*positions.size, (1, 1)),
                *(self.shape[0] * grad.window.plane, grad.window.padded_columns),
                *(positions.first[0] * size[1] + positions.first[1], self.shape[1] * window.plane, window.plane),
                *(self.stride[0] * size[1], self.stride[1]),
            )
            _sum(grid, found, grad, out, value[found.begin :])
        return from_blocks(out, activation)

    def wgrad(self, grad: CudaBlocked, activation: Tensor, weight: Tensor) -> Tensor:
        """Return the weight gradient, zero where masked, with the shape, dtype and memory format of `weight`."""
        assert grad.data.dtype == activation.dtype, "the output gradient and the activation must have the same dtype"
        blocked = to_blocks(activation, self._index.input_window(_size(activation)))
        key = (blocked.window, grad.window, activation.device)
        if key not in self._wgrad:
            self._wgrad[key] = self._product_lists(blocked.window, grad.window, activation.device)
        found, window = self._wgrad[key], grad.window
        grid = Grid(
            *(window.rows, window.columns, self.stride),
            *(self.shape[1] * blocked.window.plane, blocked.window.padded_columns),
            *(window.top * window.padded_columns + window.left, self.shape[0] * window.plane, window.plane),
            *(window.padded_columns, 1),
        )
        dtypes = library.DTYPES[activation.dtype], library.DTYPES[weight.dtype]
        plan = plan_products(grid, found.sets, len(blocked.data), *dtypes)
        dense = torch.zeros_like(weight)
        if plan.finish is None:
            return dense
        partial = torch.empty(plan.parts * plan.slots, dtype=torch.float32, device=activation.device)
        tensors = {"in": blocked.data, "grad": grad.data, "partial": partial, "dense": dense, **found.tensors}
        tensors["index"] = self._memory_offsets(weight, ("wgrad", key), found.nonzero_index)
        for launch in (*plan.launches, plan.finish):
            _run(launch, tensors)
        return dense

    def _dgrad_lists(self, window: Window, size: Pair, device: torch.device) -> _DataGradient:
        classes, index = [], np.empty(0, np.int64)
        for positions in self._index.dgrad(size):
            lists = sum_lists(positions.taps, (1, 1), self.shape[1], window)
            classes.append((positions, _Sum(lists, _on_device(lists, device), len(index))))
            index = np.append(index, _padded(lists.nonzero_index))
        return _DataGradient(classes, index)

    def _product_lists(self, window: Window, grad: Window, device: torch.device) -> _Products:
        sets = product_sets(self._index.forward(), self.stride, window)
        tensors = {}
        for kind, of_kind in enumerate(sets):
            plane = (of_kind.out_channel * grad.plane).astype(np.int32)
            tensors[f"plane{kind}"] = torch.from_numpy(plane).to(device)
            tensors[f"offset{kind}"] = torch.from_numpy(of_kind.offset).to(device)
        return _Products(
            tuple(of_kind.shape for of_kind in sets),
            tensors,
            np.concatenate([of_kind.nonzero_index.ravel() for of_kind in sets] or [np.empty(0, np.int64)]),
        )

    def _gathered(self, weight: Tensor, key: Hashable, nonzero_index: Integers) -> Tensor:
        """Return the values of the taps with these indices, fp32."""
        return _flat(weight).index_select(0, self._memory_offsets(weight, key, nonzero_index)).float()

    def _memory_offsets(self, weight: Tensor, key: Hashable, nonzero_index: Integers) -> Tensor:
        """Return the memory offsets of the taps with these indices, which `key` names. -1 stays -1."""
        full_key = (key, weight.stride(), weight.device)
        if full_key not in self._indices:
            offsets = np.append(self._index.memory_offsets(weight.stride()), -1)  # index -1 reads the last element
            self._indices[full_key] = torch.from_numpy(offsets[nonzero_index]).to(weight.device)
        return self._indices[full_key]


def _sum(grid: Grid, found: _Sum, read: CudaBlocked, out: CudaBlocked, value: Tensor) -> None:
    lists = found.lists
    dtype = library.DTYPES[read.data.dtype]
    launch = plan_sum(grid, len(lists.order), lists.squares, lists.pairs, len(read.data), dtype)
    _run(launch, {"in": read.data, "out": out.data, "value": value, **found.tensors})


def _run(launch: Launch, tensors: dict[str, Tensor]) -> None:
    if launch.blocks:  # an empty batch needs no blocks
        library.launch_kernel(launch, tensors)


def _on_device(lists: SumLists, device: torch.device) -> dict[str, Tensor]:
    return {name: torch.from_numpy(getattr(lists, name)).to(device) for name in ("order", "first", "offset")}


def _padded(index: Integers) -> Integers:
    """Pad to a multiple of four, so that the values of the next class are aligned to 16 bytes."""
    return np.append(index, np.zeros(-len(index) % 4, np.int64))


def _empty(images: int, channels: int, window: Window, like: Tensor) -> CudaBlocked:
    each = images_of_block(library.DTYPES[like.dtype])
    shape = (-(-images // each), channels, window.padded_rows, window.padded_columns, each)
    return CudaBlocked(torch.empty(shape, dtype=like.dtype, device=like.device), images, channels, window)


def _flat(weight: Tensor) -> Tensor:
    return weight.as_strided((weight.numel(),), (1,))


def _size(image: Tensor) -> Pair:
    return image.shape[2], image.shape[3]
