"""Torch's own implementation of the three products, the default backend of every planned layer."""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from suite.network import pointwise
from suite.plan import Geometry, Pair


def is_sampled(weight: Tensor, stride: Pair) -> bool:
    """Whether a convolution with this weight, (K, C, R, S), is computed from a sampled input: see `pointwise`."""
    return weight.device.type == "cpu" and weight.shape[2:] == (1, 1) and tuple(stride) != (1, 1)


class TorchBackend:
    """Torch's own dense products: every multiply-add is executed, including those with a zero.

    1x1 convolutions with a stride on the CPU are computed from a sampled input (see `suite.network.pointwise`).
    """

    name = "torch"

    def forward(self, activation: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry) -> Tensor:
        """Return O = A * W + b."""
        if geometry.kind == "linear":
            return F.linear(activation, weight, bias)
        if is_sampled(weight, geometry.stride):
            activation = pointwise.sample(activation, geometry.stride, geometry.padding)
            geometry = _of_sampled(geometry)
        return F.conv2d(activation, weight, bias, geometry.stride, geometry.padding, geometry.dilation, geometry.groups)

    def dgrad(self, grad: Tensor, weight: Tensor, activation: Tensor, geometry: Geometry) -> Tensor:
        """Return dA."""
        if geometry.kind == "linear":
            return grad @ weight
        if is_sampled(weight, geometry.stride):
            stride, padding = geometry.stride, geometry.padding
            sampled = pointwise.sampled_like(activation, stride, padding)
            found = _convolution_backward(grad, sampled, weight, _of_sampled(geometry), (True, False, False))[0]
            return pointwise.spread(found, (activation.shape[2], activation.shape[3]), stride, padding)
        return _convolution_backward(grad, activation, weight, geometry, (True, False, False))[0]

    def wgrad(
        self, grad: Tensor, activation: Tensor, weight: Tensor, geometry: Geometry, with_bias: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Return dW, and the bias gradient if `with_bias`."""
        if geometry.kind == "linear":
            return grad.t() @ activation, grad.sum(0) if with_bias else None
        if is_sampled(weight, geometry.stride):
            activation = pointwise.sample(activation, geometry.stride, geometry.padding)
            geometry = _of_sampled(geometry)
        # One call for weight and bias: the bias is free then, and both equal torch's own backward bit for bit.
        gradients = _convolution_backward(grad, activation, weight, geometry, (False, True, with_bias))
        return gradients[1], gradients[2] if with_bias else None

    def executed(self, product: str, grad: Tensor | None, weight: Tensor, geometry: Geometry) -> float:
        """Return 1: every multiply-add is executed."""
        return 1.0


TORCH = TorchBackend()


def _of_sampled(geometry: Geometry) -> Geometry:
    """Return the geometry of a 1x1 convolution over the sampled input."""
    return replace(geometry, stride=(1, 1), padding=(0, 0))


def _convolution_backward(
    grad: Tensor, activation: Tensor, weight: Tensor, geometry: Geometry, mask: tuple[bool, bool, bool]
) -> tuple[Tensor, Tensor, Tensor]:
    return torch.ops.aten.convolution_backward(
        grad,
        activation,
        weight,
        [weight.shape[0]] if mask[2] else None,
        geometry.stride,
        geometry.padding,
        geometry.dilation,
        False,
        (0, 0),
        geometry.groups,
        mask,
    )
