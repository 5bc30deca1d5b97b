"""Torch's own implementation of the three products, the default backend of every planned layer."""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from suite.network import pointwise
from suite.plan import Geometry


class TorchBackend:
    """The library's own dense products: every multiply-add is executed, also those with a zero.

    1x1 convolutions with a stride are computed from a sampled input on the CPU: `suite.network.pointwise` says why.
    """

    name = "torch"

    def forward(self, activation: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry) -> Tensor:
        if geometry.kind == "linear":
            return F.linear(activation, weight, bias)
        if pointwise.is_sampled(weight, geometry.stride):
            activation = pointwise.sample(activation, geometry.stride, geometry.padding)
            geometry = _of_sampled(geometry)
        return F.conv2d(activation, weight, bias, geometry.stride, geometry.padding, geometry.dilation, geometry.groups)

    def dgrad(self, grad: Tensor, weight: Tensor, activation: Tensor, geometry: Geometry) -> Tensor:
        if geometry.kind == "linear":
            return grad @ weight
        if pointwise.is_sampled(weight, geometry.stride):
            stride, padding = geometry.stride, geometry.padding
            read = pointwise.sampled_like(activation, stride, padding)
            found = _convolution_backward(grad, read, weight, _of_sampled(geometry), (True, False, False))[0]
            return pointwise.spread(found, (activation.shape[2], activation.shape[3]), stride, padding)
        return _convolution_backward(grad, activation, weight, geometry, (True, False, False))[0]

    def wgrad(
        self, grad: Tensor, activation: Tensor, weight: Tensor, geometry: Geometry, with_bias: bool
    ) -> tuple[Tensor, Tensor | None]:
        if geometry.kind == "linear":
            return grad.t() @ activation, grad.sum(0) if with_bias else None
        if pointwise.is_sampled(weight, geometry.stride):
            activation = pointwise.sample(activation, geometry.stride, geometry.padding)
            geometry = _of_sampled(geometry)
        # Weight and bias in one call: the bias costs nothing then, and both have the bits of torch's own backward.
        gradients = _convolution_backward(grad, activation, weight, geometry, (False, True, with_bias))
        return gradients[1], gradients[2] if with_bias else None

    def executed(self, product: str, grad: Tensor | None, weight: Tensor, geometry: Geometry) -> float:
        return 1.0


TORCH = TorchBackend()


def _of_sampled(geometry: Geometry) -> Geometry:
    """Of a 1x1 convolution of the pixels that another one, with a stride, reads."""
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
