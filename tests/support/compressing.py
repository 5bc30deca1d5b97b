"""Transforms that compress an output gradient in plain torch, and a backend that multiplies the result."""

import torch

from kernels.compressed import reference
from suite.engine.network.products import TorchBackend
from suite.method import Compressed


def largest(n, m):
    """Return a transform that keeps the n largest of every m channels, compressed."""

    def compress(grad, site):
        rows = grad.movedim(1, -1)
        channels = rows.shape[-1]
        kept = torch.cat(
            [
                begin + rows[..., begin : begin + m].abs().argsort(-1, descending=True)[..., :n].sort(-1).values
                for begin in range(0, channels, m)
            ],
            -1,
        )
        return Compressed(rows.gather(-1, kept).float(), kept.to(torch.int16), tuple(grad.shape), grad.dtype, n, m)

    return compress


def expanded(transform):
    """Return the same transform with a dense result."""
    return lambda grad, site: transform(grad, site).dense()


class CompressedBackend(TorchBackend):
    """Takes compressed gradients in some products, multiplied by the reference, and notes what each product got."""

    name = "compressed"

    def __init__(self, *products):
        self.compressed_products = products
        self.seen = {}

    def dgrad(self, grad, weight, activation, geometry):
        self.seen["dgrad"] = type(grad)
        if not isinstance(grad, Compressed):
            return super().dgrad(grad, weight, activation, geometry)
        return reference.data_gradient(grad, weight, tuple(activation.shape[2:]), geometry)

    def wgrad(self, grad, activation, weight, geometry, with_bias):
        self.seen["wgrad"] = type(grad)
        if not isinstance(grad, Compressed):
            return super().wgrad(grad, activation, weight, geometry, with_bias)
        found = reference.weight_gradient(grad, activation, weight, geometry)
        return found, grad.channel_sums() if with_bias else None

    def executed(self, product, grad, weight, geometry):
        return grad.share if isinstance(grad, Compressed) else 1.0
