"""Time the products of a network's layers in real steps on random images, in a separate process."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from suite.choices import MethodChoice, build_model
from suite.engine.cost.clock import StepClock
from suite.engine.training.method_runner import MethodRunner
from suite.method import Context

ROUNDS, WARM_UPS = 6, 2


def product_seconds(
    model: str, shape: tuple[int, int, int], classes: int, batch: int, dtype: str, method: str, device: str
) -> dict[str, dict[str, float]]:
    """Measure the time of the products of a new network's layers, and of pruning their output gradients.

    Forward and backward run with clocks around the products (`suite.engine.cost.clock`). The times are means over the
    faster half of the passes.

    Args:
        model: Model as in `--model`.
        shape: Shape of an image, (C, H, W).
        classes: Number of classes.
        batch: Number of images.
        dtype: Type of autocast; `float32` turns autocast off.
        method: Method that plans the layers, as in `--methods`.
        device: `cpu`, `cuda` or `cuda:N`.

    Returns:
        Seconds by layer and part: `forward`, `dgrad`, `wgrad` and `pruning`.
    """

    torch_device = torch.device(device)
    torch.manual_seed(0)
    network: nn.Module = build_model(model, shape, classes).to(torch_device).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    context = Context(network, input_shape=shape, num_classes=classes, epochs=1, batch_size=batch)
    hooks = MethodRunner(MethodChoice.read(method).build(), context)
    images = torch.randn(batch, *shape, device=torch_device).contiguous(memory_format=torch.channels_last)
    labels = torch.arange(batch, device=torch_device) % classes
    clock = StepClock(torch_device)
    hooks.planned_layers[0].step_state.clock = clock  # all layers share it
    passes: list[dict[Any, float]] = []
    for _ in range(WARM_UPS + ROUNDS):
        clock.begin()
        with torch.autocast(torch_device.type, getattr(torch, dtype), enabled=dtype != "float32"):
            logits = network(images)
        F.cross_entropy(logits.float(), labels).backward()
        passes.append(clock.end())
        network.zero_grad(set_to_none=True)
    fastest = sorted(passes[WARM_UPS:], key=lambda one: sum(one.values()))[: ROUNDS // 2]
    by_layer: dict[str, dict[str, float]] = {}
    for part, layer in dict.fromkeys(key for one in fastest for key in one if key[1]):
        seconds = sum(one.get((part, layer), 0.0) for one in fastest) / len(fastest)
        by_layer.setdefault(layer, {})[part] = seconds
    return by_layer
