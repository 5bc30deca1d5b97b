"""A convolution whose filters keep 2x2 blocks, computed as up to four smaller convolutions with torch's own kernels.

If all kernels of a filter keep the same 2x2 block of their 3x3 weights, the filters with one block form a 2x2
convolution of the same input, shifted by at most one row and column: dense products with 4/9 of the work on any device.
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
    """Filters that keep the same block: their range in the sorted order, and the first row and column of the block."""

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
        kept: (K, C, 3, 3) bool, the weights that remain. Kernels that are pruned whole are multiplied as zeros.

    Raises:
        ValueError: if the kernels of a filter do not keep one 2x2 block.
    """

    name = "blocks"

    def __init__(self, kept: Tensor) -> None:
        corner = _corners(kept)
        self._sorted = corner.argsort(stable=True)  # groups the filters by block
        self._place = self._sorted.argsort()
        self._grads: PerGradient[Tensor] = PerGradient()
        self._parts: list[_Part] = []
        begin = 0
        for number, count in enumerate(corner.bincount(minlength=BLOCK**2).tolist()):
            if count:
                self._parts.append(_Part(slice(begin, begin + count), *divmod(number, BLOCK)))
            begin += count

    def forward(self, activation: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry) -> Tensor:
        """See `suite.method.Backend`."""
        size, inner = _output_size(activation, geometry), _inner(geometry)
        blocks = self._blocks(weight)
        outs = [
            TORCH.forward(_moved(activation, part, geometry, size), block, None, inner)
            for part, block in zip(self._parts, blocks, strict=True)
        ]
        out = _channels(torch.cat(outs, 1), self._place)
        return out if bias is None else out.add_(bias.view(1, -1, 1, 1))

    def dgrad(self, grad: Tensor, weight: Tensor, activation: Tensor, geometry: Geometry) -> Tensor:
        """See `suite.method.Backend`."""
        size, inner = (grad.shape[2], grad.shape[3]), _inner(geometry)
        grad = self._sorted_grad(grad)
        found: Tensor | None = None
        for part, block in zip(self._parts, self._blocks(weight), strict=True):
            moved = _moved(activation, part, geometry, size)
            of_part = TORCH.dgrad(grad[:, part.filters], block, moved, inner)
            # Remove what the shift added; what it cut off gets no gradient.
            back = F.pad(of_part, [-amount for amount in _move(activation, part, geometry, size)])
            # Sum in fp32: in 16 bits every part has been rounded once already.
            found = back.float() if found is None else found.add_(back)
        assert found is not None
        return found.to(grad.dtype)

    def wgrad(
        self, grad: Tensor, activation: Tensor, weight: Tensor, geometry: Geometry, with_bias: bool
    ) -> tuple[Tensor, Tensor | None]:
        """See `suite.method.Backend`; the gradient is zero outside the blocks."""
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
        """Return the remaining weights of each part, (filters, C, 2, 2), in the memory format of the weight."""
        last = weight.is_contiguous(memory_format=torch.channels_last)
        layout = torch.channels_last if last else torch.contiguous_format
        return [
            weight[:, :, part.rows, part.columns]
            .index_select(0, self._sorted[part.filters])
            .contiguous(memory_format=layout)
            for part in self._parts
        ]

    def executed(self, product: str, grad: Tensor | None, weight: Tensor, geometry: Geometry) -> float:
        """See `suite.method.Backend`."""
        return BLOCK**2 / SIDE**2


def _corners(kept: Tensor) -> Tensor:
    """Return the block of each filter, as 2 * row + column of its first weight; (K,)."""
    if kept.shape[2:] != (SIDE, SIDE):
        raise ValueError(f"kernels are {kept.shape[2]}x{kept.shape[3]}; blocks are of {SIDE}x{SIDE} ones")
    of_filter = kept.any(1)
    found = torch.full((len(kept),), -1, device=kept.device)
    for number in reversed(range(BLOCK**2)):  # an empty filter fits all blocks and takes the first
        top, left = divmod(number, BLOCK)
        outside = of_filter.clone()
        outside[:, top : top + BLOCK, left : left + BLOCK] = False
        found[~outside.flatten(1).any(1)] = number
    if bool((found < 0).any()):
        raise ValueError(f"filter {int((found < 0).nonzero()[0])} keeps more than one {BLOCK}x{BLOCK} block")
    return found


def _inner(geometry: Geometry) -> Geometry:
    """Return the geometry of the smaller convolutions, whose input is padded already."""
    return Geometry("conv", geometry.stride, (0, 0), geometry.dilation)


def _channels(tensor: Tensor, order: Tensor) -> Tensor:
    """Return the channels in another order, in the same memory format."""
    if not tensor.is_contiguous(memory_format=torch.channels_last):
        return tensor.index_select(1, order)
    rows = tensor.permute(0, 2, 3, 1).flatten(0, 2)
    # On the CPU, gathering rows is several times faster than selecting columns.
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
    """Return by how much the input grows on its four sides for a part, in the order of `F.pad`; negative to shrink."""
    amounts: list[int] = []
    for axis, first in ((1, part.left), (0, part.top)):
        before = geometry.padding[axis] - first * geometry.dilation[axis]
        length = (out[axis] - 1) * geometry.stride[axis] + geometry.dilation[axis] * (BLOCK - 1) + 1
        amounts += [before, length - before - activation.shape[2 + axis]]
    return amounts


def _moved(activation: Tensor, part: _Part, geometry: Geometry, out: tuple[int, int]) -> Tensor:
    """Return the input of a part, with its padding."""
    return F.pad(activation, _move(activation, part, geometry, out))
