"""Convolution with a fixed sparsity mask in plain torch: the definition for tests of compiled kernels.

The masked weights are zeros of a dense product in float64, so results are exact except for the last rounding.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.sparse_conv.taps import Pair


def products(
    kept: Tensor, activation: Tensor, weight: Tensor, grad: Tensor, stride: Pair, padding: Pair, dilation: Pair
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the output, the data gradient and the weight gradient of a convolution, in the dtype of `activation`.

    Args:
        kept: (K, C, R, S) bool, True for every weight that is not masked.
        activation: (N, C, H, W).
        weight: (K, C, R, S).
        grad: (N, K, P, Q), the output gradient.
        stride, padding, dilation: Those of the convolution, each (rows, columns).
    """
    exact, masked = activation.double(), weight.double() * kept
    out = torch.nn.functional.conv2d(exact, masked, None, stride, padding, dilation)
    data, weights, _ = torch.ops.aten.convolution_backward(
        grad.double(), exact, masked, None, stride, padding, dilation, False, (0, 0), 1, (True, True, False)
    )
    return out.to(activation.dtype), data.to(activation.dtype), (weights * kept).to(activation.dtype)
