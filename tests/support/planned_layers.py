"""Layers of every kind, and helpers for their gradients with and without a plan."""

import copy

import torch
from torch import nn

from suite.engine.network.layers import convert

LAYERS = {
    "conv3x3": (lambda: nn.Conv2d(8, 12, 3, padding=1), (2, 8, 9, 9)),
    "conv5x5-stride2": (lambda: nn.Conv2d(8, 12, 5, stride=2, padding=2, bias=False), (2, 8, 9, 9)),
    "conv1x1": (lambda: nn.Conv2d(8, 12, 1), (2, 8, 9, 9)),
    "grouped": (lambda: nn.Conv2d(8, 12, 3, groups=4), (2, 8, 9, 9)),
    "dilated": (lambda: nn.Conv2d(8, 12, 3, dilation=2), (2, 8, 9, 9)),
    "same": (lambda: nn.Conv2d(8, 12, 3, padding="same"), (2, 8, 9, 9)),
    "same-asymmetric": (lambda: nn.Conv2d(8, 12, (2, 4), padding="same"), (2, 8, 9, 9)),
    "reflect": (lambda: nn.Conv2d(8, 12, 3, padding=1, padding_mode="reflect"), (2, 8, 9, 9)),
    "unbatched": (lambda: nn.Conv2d(8, 12, 3), (8, 9, 9)),
    "linear": (lambda: nn.Linear(8, 12), (6, 8)),
    "linear-3d": (lambda: nn.Linear(8, 12, bias=False), (2, 3, 8)),
}


def identity(tensor, site):
    return tensor


def gradients(layer, inputs, dtype=torch.float32):
    """Return output and all gradients of one forward and backward."""
    inputs = inputs.clone().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
        out = layer(inputs)
    weights = torch.linspace(-1, 1, out.numel(), device=out.device).view_as(out)
    (out.float() * weights).sum().backward()
    return {"out": out.detach(), "data": inputs.grad} | {n: p.grad for n, p in layer.named_parameters()}


def planned_copy(layer, plan):
    """Return a converted copy without gradients."""
    duplicate = copy.deepcopy(layer)
    duplicate.zero_grad()
    convert(nn.Sequential(duplicate))
    duplicate.op_plan = plan
    return duplicate
