"""Products with a compressed output gradient in plain torch: the definition for tests of compiled kernels.

Both functions expand the gradient and multiply in float64, so results are exact except for the last rounding.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.compressed.operands import Geometry, Gradient, Pair


def data_gradient(grad: Gradient, weight: Tensor, size: Pair, geometry: Geometry) -> Tensor:
    """Return the data gradient, as `kernels.compressed.dispatch.data_gradient`."""
    dense = _dense(grad, len(weight))
    if weight.ndim == 2:
        return (dense @ weight.double()).to(weight.dtype)
    shape = (len(dense), weight.shape[1] * geometry.groups, *size)
    activation = dense.new_empty(1).expand(shape)  # an operand of which only the shape is used
    gradient, _ = _convolution_gradients(dense, activation, weight, geometry, (True, False))
    return gradient.to(weight.dtype).contiguous(memory_format=torch.channels_last)


def weight_gradient(grad: Gradient, activation: Tensor, weight: Tensor, geometry: Geometry) -> Tensor:
    """Return the weight gradient, as `kernels.compressed.dispatch.weight_gradient`."""
    dense, activation = _dense(grad, len(weight)), activation.double()
    if weight.ndim == 2:
        gradient = dense.t() @ activation
    else:
        _, gradient = _convolution_gradients(dense, activation, weight, geometry, (False, True))
    return torch.empty_like(weight).copy_(gradient)


def _dense(grad: Gradient, out_channels: int) -> Tensor:
    """Return the dense output gradient in float64, (N, K, P, Q) in channels-last order or (rows, K)."""
    values = grad.values.double()
    dense = values.new_zeros((*values.shape[:-1], out_channels))
    return dense.scatter_(-1, grad.channels.long(), values).movedim(-1, 1)


def _convolution_gradients(
    grad: Tensor, activation: Tensor, weight: Tensor, geometry: Geometry, needed: tuple[bool, bool]
) -> tuple[Tensor, Tensor]:
    """Return the needed ones of a convolution's data gradient and weight gradient, in float64."""
    found = torch.ops.aten.convolution_backward(
        *(grad, activation, weight.double(), None, geometry.stride, geometry.padding, geometry.dilation),
        *(False, (0, 0), geometry.groups, (*needed, False)),
    )
    return found[0], found[1]
