"""A backend that multiplies by the weights that are there.

Where nothing is skipped, torch's dense products are the faster ones per multiply-add; which side wins depends on the
layer's shape, on how much is left, and on the number type.
"""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import kernels
from kernels.sparse_conv.cpu import library
from kernels.sparse_conv.dispatch import available, sparse_convolution
from methods.backends.per_gradient import PerGradient
from suite.method import Geometry


def can_skip(device: torch.device) -> bool:
    """Whether there are kernels that skip weights on a device: where a compiler, or on CUDA CuPy, was found."""
    return available(device)


@functools.cache
def kernels_version(device: torch.device) -> str:
    """Changes with everything that the times of masked products depend on in this code: kernels, compiler and flags."""
    digest = hashlib.sha256()
    for path in (*sorted(Path(kernels.__file__).parent.rglob("*")), *sorted(Path(__file__).parent.glob("*.py"))):
        if path.suffix in (".py", ".cpp", ".h", ".cu", ".cuh"):
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
    if device.type == "cpu" and (compiled := library()) is not None:
        digest.update(Path(compiled._name).name.encode())  # named after its compiler and flags
    return digest.hexdigest()[:16]


class Skipping:
    """The three products of one convolution, without the weights that are absent for good.

    Args:
        kept: (K, C, R, S) bool, the weights that are there, on the device that will multiply.
        geometry: of the layer.
    """

    name = "skipping"

    def __init__(self, kept: Tensor, geometry: Geometry) -> None:
        self._taps = sparse_convolution(kept, geometry.stride, geometry.padding, geometry.dilation)
        self._grads: PerGradient[Any] = PerGradient()

    def forward(self, activation: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry) -> Tensor:
        """As of `suite.method.Backend`."""
        out = self._taps.forward(activation, weight)
        return out if bias is None else out.add_(bias.view(1, -1, 1, 1))

    def dgrad(self, grad: Tensor, weight: Tensor, activation: Tensor, geometry: Geometry) -> Tensor:
        """As of `suite.method.Backend`."""
        return self._taps.dgrad(self._blocks_of(grad, activation), weight, activation)

    def wgrad(
        self, grad: Tensor, activation: Tensor, weight: Tensor, geometry: Geometry, with_bias: bool
    ) -> tuple[Tensor, Tensor | None]:
        """As of `suite.method.Backend`; zero for weights that are absent."""
        found = self._taps.wgrad(self._blocks_of(grad, activation), activation, weight)
        return found, grad.sum((0, 2, 3)) if with_bias else None

    def executed(self, product: str, grad: Tensor | None, weight: Tensor, geometry: Geometry) -> float:
        """As of `suite.method.Backend`."""
        return self._taps.density

    def _blocks_of(self, grad: Tensor, activation: Tensor) -> Any:
        return self._grads.of(grad, lambda: self._taps.blocks_of_grad(grad, activation))
