"""Comparison of compiled sparse convolutions with their definition, on small layers with integer operands.

Sums of integers are exact in any order, so results are equal bit for bit. A library is compared before its first use on
a machine (`kernels.cpu.library`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from kernels.sparse_conv import reference
from kernels.sparse_conv.taps import Pair

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
# Strides, padding and dilation, each (rows, columns).
GEOMETRIES = (
    ((1, 1), (1, 1), (1, 1)),
    ((2, 2), (1, 1), (1, 1)),
    ((3, 1), (0, 2), (1, 1)),
    ((1, 1), (2, 2), (2, 2)),
)
THREADS = 3


class Convolution(Protocol):
    """See `kernels.sparse_conv.dispatch.SparseConvolution`."""

    def forward(self, activation: Tensor, weight: Tensor) -> Tensor: ...

    def blocks_of_grad(self, grad: Tensor, activation: Tensor) -> Any: ...

    def dgrad(self, grad: Any, weight: Tensor, activation: Tensor) -> Tensor: ...

    def wgrad(self, grad: Any, activation: Tensor, weight: Tensor) -> Tensor: ...


class Kernels(Protocol):
    """The compiled kernels."""

    def convolution(self, kept: Tensor, stride: Pair, padding: Pair, dilation: Pair, threads: int) -> Convolution: ...


@dataclass(frozen=True)
class Case:
    """A convolution, its number format, and whether the channels of its operands are adjacent."""

    kernel: Pair
    squares: bool
    geometry: tuple[Pair, Pair, Pair]
    dtype: torch.dtype
    channels_last: bool
    images: int = 19  # whole vectors of images and a remainder, for every width
    size: Pair = (8, 11)

    def __str__(self) -> str:
        stride, padding, dilation = self.geometry
        dtype = str(self.dtype).removeprefix("torch.")
        taps = "squares" if self.squares else "single weights"
        return (
            f"{dtype} with {taps} of {self.kernel}, stride {stride}, padding {padding}, dilation {dilation}"
            f"{', channels last' if self.channels_last else ''}"
        )

    def operands(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the mask, the activation, the weight and the output gradient."""
        generator = torch.Generator().manual_seed(1)
        outputs, inputs = 5, 18  # more input channels than a vector has lanes
        layout = torch.channels_last if self.channels_last else torch.contiguous_format

        def integers(*shape: int) -> Tensor:
            return torch.randint(-3, 4, shape, generator=generator).to(self.dtype).contiguous(memory_format=layout)

        chance = torch.rand(outputs, inputs, *self.kernel, generator=generator, dtype=torch.float32)
        kept = chance < 0.4
        if self.squares:
            kept = torch.zeros_like(kept)
            places = [(row, column) for row in range(self.kernel[0] - 1) for column in range(self.kernel[1] - 1)]
            for number, (k, c) in enumerate((chance[..., 0, 0] < 0.8).nonzero().tolist()):
                row, column = places[number % len(places)]
                kept[k, c, row : row + 2, column : column + 2] = True
        stride, padding, dilation = self.geometry
        out = [
            (self.size[axis] + 2 * padding[axis] - dilation[axis] * (self.kernel[axis] - 1) - 1) // stride[axis] + 1
            for axis in (0, 1)
        ]
        return (
            kept,
            integers(self.images, inputs, *self.size),
            integers(outputs, inputs, *self.kernel),
            integers(self.images, outputs, *out),
        )


def cases() -> Iterator[Case]:
    """Yield a convolution for each path of the kernels: number format, layout, stride, and neighbourhood of weights."""
    for dtype in DTYPES:
        for channels_last in (True, False):
            for geometry in GEOMETRIES:
                yield Case((3, 3), True, geometry, dtype, channels_last)
                yield Case((3, 3), False, geometry, dtype, channels_last)
            yield Case((1, 1), False, GEOMETRIES[0], dtype, channels_last)
        yield Case((4, 5), False, GEOMETRIES[0], dtype, True)


def of_convolutions(kernels: Kernels) -> str:
    """Compare the kernels with their definition; return the first case that differs, empty if all agree."""
    return next(filter(None, (differs(kernels, case) for case in cases())), "")


def differs(kernels: Kernels, case: Case) -> str:
    """Return which product of a case differs from its definition; empty if all agree."""
    kept, activation, weight, grad = case.operands()
    expected = reference.products(kept, activation, weight, grad, *case.geometry)
    for threads in (1, THREADS):
        convolution = kernels.convolution(kept, *case.geometry, threads)
        blocks = convolution.blocks_of_grad(grad, activation)
        found = (
            convolution.forward(activation, weight),
            convolution.dgrad(blocks, weight, activation),
            convolution.wgrad(blocks, activation, weight),
        )
        for name, one, definition in zip(("output", "data gradient", "weight gradient"), found, expected, strict=True):
            if not torch.equal(one, definition):
                return f"the {name} of {case}"
    return ""
