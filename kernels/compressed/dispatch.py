"""Products with a compressed output gradient: which devices have kernels for them, and the call of these kernels.

`kernels.compress_nm` makes the gradient: the kept values of each pixel, and their channels.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.compressed import cpu, reference
from kernels.compressed.reference import Pair

MOST_CHANNELS = 2**15 - 1  # of an int16


def available(device: torch.device) -> bool:
    """Return whether a device has kernels that skip pruned channels: the CPU, where a C++ compiler is found.

    The first call compiles them.
    """
    return device.type == "cpu" and cpu.library() is not None


def _has_kernel(values: Tensor, dtype: torch.dtype) -> bool:
    return dtype in cpu.FORMATS and available(values.device)


def _check(values: Tensor, channels: Tensor, weight: Tensor, groups: int, n: int, m: int) -> None:
    """Check what the kernels rely on, except for the channel numbers, which they check themselves.

    Raises:
        ValueError: The tensors do not describe n of every m channels of this layer.
    """
    out_channels = len(weight)
    if not 1 <= n <= m or out_channels > MOST_CHANNELS:
        raise ValueError(
            f"a compressed gradient keeps n of every m of at most {MOST_CHANNELS} channels, with 1 <= n <= m; got "
            f"n={n}, m={m} and {out_channels} channels"
        )
    if weight.ndim == 4 and (groups < 1 or out_channels % groups):
        raise ValueError(f"{out_channels} output channels cannot be divided into {groups} groups of a convolution")
    kept = out_channels // m * n + min(n, out_channels % m)
    if values.ndim != weight.ndim or values.shape[-1] != kept:
        raise ValueError(
            f"a compressed gradient of {n} of every {m} of {out_channels} channels has {kept} values a pixel and "
            f"{weight.ndim} dimensions, got values {tuple(values.shape)}"
        )
    is_right = values.dtype == torch.float32 and channels.dtype == torch.int16 and channels.shape == values.shape
    if not (is_right and values.is_contiguous() and channels.is_contiguous()):
        raise ValueError(
            "a compressed gradient has float32 values and int16 channels of one shape, both contiguous; got "
            f"{values.dtype} {tuple(values.shape)} and {channels.dtype} {tuple(channels.shape)}"
        )
    if not values.device == channels.device == weight.device:
        raise ValueError(
            "values, channels and weight must be on one device, got "
            f"{values.device}, {channels.device} and {weight.device}"
        )


def _check_activation(activation: Tensor, values: Tensor, weight: Tensor, groups: int) -> None:
    """Check what the kernel reads of an activation.

    Raises:
        ValueError: The activation is not the input of this layer.
    """
    channels = weight.shape[1] * (groups if weight.ndim == 4 else 1)
    given = (activation.ndim, *activation.shape[:2], activation.dtype, activation.device)
    if given != (weight.ndim, len(values), channels, weight.dtype, weight.device):
        raise ValueError(
            f"the activation needs {weight.ndim} dimensions that begin with {(len(values), channels)}, and "
            f"{weight.dtype} on {weight.device}; got {tuple(activation.shape)} and {activation.dtype} on "
            f"{activation.device}"
        )


def data_gradient(
    values: Tensor,
    channels: Tensor,
    weight: Tensor,
    size: Pair,
    stride: Pair,
    padding: Pair,
    dilation: Pair,
    groups: int,
    n: int,
    m: int,
) -> Tensor:
    """Return the data gradient of a convolution or linear layer; pruned channels are skipped.

    Args:
        values: float32, (N, P, Q, J) or (rows, J), contiguous: the kept values of the output gradient.
        channels: int16 in the same shape: the output channel of each value, ascending within a pixel.
        weight: (K, C / groups, R, S) or (K, C).
        size: (H, W) of the layer's input; a linear layer uses neither this nor the arguments up to `groups`.
        stride, padding, dilation: Of the convolution, each (rows, columns).
        groups: Number of groups of the convolution.
        n: Number of values of each whole group of `m` channels; the last group has min(n, its size).
        m: Number of channels in a group.

    Returns:
        (N, C, H, W) in channels-last order, or (rows, C), in the dtype of `weight`; summed in float32 at least. Plain
        torch computes it in float64 for dtypes and devices without a kernel, which is slow. The result does not depend
        on the number of threads.

    Raises:
        ValueError: The values do not have the number, shape, dtype or layout that is described here, or a channel is
            not in the group of its value; the kernels find this before they use the channels. Plain torch refuses
            channels that the layer does not have.
        MemoryError: The kernel cannot allocate its memory.
    """
    _check(values, channels, weight, groups, n, m)
    if _has_kernel(values, weight.dtype):
        return cpu.data_gradient(values, channels, weight, size, stride, padding, dilation, groups, n, m)
    return reference.data_gradient(values, channels, weight, size, stride, padding, dilation, groups)


def weight_gradient(
    values: Tensor,
    channels: Tensor,
    activation: Tensor,
    weight: Tensor,
    stride: Pair,
    padding: Pair,
    dilation: Pair,
    groups: int,
    n: int,
    m: int,
) -> Tensor:
    """Return the weight gradient of a convolution or linear layer; pruned channels are skipped.

    Args:
        values, channels, stride, padding, dilation, groups, n, m: As in `data_gradient`.
        activation: (N, C, H, W) or (rows, C), in the dtype of `weight`.
        weight: (K, C / groups, R, S) or (K, C); its values are not used.

    Returns:
        A tensor with the shape, dtype and layout of `weight`; summed as in `data_gradient`.

    Raises:
        ValueError, MemoryError: As in `data_gradient`.
    """
    _check(values, channels, weight, groups, n, m)
    _check_activation(activation, values, weight, groups)
    if _has_kernel(values, weight.dtype):
        return cpu.weight_gradient(values, channels, activation, weight, stride, padding, dilation, groups, n, m)
    return reference.weight_gradient(values, channels, activation, weight, stride, padding, dilation, groups)
