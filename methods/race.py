"""Which of several backends is the fastest for one layer, measured."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from suite.backends import TORCH, Backend, Geometry

ROUNDS = 3
"""How often every backend is timed, in turn with the others."""


def fastest(
    backends: Mapping[str, Backend],
    kept: Tensor,
    layer: nn.Conv2d,
    geometry: Geometry,
    images: int,
    size: tuple[int, int],
    dtype: torch.dtype,
) -> str:
    """The name of the backend with the least median time for the three products of a layer, made-up operands.

    Draws from no generator of torch's own, so that what follows draws as if nothing had been measured.

    Args:
        backends: by name; of equals the first wins.
        kept: (K, C, R, S) bool, the weights that are there.
        layer: gives shape, memory format and device.
        geometry: of the layer.
        images: of a step.
        size: (H, W) of its input.
        dtype: of the products.
    """
    weight = layer.weight.detach().to(dtype) * kept.to(layer.weight.device)
    generator = torch.Generator().manual_seed(0)
    shape = (images, layer.in_channels, *size)
    activation = torch.randn(shape, generator=generator).to(weight).contiguous(memory_format=torch.channels_last)
    grad = TORCH.forward(activation, weight, None, geometry)  # of the right shape, and of no less usual numbers

    def step(backend: Backend) -> Callable[[], None]:
        def run() -> None:
            backend.forward(activation, weight, None, geometry)
            backend.dgrad(grad, weight, activation, geometry)
            backend.wgrad(grad, activation, weight, geometry, False)

        return run

    steps = {name: step(backend) for name, backend in backends.items()}
    for one in steps.values():
        one()  # indices are made, libraries are cold
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(ROUNDS):
        for name, one in steps.items():
            times[name].append(_seconds(one, weight.device))
    return min(times, key=lambda name: statistics.median(times[name]))


def _seconds(step: Callable[[], None], device: torch.device) -> float:
    _wait(device)
    start = time.perf_counter()
    step()
    _wait(device)
    return time.perf_counter() - start


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
