"""Backend of a method that skips channels of a masked weight by multiplying smaller dense operands."""

import torch

from suite.engine.network.products import TorchBackend


class SlicingBackend(TorchBackend):
    """Skips all-zero channels of the weight in the forward and in the data gradient.

    The weight gradient stays dense, because the gradient of a masked weight decides whether it is restored. Grouped
    convolutions stay dense too.
    """

    name = "slicing"

    def forward(self, activation, weight, bias, geometry):
        if geometry.groups > 1:
            return super().forward(activation, weight, bias, geometry)
        rows, columns = nonzero_channels(weight)
        small = super().forward(
            activation.index_select(1, columns), weight.index_select(0, rows).index_select(1, columns), None, geometry
        )
        out = zeros_like_with(small, 1, weight.shape[0])
        out.index_copy_(1, rows, small)
        if bias is not None:
            out += bias.view(1, -1, *[1] * (out.ndim - 2))
        return out

    def dgrad(self, grad, weight, activation, geometry):
        if geometry.groups > 1:
            return super().dgrad(grad, weight, activation, geometry)
        rows, columns = nonzero_channels(weight)
        small = super().dgrad(
            grad.index_select(1, rows),
            weight.index_select(0, rows).index_select(1, columns),
            activation.index_select(1, columns),
            geometry,
        )
        out = zeros_like_with(small, 1, weight.shape[1])
        out.index_copy_(1, columns, small)
        return out

    def executed(self, product, grad, weight, geometry):
        if product == "wgrad" or geometry.groups > 1:
            return 1.0
        rows, columns = nonzero_channels(weight)
        return rows.numel() * columns.numel() / (weight.shape[0] * weight.shape[1])


def nonzero_channels(weight):
    """Return the output and input channels with a nonzero weight, at least one of each."""
    nonzero = weight != 0
    rows = nonzero.flatten(1).any(1).nonzero().flatten()
    columns = nonzero.transpose(0, 1).flatten(1).any(1).nonzero().flatten()
    first = torch.zeros(1, dtype=torch.int64, device=weight.device)
    return (rows if rows.numel() else first), (columns if columns.numel() else first)


def zeros_like_with(tensor, axis, size):
    """Return zeros with the shape of a tensor, except for one axis, in its memory format."""
    shape = list(tensor.shape)
    shape[axis] = size
    channels_last = tensor.ndim == 4 and tensor.is_contiguous(memory_format=torch.channels_last)
    return torch.zeros(shape, dtype=tensor.dtype, device=tensor.device).to(
        memory_format=torch.channels_last if channels_last else torch.contiguous_format
    )


SLICING = SlicingBackend()
