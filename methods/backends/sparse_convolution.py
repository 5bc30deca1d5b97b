"""A backend that skips masked weights.

torch's dense products are faster per multiply-add. Which backend takes less time depends on the layer's shape, the
density of its weights, and the number type.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import kernels
from kernels.sparse_conv.dispatch import sparse_convolution
from methods.backends.per_gradient import PerGradient
from suite.method import Geometry


@functools.cache
def kernels_version(device: torch.device, library: Callable[[], Any]) -> str:
    """Return a hash of everything in this code that decides the times of products: kernels, compiler, flags.

    Args:
        device: Device of the products.
        library: Opens the compiled kernels of the products on the CPU.
    """
    digest = hashlib.sha256()
    products = (Path(__file__).parents[1] / name for name in ("backends", "gradients", "masks"))
    folders = (Path(kernels.__file__).parent, *products)
    for path in (file for folder in folders for file in sorted(folder.rglob("*"))):
        if path.suffix in (".py", ".cpp", ".h", ".cu", ".cuh"):
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
    if device.type == "cpu" and (compiled := library()) is not None:
        digest.update(Path(compiled.library._name).name.encode())  # named after its compiler and flags
    return digest.hexdigest()[:16]


class Skipping:
    """The three products of one convolution with a fixed sparsity mask; masked weights are skipped.

    Args:
        kept: (K, C, R, S) bool, the weights that remain, on the device of the training.
        geometry: Geometry of the layer.
    """

    name = "skipping"

    def __init__(self, kept: Tensor, geometry: Geometry) -> None:
        self._taps = sparse_convolution(kept, geometry.stride, geometry.padding, geometry.dilation)
        self._grads: PerGradient[Any] = PerGradient()

    def forward(self, activation: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry) -> Tensor:
        """See `suite.method.Backend`."""
        out = self._taps.forward(activation, weight)
        return out if bias is None else out.add_(bias.view(1, -1, 1, 1))

    def dgrad(self, grad: Tensor, weight: Tensor, activation: Tensor, geometry: Geometry) -> Tensor:
        """See `suite.method.Backend`."""
        return self._taps.dgrad(self._blocks_of(grad, activation), weight, activation)

    def wgrad(
        self, grad: Tensor, activation: Tensor, weight: Tensor, geometry: Geometry, with_bias: bool
    ) -> tuple[Tensor, Tensor | None]:
        """See `suite.method.Backend`; the gradient of masked weights is zero."""
        found = self._taps.wgrad(self._blocks_of(grad, activation), activation, weight)
        return found, grad.sum((0, 2, 3)) if with_bias else None

    def executed(self, product: str, grad: Tensor | None, weight: Tensor, geometry: Geometry) -> float:
        """See `suite.method.Backend`."""
        return self._taps.density

    def _blocks_of(self, grad: Tensor, activation: Tensor) -> Any:
        return self._grads.of(grad, lambda: self._taps.blocks_of_grad(grad, activation))
