"""The operands of products with a compressed output gradient, and the checks that the kernels rely on."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

Pair = tuple[int, int]
MOST_CHANNELS = torch.iinfo(torch.int16).max


class Gradient(Protocol):
    """An output gradient with n of every m channels of each pixel, as `kernels.compress_nm` returns it.

    Attributes:
        values: float32, (N, P, Q, J) or (rows, J), contiguous: the kept values of each pixel. J is the sum over the
            groups of m channels of n, or of min(n, its size) for the last group.
        channels: int16 in the same shape: the output channel of each value, ascending within a pixel.
        n: Number of channels kept in each group.
        m: Number of consecutive channels that form a group.
    """

    @property
    def values(self) -> Tensor: ...
    @property
    def channels(self) -> Tensor: ...
    @property
    def n(self) -> int: ...
    @property
    def m(self) -> int: ...


class Geometry(Protocol):
    """The geometry of a convolution, each pair (rows, columns). A linear layer uses none of it."""

    @property
    def stride(self) -> Pair: ...
    @property
    def padding(self) -> Pair: ...
    @property
    def dilation(self) -> Pair: ...
    @property
    def groups(self) -> int: ...


def check_gradient(grad: Gradient, weight: Tensor, geometry: Geometry) -> None:
    """Check a gradient against its layer, except for the channel numbers, which the kernels check.

    Raises:
        ValueError: The tensors do not describe n of every m channels of this layer.
    """
    values, channels, out_channels = grad.values, grad.channels, len(weight)
    if not 1 <= grad.n <= grad.m or out_channels > MOST_CHANNELS:
        raise ValueError(
            f"a compressed gradient keeps n of every m of at most {MOST_CHANNELS} channels, with 1 <= n <= m; got "
            f"n={grad.n}, m={grad.m} and {out_channels} channels"
        )
    if weight.ndim == 4 and (geometry.groups < 1 or out_channels % geometry.groups):
        raise ValueError(
            f"{out_channels} output channels cannot be divided into {geometry.groups} groups of a convolution"
        )
    kept = out_channels // grad.m * grad.n + min(grad.n, out_channels % grad.m)
    if values.ndim != weight.ndim or values.shape[-1] != kept:
        raise ValueError(
            f"a compressed gradient of {grad.n} of every {grad.m} of {out_channels} channels has {kept} values a pixel "
            f"and {weight.ndim} dimensions, got values {tuple(values.shape)}"
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


def check_activation(activation: Tensor, grad: Gradient, weight: Tensor, geometry: Geometry) -> None:
    """Check what the kernel of the weight gradient reads of an activation.

    Raises:
        ValueError: The activation is not the input of this layer.
    """
    channels = weight.shape[1] * (geometry.groups if weight.ndim == 4 else 1)
    given = (activation.ndim, *activation.shape[:2], activation.dtype, activation.device)
    if given != (weight.ndim, len(grad.values), channels, weight.dtype, weight.device):
        raise ValueError(
            f"the activation needs {weight.ndim} dimensions that begin with {(len(grad.values), channels)}, and "
            f"{weight.dtype} on {weight.device}; got {tuple(activation.shape)} and {activation.dtype} on "
            f"{activation.device}"
        )
