"""Comparison of compiled products with their definition, on small layers with integer operands.

Sums of integers are exact in any order, so results are equal bit for bit. A library is compared before its first use on
a machine (`kernels.cpu.library`).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from kernels.compressed import reference
from kernels.compressed.operands import Geometry, Gradient, Pair

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
# Kernel size (rows, columns) of a convolution, and numbers of input channels. The widest vector has 16 lanes.
KERNELS = {
    (3, 3): (3, 16, 40),
    (2, 5): (5, 33),
    (1, 1): (3, 8, 20, 40, 72, 136),
}
THREADS = 3


class Products(Protocol):
    """The compiled products."""

    def with_threads(self, threads: int) -> Products: ...

    def data_gradient(self, grad: Gradient, weight: Tensor, size: Pair, geometry: Geometry) -> Tensor: ...

    def weight_gradient(self, grad: Gradient, activation: Tensor, weight: Tensor, geometry: Geometry) -> Tensor: ...


class Values(NamedTuple):
    """A compressed gradient; see `kernels.compressed.operands.Gradient`."""

    values: Tensor
    channels: Tensor
    n: int
    m: int


class Shape(NamedTuple):
    """The geometry of a convolution; see `kernels.compressed.operands.Geometry`."""

    stride: Pair
    padding: Pair
    dilation: Pair
    groups: int


@dataclass(frozen=True)
class Case:
    """A convolution, or a linear layer if its kernel is None, and an output gradient with n of every m channels."""

    kernel: Pair | None
    inputs: int
    geometry: Shape
    n: int
    m: int
    dtype: torch.dtype
    images: int = 3
    size: Pair = (8, 7)
    outputs: int = 36

    def __str__(self) -> str:
        layer = "a linear layer" if self.kernel is None else f"a convolution {self.kernel} with {self.geometry}"
        dtype = str(self.dtype).removeprefix("torch.")
        return f"{self.n}:{self.m} of {dtype}, {layer} of {self.inputs} to {self.outputs} channels"

    def operands(self) -> tuple[Values, Tensor, Tensor]:
        """Return the output gradient, the activation and the weight."""
        generator = torch.Generator().manual_seed(self.inputs)

        def integers(*shape: int) -> Tensor:
            drawn = torch.randint(-3, 4, shape, generator=generator).to(self.dtype)
            return drawn.contiguous(memory_format=torch.channels_last) if len(shape) == 4 else drawn

        outer, size, kernel = [self.images], self.size, self.kernel or ()
        if self.kernel is not None:
            for axis in (0, 1):
                reach = self.geometry.dilation[axis] * (self.kernel[axis] - 1) + 1
                outer.append((size[axis] + 2 * self.geometry.padding[axis] - reach) // self.geometry.stride[axis] + 1)
        groups = []
        for first in range(0, self.outputs, self.m):
            shape = (*outer, min(self.m, self.outputs - first))
            order = torch.rand(shape, generator=generator, dtype=torch.float32).argsort(-1)
            groups.append(first + order[..., : self.n].sort(-1).values)
        channels = torch.cat(groups, -1).to(torch.int16)
        values = torch.randint(-3, 4, channels.shape, generator=generator).float()
        activation = integers(self.images, self.inputs, *(size if self.kernel else ()))
        weight = integers(self.outputs, self.inputs // self.geometry.groups, *kernel)
        return Values(values, channels, self.n, self.m), activation, weight


def cases() -> Iterator[Case]:
    """Yield a layer for each path of the kernels: number format, window, stride, dilation, and groups."""
    for dtype in DTYPES:
        for (kernel, all_inputs), (n, m) in zip(KERNELS.items(), ((2, 32), (1, 4), (3, 8)), strict=True):
            padding = (kernel[0] // 2, kernel[1] // 2)
            for inputs, stride in itertools.product(all_inputs, (1, 2)):
                yield Case(kernel, inputs, Shape((stride, stride), padding, (1, 1), 1), n, m, dtype)
            yield Case(kernel, 16, Shape((3, 1), padding, (1, 2), 1), 1, 7, dtype)
            yield Case(kernel, 20, Shape((1, 1), padding, (2, 1), 2), 2, 4, dtype)
        # A group of the pruning has channels of two groups of the convolution. A batch has several units of work.
        yield Case((3, 3), 40, Shape((1, 1), (1, 1), (1, 1), 2), 2, 8, dtype)
        yield Case((3, 3), 24, Shape((1, 1), (1, 1), (1, 1), 1), 1, 16, dtype, images=10, size=(17, 16), outputs=96)
        for inputs in (1, 24, 130):
            yield Case(None, inputs, Shape((1, 1), (0, 0), (1, 1), 1), 2, 16, dtype, images=50)


def of_products(products: Products) -> str:
    """Compare the kernels with their definition; return the first case that differs, empty if all agree."""
    return next(filter(None, (differs(products, case) for case in cases())), "")


def differs(products: Products, case: Case) -> str:
    """Return which product of a case differs from its definition; empty if all agree."""
    grad, activation, weight = case.operands()
    data = reference.data_gradient(grad, weight, case.size, case.geometry)
    weights = reference.weight_gradient(grad, activation, weight, case.geometry)
    for kernels in (products.with_threads(1), products.with_threads(THREADS)):
        if not torch.equal(kernels.data_gradient(grad, weight, case.size, case.geometry), data):
            return f"the data gradient of {case}"
        if not torch.equal(kernels.weight_gradient(grad, activation, weight, case.geometry), weights):
            return f"the weight gradient of {case}"
    return ""
