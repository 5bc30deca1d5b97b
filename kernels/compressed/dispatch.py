"""Products with a compressed output gradient: which devices have kernels for them, and the call of these kernels.

`kernels.compress_nm` makes the gradient: the kept values of each pixel, and their channels.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.compressed import reference
from kernels.compressed.reference import Pair


def available(device: torch.device) -> bool:
    """Return whether a device has kernels that skip pruned channels; so far none has."""
    return False


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
        (N, C, H, W) in channels-last order, or (rows, C), in the dtype of `weight`; summed in float32 at least.
    """
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
        A tensor with the shape, dtype and layout of `weight`; summed in float32 at least.
    """
    return reference.weight_gradient(values, channels, activation, weight, stride, padding, dilation, groups)
