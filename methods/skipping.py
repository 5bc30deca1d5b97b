"""A backend that multiplies by the weights that are there, and the measurement of whether that is worth it.

Where nothing is skipped, torch's dense products are the faster ones per multiply-add; which side wins depends on the
layer's shape, on how much is left, and on the number type.
"""

from __future__ import annotations

import statistics
import time
import weakref
from collections.abc import Callable

import torch
from torch import Tensor, nn

from kernels.tap_conv import Blocked, TapConvolution, library
from suite.backends import TORCH, Backend, Geometry

ROUNDS = 3
"""Interleaved pairs that are timed for a layer."""


def can_skip(device: torch.device) -> bool:
    """Whether there are kernels that skip weights on a device: on the CPU, where a compiler was found."""
    return device.type == "cpu" and library() is not None


class Skipping:
    """The three products of one convolution, without the weights that are absent for good.

    Args:
        kept: (K, C, R, S) bool, the weights that are there.
        geometry: of the layer.
    """

    name = "skipping"

    def __init__(self, kept: Tensor, geometry: Geometry) -> None:
        self._taps = TapConvolution(kept, geometry.stride, geometry.padding, geometry.dilation)
        self._grad: weakref.ref[Tensor] | None = None  # whose blocks are kept, for the second of the two gradients
        self._blocks: Blocked | None = None

    def forward(self, activation: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry) -> Tensor:
        """As of `suite.backends.Backend`."""
        out = self._taps.forward(activation, weight)
        return out if bias is None else out.add_(bias.view(1, -1, 1, 1))

    def dgrad(self, grad: Tensor, weight: Tensor, activation: Tensor, geometry: Geometry) -> Tensor:
        """As of `suite.backends.Backend`."""
        return self._taps.dgrad_of_blocks(self._blocks_of(grad, activation), weight, activation)

    def wgrad(
        self, grad: Tensor, activation: Tensor, weight: Tensor, geometry: Geometry, with_bias: bool
    ) -> tuple[Tensor, Tensor | None]:
        """As of `suite.backends.Backend`; zero for weights that are absent."""
        found = self._taps.wgrad_of_blocks(self._blocks_of(grad, activation), activation, weight)
        return found, grad.sum((0, 2, 3)) if with_bias else None

    def executed(self, product: str, grad: Tensor | None, weight: Tensor, geometry: Geometry) -> float:
        """As of `suite.backends.Backend`."""
        return self._taps.density

    def _blocks_of(self, grad: Tensor, activation: Tensor) -> Blocked:
        """An output gradient in blocks; both gradients of a layer are handed the same one, one after the other."""
        if self._blocks is not None and self._grad is not None and self._grad() is grad:
            found, self._blocks = self._blocks, None
            return found
        found = self._taps.blocks_of_grad(grad, activation)
        self._grad, self._blocks = weakref.ref(grad, lambda _: self._forget()), found
        return found

    def _forget(self) -> None:
        self._blocks = None


def is_faster(
    kept: Tensor, layer: nn.Conv2d, geometry: Geometry, images: int, size: tuple[int, int], dtype: torch.dtype
) -> bool:
    """Whether a training step of a layer is faster without the absent weights; measured, the three products together.

    Args:
        kept: (K, C, R, S) bool.
        layer: gives shape and memory format.
        geometry: of the layer.
        images: of a step.
        size: (H, W) of its input.
        dtype: of the products.
    """
    weight = layer.weight.detach().to(dtype) * kept
    activation = torch.randn(images, layer.in_channels, *size).to(dtype).contiguous(memory_format=torch.channels_last)
    grad = torch.randn_like(TORCH.forward(activation, weight, None, geometry))

    def step(backend: Backend) -> Callable[[], None]:
        def run() -> None:
            backend.forward(activation, weight, None, geometry)
            backend.dgrad(grad, weight, activation, geometry)
            backend.wgrad(grad, activation, weight, geometry, False)

        return run

    steps = (step(Skipping(kept, geometry)), step(TORCH))
    for one in steps:
        one()  # indices are made, libraries are cold
    times = [[_seconds(one) for one in steps] for _ in range(ROUNDS)]
    ours, dense = (statistics.median(column) for column in zip(*times, strict=True))
    return ours < dense


def _seconds(step: Callable[[], None]) -> float:
    start = time.perf_counter()
    step()
    return time.perf_counter() - start
