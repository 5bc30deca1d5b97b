"""Which of several backends is the fastest for one layer: the measurement behind `backend=auto`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from methods.backends.autotune import Choice, Step, choose
from methods.backends.sparse_convolution import kernels_version
from suite.method import Backend, Geometry
from suite.ops import TORCH


def fastest(
    backends: Sequence[str],
    prepare: Callable[[], tuple[Tensor, Mapping[str, Backend]]],
    layer: nn.Conv2d,
    geometry: Geometry,
    images: int,
    size: tuple[int, int],
    dtype: torch.dtype,
    structure: Mapping[str, Any],
    hardware_id: str,
) -> Choice:
    """Choose the backend with the least time for the three products of a layer, from random operands.

    The question is about the layer's shape and the structure of its mask, not about the mask itself, which differs
    between seeds. Draws from no generator of torch's own.

    Args:
        backends: names; the first is the baseline.
        prepare: gives an example of the mask, (K, C, R, S) bool, and the backends by name, made for it; called only if
            nothing is known yet.
        layer: gives shape, memory format and device.
        geometry: of the layer.
        images: of a micro-batch.
        size: (H, W) of its input.
        dtype: of the products.
        structure: plain data that determines how fast a mask of this kind is, such as the density.
        hardware_id: short name of the machine's hardware.
    """
    device = layer.weight.device
    question = {
        "what": "the three products of a convolution with masked weights",
        "weight": [*layer.weight.shape],
        "channels_last": layer.weight.is_contiguous(memory_format=torch.channels_last),
        "geometry": dataclasses.asdict(geometry),
        "images": images,
        "size": [*size],
        "dtype": str(dtype),
        "mask": dict(structure),
        "kernels": kernels_version(device),
    }
    return choose(
        question, backends, lambda: _steps(*prepare(), layer, geometry, images, size, dtype), device, hardware_id
    )


def _steps(
    kept: Tensor,
    backends: Mapping[str, Backend],
    layer: nn.Conv2d,
    geometry: Geometry,
    images: int,
    size: tuple[int, int],
    dtype: torch.dtype,
) -> dict[str, Step]:
    """By backend, what computes all three products once."""
    weight = layer.weight.detach().to(dtype) * kept.to(layer.weight.device)
    generator = torch.Generator().manual_seed(0)
    shape = (images, layer.in_channels, *size)
    activation = torch.randn(shape, generator=generator).to(weight).contiguous(memory_format=torch.channels_last)
    grad = TORCH.forward(activation, weight, None, geometry)  # has the right shape, and numbers as good as any

    def step(backend: Backend) -> Step:
        def run() -> None:
            backend.forward(activation, weight, None, geometry)
            backend.dgrad(grad, weight, activation, geometry)
            backend.wgrad(grad, activation, weight, geometry, False)

        return run

    return {name: step(backend) for name, backend in backends.items()}
