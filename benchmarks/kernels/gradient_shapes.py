"""Shapes of the gradients that SDGP prunes: the outputs of a model's convolutions whose input needs a gradient."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torchvision
from torch import nn

from suite import registry
from suite.brackets import Request, read_list
from suite.choices import ModelChoice, build_model
from suite.engine.cost.flops import count_layers
from suite.errors import UsageError, nearest

LARGE = "large"
CIFAR, IMAGENET = (3, 32, 32), (3, 224, 224)
CIFAR_BATCH, IMAGENET_BATCH = 512, 256
WIDEST = "resnet9"  # `large` is the widest gradient of this network, with a large batch


@dataclass(frozen=True)
class Gradient:
    """A shape (N, K, P, Q) and the layers whose output gradient has it, each as `network layer`."""

    shape: tuple[int, int, int, int]
    layers: tuple[str, ...]

    @property
    def label(self) -> str:
        """Short description of the layers."""
        more = len(self.layers) - 1
        return self.layers[0] + (f" and {more} more" if more else "")


def gradients(text: str, batch_size: int | None, large_bytes: int) -> list[Gradient]:
    """Return the distinct shapes in a list of networks, in the order of the list.

    Args:
        text: Comma-separated list of `large`, registered models with parameters in brackets, and torchvision's models.
        batch_size: N; `None` for 512 (32x32 images) or 256 (torchvision's networks, 224x224). `large` ignores it.
        large_bytes: Minimum size of a 16-bit tensor of `large` in bytes.

    Raises:
        UsageError: If a name or a parameter is unknown.
    """
    found: dict[tuple[int, int, int, int], list[str]] = {}
    for request in read_list(text, "--shapes"):
        for shape, layer in _of(request, batch_size, large_bytes):
            found.setdefault(shape, []).append(layer)
    return [Gradient(shape, tuple(layers)) for shape, layers in found.items()]


def _of(request: Request, batch_size: int | None, large_bytes: int) -> list[tuple[tuple[int, int, int, int], str]]:
    imagenet = torchvision.models.list_models(module=torchvision.models)
    if request.name in (LARGE, *imagenet) and request.alternatives:
        raise UsageError(f"--shapes {request.text}: {request.name} takes no parameters")
    if request.name == LARGE:
        return [_large(large_bytes)]
    if request.name in imagenet:
        with torch.device("meta"):
            model = torchvision.models.get_model(request.name, weights=None)
        return _pruned(request.name, model, IMAGENET, batch_size or IMAGENET_BATCH)
    known = registry.names("model")
    if request.name not in known:
        raise UsageError(f"--shapes {request.name}{nearest(request.name, (LARGE, *known, *imagenet))}")
    rows = []
    for choice in ModelChoice.expand(request):
        with torch.device("meta"):
            model = build_model(str(choice), CIFAR, 10)
        rows += _pruned(str(choice), model, CIFAR, batch_size or CIFAR_BATCH)
    return rows


def _pruned(
    network: str, model: nn.Module, images: tuple[int, int, int], batch_size: int
) -> list[tuple[tuple[int, int, int, int], str]]:
    return [
        ((batch_size, cost.out_channels, *cost.output), f"{network} {cost.name}")
        for cost in count_layers(model, images).values()
        if cost.kind == "conv" and cost.has_dgrad
    ]


def _large(least_bytes: int) -> tuple[tuple[int, int, int, int], str]:
    """Return the widest gradient of `WIDEST`, with the smallest multiple of its batch that reaches this size."""
    with torch.device("meta"):
        model = build_model(WIDEST, CIFAR, 10)
    shape, name = max(_pruned(WIDEST, model, CIFAR, 1), key=lambda row: math.prod(row[0]))
    batch = CIFAR_BATCH * -(-least_bytes // (2 * math.prod(shape) * CIFAR_BATCH))
    return (batch, *shape[1:]), f"{name} at batch {batch}"
