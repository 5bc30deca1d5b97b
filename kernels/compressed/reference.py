"""Products with a compressed output gradient in plain torch: the definition against which compiled kernels are tested.

Both functions expand the gradient and multiply in float64, so that their results are exact but for the last rounding.
"""

from __future__ import annotations

import torch
from torch import Tensor

Pair = tuple[int, int]


def data_gradient(
    values: Tensor,
    channels: Tensor,
    weight: Tensor,
    size: Pair,
    stride: Pair,
    padding: Pair,
    dilation: Pair,
    groups: int,
) -> Tensor:
    """Return the data gradient; arguments and meaning as in `kernels.compressed.dispatch.data_gradient`."""
    grad = dense(values, channels, len(weight))
    if weight.ndim == 2:
        return (grad @ weight.double()).to(weight.dtype)
    shape = (len(grad), weight.shape[1] * groups, *size)
    activation = grad.new_empty(1).expand(shape)  # only its shape is used
    found, _, _ = torch.ops.aten.convolution_backward(
        grad, activation, weight.double(), None, stride, padding, dilation, False, (0, 0), groups, (True, False, False)
    )
    return found.to(weight.dtype).contiguous(memory_format=torch.channels_last)  # type: ignore[no-any-return]


def weight_gradient(
    values: Tensor,
    channels: Tensor,
    activation: Tensor,
    weight: Tensor,
    stride: Pair,
    padding: Pair,
    dilation: Pair,
    groups: int,
) -> Tensor:
    """Return the weight gradient; arguments and meaning as in `kernels.compressed.dispatch.weight_gradient`."""
    grad = dense(values, channels, len(weight))
    if weight.ndim == 2:
        found = grad.t() @ activation.double()
    else:
        _, found, _ = torch.ops.aten.convolution_backward(
            *(grad, activation.double(), weight.double(), None, stride, padding, dilation),
            *(False, (0, 0), groups, (False, True, False)),
        )
    return torch.empty_like(weight).copy_(found)


def dense(values: Tensor, channels: Tensor, out_channels: int) -> Tensor:
    """Return the dense output gradient in float64, (N, K, P, Q) in channels-last order or (rows, K).

    Args:
        values: (N, P, Q, J) or (rows, J), the kept values of each pixel.
        channels: Their channel numbers, in the same shape.
        out_channels: K.
    """
    grad = values.new_zeros((*values.shape[:-1], out_channels), dtype=torch.float64)
    return grad.scatter_(-1, channels.long(), values.double()).movedim(-1, 1)
