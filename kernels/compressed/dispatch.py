"""Products with a compressed output gradient: the devices that have kernels for them, and calls of these kernels."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.compressed import cpu, reference
from kernels.compressed.operands import Geometry, Gradient, Pair, check_activation, check_gradient


def available(device: torch.device) -> bool:
    """Return whether a device has kernels that skip pruned channels. The CPU has them if there is a C++ compiler.

    The first call compiles them.
    """
    return device.type == "cpu" and cpu.library() is not None


def _compiled(weight: Tensor) -> cpu.Products | None:
    """Return the kernels for a layer; None if there are none for its dtype or device."""
    return cpu.library() if weight.dtype in cpu.FORMATS and weight.device.type == "cpu" else None


def data_gradient(grad: Gradient, weight: Tensor, size: Pair, geometry: Geometry) -> Tensor:
    """Return the data gradient of a convolution or linear layer, without work for pruned channels.

    Args:
        grad: The output gradient.
        weight: (K, C / groups, R, S) or (K, C).
        size: (H, W) of a convolution's input; a linear layer does not use it.
        geometry: Geometry of a convolution; a linear layer does not use it.

    Returns:
        (N, C, H, W) in channels-last order, or (rows, C), in the dtype of `weight`; summed in float32 at least. Plain
        torch, which is slow, computes in float64 for dtypes and devices without a kernel. The result does not depend on
        the number of threads. In bfloat16, processors with AVX512_BF16 take subnormal numbers as zeros, and the values
        as bfloat16 numbers: their lower bits, which a bfloat16 gradient does not have, are lost.

    Raises:
        ValueError: The gradient does not have the number, shape, dtype or layout that `Gradient` describes, or a
            channel is not in the group of its value. The kernels find this before they use the channels. Plain torch
            refuses only channels that the layer does not have.
        MemoryError: The kernel cannot allocate its memory.
    """
    check_gradient(grad, weight, geometry)
    return (_compiled(weight) or reference).data_gradient(grad, weight, size, geometry)


def weight_gradient(grad: Gradient, activation: Tensor, weight: Tensor, geometry: Geometry) -> Tensor:
    """Return the weight gradient of a convolution or linear layer, without work for pruned channels.

    Args:
        grad, geometry: As in `data_gradient`.
        activation: (N, C, H, W) or (rows, C), in the dtype of `weight`.
        weight: (K, C / groups, R, S) or (K, C); its values are not used.

    Returns:
        A tensor with the shape, dtype and layout of `weight`; summed as in `data_gradient`.

    Raises:
        ValueError, MemoryError: As in `data_gradient`.
    """
    check_gradient(grad, weight, geometry)
    check_activation(activation, grad, weight, geometry)
    return (_compiled(weight) or reference).weight_gradient(grad, activation, weight, geometry)
