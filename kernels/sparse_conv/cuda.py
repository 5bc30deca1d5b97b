"""Convolutions that skip weights on a CUDA device, by kernels that CuPy compiles at first use.

Launches go to torch's current stream, allocate through torch and never wait for the device; lists of taps are put on
the device when a size is first seen. So a call may be captured in a CUDA graph once one of its shapes has run.
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
from kernels.sparse_conv.taps import ConvolutionTaps, Integers, Pair, PlaceClass, Window, without_border


@dataclass(frozen=True)
class CudaBlocked:
    """An activation in blocks of images, (blocks, C, H', W', images of a block), H' and W' with a border of zeros.

    In memory of the activation's own type. A block has 32 images in fp32 and 64 in 16 bits: a lane's word each.
    """

    data: Tensor
    images: int
    channels: int
    window: Window


def available(device: torch.device) -> bool:
    """Whether a device has these kernels: a CUDA device, where CuPy is installed and compiles."""
    return device.type == "cuda" and library.load().available


def to_blocks(plain: Tensor, window: Window) -> CudaBlocked:
    """Brings an activation (N, C, H, W), fp32, bf16 or fp16, into blocks."""
    last = plain.is_contiguous(memory_format=torch.channels_last)
    plain = plain if last else plain.contiguous()
    blocked = _empty(plain.shape[0], plain.shape[1], window, plain)
    launch = plan_to_blocks(tuple(plain.shape), window, library.DTYPES[plain.dtype], last=last)
    _run(launch, {"plain": plain, "blocked": blocked.data})
    return blocked


def from_blocks(blocked: CudaBlocked, like: Tensor) -> Tensor:
    """Brings blocks back to (N, C, H, W), without their border, in the memory format of `like`."""
    last = like.is_contiguous(memory_format=torch.channels_last)
    layout = torch.channels_last if last else torch.contiguous_format
    shape = (blocked.images, blocked.channels, blocked.window.rows, blocked.window.columns)
    plain = torch.empty(shape, dtype=blocked.data.dtype, device=blocked.data.device, memory_format=layout)
    launch = plan_from_blocks(shape, blocked.window, library.DTYPES[plain.dtype], last=last)
    _run(launch, {"blocked": blocked.data, "plain": plain})
    return plain


@dataclass(frozen=True)
class _Sum:
    """A product's lists, and on the device: they, and where its values begin among those of all classes."""

    lists: SumLists
    tensors: dict[str, Tensor]
    begin: int


@dataclass(frozen=True)
class _DataGradient:
    classes: list[tuple[PlaceClass, _Sum]]
    number: Integers


@dataclass(frozen=True)
class _Products:
    sets: tuple[tuple[Pair, int], ...]  # of each kind, how many
    tensors: dict[str, Tensor]
    number: Integers


