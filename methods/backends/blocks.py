"""A convolution whose filters keep 2x2 blocks, as up to four smaller convolutions on the library's own kernels.

Where all kernels of a filter keep the same block of their 3x3 weights, those filters together are a 2x2 convolution of
the same input, moved by a row or a column or not: dense products of 4/9 of the work, on any device.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from methods.backends.per_gradient import PerGradient
from suite.method import Geometry
from suite.ops import TORCH

SIDE, BLOCK = 3, 2


class _Part(NamedTuple):
    """Filters that keep the same block, as a range of the sorted ones, and the block's first row and column."""

    filters: slice
    top: int
    left: int

    @property
    def rows(self) -> slice:
        return slice(self.top, self.top + BLOCK)

    @property
    def columns(self) -> slice:
        return slice(self.left, self.left + BLOCK)


class BlockConvolutions:
    """The three products of a 3x3 convolution, as one 2x2 convolution for each block that filters keep.

    Args:
        kept: (K, C, 3, 3) bool, the weights that are there. Whole kernels may be absent; they are multiplied as zeros.

    Raises:
        ValueError: if the kernels of a filter do not keep one 2x2 block.
    """

    name = "blocks"

    def __init__(self, kept: Tensor) -> None:
        corner = _corners(kept)
        self._sorted = corner.argsort(stable=True)  # filters of one block side by side
        self._place = self._sorted.argsort()
        self._grads: PerGradient[Tensor] = PerGradient()
        self._parts: list[_Part] = []
        begin = 0
        for number, count in enumerate(corner.bincount(minlength=BLOCK**2).tolist()):
            if count:
                self._parts.append(_Part(slice(begin, begin + count), *divmod(number, BLOCK)))
            begin += count

    def forward(self, activation: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry) -> Tensor:
        """As of `suite.method.Backend`."""
        size, inner = _output_size(activation, geometry), _inner(geometry)
        blocks = self._blocks(weight)
        outs = [
            TORCH.forward(_moved(activation, part, geometry, size), block, None, inner)
            for part, block in zip(self._parts, blocks, strict=True)
        ]
        out = _channels(torch.cat(outs, 1), self._place)
        return out if bias is None else out.add_(bias.view(1, -1, 1, 1))

    def dgrad(self, grad: Tensor, weight: Tensor, activation: Tensor, geometry: Geometry) -> Tensor:
        """As of `suite.method.Backend`."""
        size, inner = (grad.shape[2], grad.shape[3]), _inner(geometry)
        grad = self._sorted_grad(grad)
        found: Tensor | None = None
        for part, block in zip(self._parts, self._blocks(weight), strict=True):
            moved = _moved(activation, part, geometry, size)
            of_part = TORCH.dgrad(grad[:, part.filters], block, moved, inner)
            # What was added for the move is taken off, and what was cut off gets no gradient.
            back = F.pad(of_part, [-amount for amount in _move(activation, part, geometry, size)])
            # In fp32: parts in 16 bits are rounded once each already.
            found = back.float() if found is None else found.add_(back)
        assert found is not None
        return found.to(grad.dtype)

    def wgrad(
        self, grad: Tensor, activation: Tensor, weight: Tensor, geometry: Geometry, with_bias: bool
    ) -> tuple[Tensor, Tensor | None]:
        """As of `suite.method.Backend`; zero outside the blocks."""
        size, inner = (grad.shape[2], grad.shape[3]), _inner(geometry)
        bias = grad.sum((0, 2, 3)) if with_bias else None
        grad = self._sorted_grad(grad)
        found = torch.zeros_like(weight)
        for part, block in zip(self._parts, self._blocks(weight), strict=True):
            moved = _moved(activation, part, geometry, size)
            of_part, _ = TORCH.wgrad(grad[:, part.filters], moved, block, inner, False)
            found[:, :, part.rows, part.columns].index_copy_(0, self._sorted[part.filters], of_part)
        return found, bias

    def _sorted_grad(self, grad: Tensor) -> Tensor:
        return self._grads.of(grad, lambda: _channels(grad, self._sorted))

    def _blocks(self, weight: Tensor) -> list[Tensor]:
        """Of each part the weights that are there, (filters, C, 2, 2), in the memory format of all."""
        last = weight.is_contiguous(memory_format=torch.channels_last)
        layout = torch.channels_last if last else torch.contiguous_format
        return [
            weight[:, :, part.rows, part.columns]
            .index_select(0, self._sorted[part.filters])
            .contiguous(memory_format=layout)
            for part in self._parts
        ]

    def executed(self, product: str, grad: Tensor | None, weight: Tensor, geometry: Geometry) -> float:
        """As of `suite.method.Backend`."""
        return BLOCK**2 / SIDE**2


def _corners(kept: Tensor) -> Tensor:
    """For each filter the number of its block, 2 * row + column of its corner; (K,)."""
    if kept.shape[2:] != (SIDE, SIDE):
        raise ValueError(f"kernels are {kept.shape[2]}x{kept.shape[3]}; blocks are of {SIDE}x{SIDE} ones")
    of_filter = kept.any(1)
    found = torch.full((len(kept),), -1, device=kept.device)
    for number in reversed(range(BLOCK**2)):  # of an empty filter, which fits all, the first
        top, left = divmod(number, BLOCK)
        outside = of_filter.clone()
        outside[:, top : top + BLOCK, left : left + BLOCK] = False
        found[~outside.flatten(1).any(1)] = number
    if bool((found < 0).any()):
        raise ValueError(f"filter {int((found < 0).nonzero()[0])} keeps more than one {BLOCK}x{BLOCK} block")
    return found


def _inner(geometry: Geometry) -> Geometry:
    """Of the smaller convolutions, whose input is padded already."""
    return Geometry("conv", geometry.stride, (0, 0), geometry.dilation)


def _channels(tensor: Tensor, order: Tensor) -> Tensor:
    """Channels in another order, in the same memory format."""
    if not tensor.is_contiguous(memory_format=torch.channels_last):
        return tensor.index_select(1, order)
    rows = tensor.permute(0, 2, 3, 1).flatten(0, 2)
    # On the CPU a gather of rows is some times faster than a selection of columns.
    found = rows.gather(1, order.expand(len(rows), -1)) if rows.device.type == "cpu" else rows.index_select(1, order)
    return found.view(tensor.shape[0], *tensor.shape[2:], -1).permute(0, 3, 1, 2)


def _output_size(activation: Tensor, geometry: Geometry) -> tuple[int, int]:
    sizes = [
        (activation.shape[2 + axis] + 2 * geometry.padding[axis] - geometry.dilation[axis] * (SIDE - 1) - 1)
        // geometry.stride[axis]
        + 1
        for axis in (0, 1)
    ]
    return sizes[0], sizes[1]


def _move(activation: Tensor, part: _Part, geometry: Geometry, out: tuple[int, int]) -> list[int]:
    """By how much the input grows on its four sides for a part, in the order of `F.pad`; negative where it shrinks."""
    amounts: list[int] = []
    for axis, first in ((1, part.left), (0, part.top)):
        before = geometry.padding[axis] - first * geometry.dilation[axis]
        length = (out[axis] - 1) * geometry.stride[axis] + geometry.dilation[axis] * (BLOCK - 1) + 1
        amounts += [before, length - before - activation.shape[2 + axis]]
    return amounts


def _moved(activation: Tensor, part: _Part, geometry: Geometry, out: tuple[int, int]) -> Tensor:
    """What a part reads of the input, with its zeros."""
    return F.pad(activation, _move(activation, part, geometry, out))
