"""Who multiplies: the three products of a planned layer.

A backend is handed operands that are masked, pruned and cast already, and says afterwards what share of the dense
multiply-adds it *executed*. `torch` multiplies everything, zeros included. `compact` leaves out channels of the
weight that are zero throughout, by slicing the operands and multiplying smaller dense ones.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from suite.network import pointwise

Pair = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Geometry:
    """A layer's fixed numbers. `kind` is `conv` or `linear`; the others matter to a convolution alone.

    For a linear layer every operand is a matrix: A (rows, C), W (K, C), dO (rows, K).
    """

    kind: str
    stride: Pair = (1, 1)
    padding: Pair = (0, 0)
    dilation: Pair = (1, 1)
    groups: int = 1


class Backend(Protocol):
    """Computes the three products of a layer. Operands share one dtype; shapes as in `suite.method`."""

    name: str

    def forward(self, activation: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry) -> Tensor:
        """O = conv(A, W) + b, (N, K, P, Q) or (rows, K)."""

    def dgrad(self, grad: Tensor, weight: Tensor, activation: Tensor, geometry: Geometry) -> Tensor:
        """dA from dO and W. `activation` gives shape and strides alone; its values may be anything."""

    def wgrad(
        self, grad: Tensor, activation: Tensor, weight: Tensor, geometry: Geometry, with_bias: bool
    ) -> tuple[Tensor, Tensor | None]:
        """dW, and the bias's gradient if asked for, from dO and A. `weight` gives the shape alone."""

    def executed(self, product: str, grad: Tensor | None, weight: Tensor, geometry: Geometry) -> float:
        """Share of the dense multiply-adds of `product` (`forward`, `dgrad`, `wgrad`) that these operands cost."""


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


class CompactBackend(TorchBackend):
    """Leaves out the weight's channels that are zero throughout: smaller dense operands in forward and data gradient.

    The weight gradient stays dense: a masked weight's gradient decides whether it comes back. Grouped convolutions are
    multiplied dense.
    """

    name = "compact"

    def forward(self, activation: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry) -> Tensor:
        if geometry.groups > 1:
            return super().forward(activation, weight, bias, geometry)
        rows, columns = _live_channels(weight)
        small = super().forward(
            activation.index_select(1, columns), weight.index_select(0, rows).index_select(1, columns), None, geometry
        )
        out = _like(small, 1, weight.shape[0])
        out.index_copy_(1, rows, small)
        if bias is not None:
            out += bias.view(1, -1, *[1] * (out.ndim - 2))
        return out

    def dgrad(self, grad: Tensor, weight: Tensor, activation: Tensor, geometry: Geometry) -> Tensor:
        if geometry.groups > 1:
            return super().dgrad(grad, weight, activation, geometry)
        rows, columns = _live_channels(weight)
        small = super().dgrad(
            grad.index_select(1, rows),
            weight.index_select(0, rows).index_select(1, columns),
            activation.index_select(1, columns),
            geometry,
        )
        out = _like(small, 1, weight.shape[1])
        out.index_copy_(1, columns, small)
        return out

    def executed(self, product: str, grad: Tensor | None, weight: Tensor, geometry: Geometry) -> float:
        if product == "wgrad" or geometry.groups > 1:
            return 1.0
        rows, columns = _live_channels(weight)
        return rows.numel() * columns.numel() / (weight.shape[0] * weight.shape[1])


TORCH = TorchBackend()
COMPACT = CompactBackend()


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


def _live_channels(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Output and input channels with any weight that is not zero, at least one of each."""
    alive = weight != 0
    rows = alive.flatten(1).any(1).nonzero().flatten()
    columns = alive.transpose(0, 1).flatten(1).any(1).nonzero().flatten()
    first = torch.zeros(1, dtype=torch.int64, device=weight.device)
    return (rows if rows.numel() else first), (columns if columns.numel() else first)


def _like(tensor: Tensor, axis: int, size: int) -> Tensor:
    """Zeros of `tensor`'s shape but for one axis, in its memory format."""
    shape = list(tensor.shape)
    shape[axis] = size
    channels_last = tensor.ndim == 4 and tensor.is_contiguous(memory_format=torch.channels_last)
    return torch.zeros(shape, dtype=tensor.dtype, device=tensor.device).to(
        memory_format=torch.channels_last if channels_last else torch.contiguous_format
    )