class CudaSparseConvolution:
    """The three products of a convolution of which some weights are absent for good; see
    `kernels.sparse_conv.dispatch`.

    Args:
        kept: (K, C, R, S) bool, the weights that are there.
        stride, padding, dilation: of the convolution, (rows, columns).

    Results are sums in fp32, rounded once, in an order that depends on the shapes alone: they repeat bit for bit.
    Activations may be fp32, bf16 or fp16, in channels-last or contiguous memory, on one CUDA device.
    """

    def __init__(self, kept: Tensor, stride: Pair, padding: Pair, dilation: Pair = (1, 1)) -> None:
        self._index = ConvolutionTaps(kept.cpu().numpy(), stride, padding, dilation)
        self.shape, self.density = self._index.shape, self._index.density
        self.stride, self.padding, self.dilation = stride, padding, dilation
        self._indices: dict[Hashable, Tensor] = {}
        self._forward: dict[Hashable, _Sum] = {}
        self._dgrad: dict[Hashable, _DataGradient] = {}
        self._wgrad: dict[Hashable, _Products] = {}

    def values(self, weight: Tensor) -> Tensor:
        """The compact form of a weight: what is there, (taps,) fp32, in the order of output channels."""
        return self._gathered(weight, "all", np.arange(len(self._index.position)))

    def forward(self, activation: Tensor, weight: Tensor) -> Tensor:
        """O, (N, K, P, Q), of A, (N, C, H, W)."""
        self._index.check_channels(activation.shape[1])
        blocked = to_blocks(activation, self._index.input_window(_size(activation)))
        made = without_border(self._index.output_size(_size(activation)))
        out = _empty(blocked.images, self.shape[0], made, activation)
        key = (blocked.window, activation.device)
        if key not in self._forward:
            lists = sum_lists(self._index.forward(), self.stride, self.shape[0], blocked.window)
            self._forward[key] = _Sum(lists, _on_device(lists, activation.device), 0)
        found = self._forward[key]
        grid = Grid(
            *(made.rows, made.columns, self.stride),
            *(self.shape[1] * blocked.window.plane, blocked.window.padded_columns),
            *(0, self.shape[0] * made.plane, made.plane, made.columns, 1),
        )
        value = self._gathered(weight, ("forward", key), found.lists.number)
        _sum(grid, found, blocked, out, value)
        return from_blocks(out, activation)

    def dgrad(self, grad: Tensor, weight: Tensor, activation: Tensor) -> Tensor:
        """dA of dO; of `activation` shape and memory format count alone."""
        return self.dgrad_of_blocks(self.blocks_of_grad(grad, activation), weight, activation)

    def dgrad_of_blocks(self, grad: CudaBlocked, weight: Tensor, activation: Tensor) -> Tensor:
        """`dgrad` of what `blocks_of_grad` gave."""
        size = _size(activation)
        whole = without_border(size)
        out = _empty(grad.images, self.shape[1], whole, grad.data)
        key = (grad.window, size, grad.data.device)
        if key not in self._dgrad:
            self._dgrad[key] = self._dgrad_lists(grad.window, size, grad.data.device)
        value = self._gathered(weight, ("dgrad", key), self._dgrad[key].number)
        for place, found in self._dgrad[key].classes:
            grid = Grid(
                *(*place.places, (1, 1)),
                *(self.shape[0] * grad.window.plane, grad.window.padded_columns),
                *(place.first[0] * size[1] + place.first[1], self.shape[1] * whole.plane, whole.plane),
                *(self.stride[0] * size[1], self.stride[1]),
            )
            _sum(grid, found, grad, out, value[found.begin :])
        return from_blocks(out, activation)

    def blocks_of_grad(self, grad: Tensor, activation: Tensor) -> CudaBlocked:
        """dO in blocks, for both gradients."""
        return to_blocks(grad, self._index.grad_window(_size(activation), _size(grad)))

    def wgrad(self, grad: Tensor, activation: Tensor, weight: Tensor) -> Tensor:
        """dW, zero where no weight is; of `weight` shape, type and memory format count alone."""
        return self.wgrad_of_blocks(self.blocks_of_grad(grad, activation), activation, weight)

    def wgrad_of_blocks(self, grad: CudaBlocked, activation: Tensor, weight: Tensor) -> Tensor:
        """`wgrad` of what `blocks_of_grad` gave."""
        assert grad.data.dtype == activation.dtype, "output gradients and activations have one type"
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
        tensors["index"] = self._memory(weight, ("wgrad", key), found.number)
        for launch in (*plan.launches, plan.finish):
            _run(launch, tensors)
        return dense

    def _dgrad_lists(self, window: Window, size: Pair, device: torch.device) -> _DataGradient:
        classes, number = [], np.empty(0, np.int64)
        for place in self._index.dgrad(size):
            lists = sum_lists(place.taps, (1, 1), self.shape[1], window)
            classes.append((place, _Sum(lists, _on_device(lists, device), len(number))))
            number = np.append(number, _padded(lists.number))
        return _DataGradient(classes, number)

    def _product_lists(self, window: Window, grad: Window, device: torch.device) -> _Products:
        sets = product_sets(self._index.forward(), self.stride, window)
        tensors = {}
        for number, one in enumerate(sets):
            tensors[f"plane{number}"] = torch.from_numpy((one.channel * grad.plane).astype(np.int32)).to(device)
            tensors[f"offset{number}"] = torch.from_numpy(one.offset).to(device)
        return _Products(
            tuple(one.shape for one in sets),
            tensors,
            np.concatenate([one.number.ravel() for one in sets] or [np.empty(0, np.int64)]),
        )

    def _gathered(self, weight: Tensor, key: Hashable, number: Integers) -> Tensor:
        """The weights of these numbers, fp32."""
        return _flat(weight).index_select(0, self._memory(weight, key, number)).float()

    def _memory(self, weight: Tensor, key: Hashable, number: Integers) -> Tensor:
        """Where the taps of these numbers (which `key` names) lie in the memory of a weight; -1 stays -1."""
        whole = (key, weight.stride(), weight.device)
        if whole not in self._indices:
            places = np.append(self._index.memory(weight.stride()), -1)  # which is what -1 finds
            self._indices[whole] = torch.from_numpy(places[number]).to(weight.device)
        return self._indices[whole]


def _sum(grid: Grid, found: _Sum, given: CudaBlocked, out: CudaBlocked, value: Tensor) -> None:
    lists = found.lists
    dtype = library.DTYPES[given.data.dtype]
    launch = plan_sum(grid, len(lists.order), lists.squares, lists.pairs, len(given.data), dtype)
    _run(launch, {"in": given.data, "out": out.data, "value": value, **found.tensors})


def _run(launch: Launch, tensors: dict[str, Tensor]) -> None:
    if launch.blocks:  # of an empty batch there are none
        library.carry_out(launch, tensors)


def _on_device(lists: SumLists, device: torch.device) -> dict[str, Tensor]:
    return {name: torch.from_numpy(getattr(lists, name)).to(device) for name in ("order", "first", "offset")}


def _padded(number: Integers) -> Integers:
    """To a multiple of four, so that the next class's values begin where 16 bytes may be read."""
    return np.append(number, np.zeros(-len(number) % 4, np.int64))


def _empty(images: int, channels: int, window: Window, like: Tensor) -> CudaBlocked:
    each = images_of_block(library.DTYPES[like.dtype])
    shape = (-(-images // each), channels, window.padded_rows, window.padded_columns, each)
    return CudaBlocked(torch.empty(shape, dtype=like.dtype, device=like.device), images, channels, window)


def _flat(weight: Tensor) -> Tensor:
    """A weight's memory as a vector."""
    return weight.as_strided((weight.numel(),), (1,))


def _size(image: Tensor) -> Pair:
    return image.shape[2], image.shape[3]
