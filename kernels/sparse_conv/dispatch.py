"""Convolution with a fixed sparsity mask: the devices that have kernels for it, and the kernels of each."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from kernels.sparse_conv import cpu, cuda
from kernels.sparse_conv.taps import Pair


class SparseConvolution(Protocol):
    """The three products of a convolution with a fixed sparsity mask. They skip masked weights.

    `blocks_of_grad` returns the output gradient in the layout of the kernels, which both gradients read.
    """

    density: float

    def forward(self, activation: Tensor, weight: Tensor) -> Tensor: ...

    def blocks_of_grad(self, grad: Tensor, activation: Tensor) -> Any: ...

    def dgrad(self, grad: Any, weight: Tensor, activation: Tensor) -> Tensor: ...

    def wgrad(self, grad: Any, activation: Tensor, weight: Tensor) -> Tensor: ...


def available(device: torch.device) -> bool:
    """Return whether a device has kernels that skip masked weights.

    The CPU has them if there is a C++ compiler, a CUDA device if CuPy is installed. The first call compiles them.
    """
    if device.type == "cuda":
        return cuda.available(device)
    return device.type == "cpu" and cpu.library() is not None


def sparse_convolution(kept: Tensor, stride: Pair, padding: Pair, dilation: Pair = (1, 1)) -> SparseConvolution:
    """Return the products of a convolution with a fixed sparsity mask, for the device of the mask.

    Args:
        kept: (K, C, R, S) bool, True for every weight that is not masked.
        stride, padding, dilation: Those of the convolution, each (rows, columns).
    """
    if kept.device.type == "cuda":
        return cuda.CudaSparseConvolution(kept, stride, padding, dilation)
    return cpu.CpuSparseConvolution(kept, stride, padding, dilation)
