"""Scores: how much each weight of a layer matters. A larger score means that the weight should stay."""

from __future__ import annotations

import torch
from torch import Tensor


def magnitude(weight: Tensor) -> Tensor:
    """Return |w|, in the shape of the weight."""
    return weight.detach().abs()


def gradient(weight: Tensor) -> Tensor:
    """Return the magnitude of the gradient, in the shape of the weight.

    Source: RigL (Evci et al., ICML 2020) activates the weights with the largest gradients.
    """
    return _gradient_of(weight).abs()


def saliency(weight: Tensor) -> Tensor:
    """Return (gradient * weight) squared: the first-order estimate of the change in the loss, squared.

    Source: ClickTrain (Zhang et al., ICS 2021).
    """
    return (_gradient_of(weight) * weight.detach()).square()


def uniform_random(weight: Tensor, generator: torch.Generator) -> Tensor:
    """Return numbers in [0, 1) in the shape of the weight, drawn on the CPU, so that every device gets the same."""
    return torch.rand(weight.shape, generator=generator).to(weight.device)


def wide(weight: Tensor) -> Tensor:
    """Return a weight in a type for sums of squares and small numbers: float32 in place of shorter types."""
    return weight.float() if weight.dtype.itemsize < 4 else weight


def _gradient_of(weight: Tensor) -> Tensor:
    assert weight.grad is not None, "scores of gradients are available from before_optimizer_step on"
    return weight.grad
