"""What is timed in a process of its own: products of layers, inference of final networks, and pruned convolutions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kernels.sparse_conv.cpu import CpuSparseConvolution
from reports.papers.timed import CONVERSIONS
from suite.choices import MethodChoice, build_model
from suite.engine.cost.clock import StepClock, stamps_of
from suite.engine.cost.flops import count_layers
from suite.engine.cost.interleaved import interleaved_times
from suite.engine.network.model_files import load_model
from suite.engine.training.method_runner import MethodRunner
from suite.method import Context

PASSES = 20  # of inference, whose median counts
ROUNDS, WARM_UPS = 6, 2
_PRUNED = 0.9  # largest density of a pruned layer; dense layers have hardly any zeros


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


def images_per_second(
    files: list[str], dtype: str, shape: tuple[int, int, int], batch: int, device: str
) -> list[float]:
    """Measure the inference images per second of networks, as medians of alternating passes.

    Args:
        files: Paths of their `model.pt`.
        dtype: Dtype of autocast; `float32` turns it off.
        shape: Shape of an image, (C, H, W).
        batch: Number of images per pass.
        device: `cpu`, `cuda` or `cuda:N`.
    """

    torch_device = torch.device(device)
    images = torch.randn(batch, *shape, generator=torch.Generator().manual_seed(0)).to(torch_device)
    images = images.contiguous(memory_format=torch.channels_last)
    models: list[Any] = [load_model(file).to(torch_device).to(memory_format=torch.channels_last) for file in files]  # type: ignore[call-overload]

    def infer(model: nn.Module) -> None:
        with torch.no_grad(), torch.autocast(torch_device.type, getattr(torch, dtype), enabled=dtype != "float32"):
            model(images)

    calls = [lambda model=model: infer(model) for model in models]  # type: ignore[misc]
    times = interleaved_times(calls, PASSES, stamps_of(torch_device), warm_ups=2)
    return [batch / float(seconds) for seconds in np.median(times, axis=0)]


@dataclass(frozen=True)
class Layer:
    """A pruned convolution.

    Attributes:
        name: Name in the network.
        weight: Weight with its zeros, (K, C, R, S), float32.
        stride, padding, dilation: (rows, columns).
        size: Size of the input, (H, W).
    """

    name: str
    weight: Tensor
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    size: tuple[int, int]

    @property
    def density(self) -> float:
        """Share of the weights that are not 0."""
        return float(self.weight.count_nonzero()) / self.weight.numel()


def pruned_layers(file: str, shape: tuple[int, int, int]) -> list[Layer]:
    """Return the convolutions of a final network with many zero weights.

    Args:
        file: Path of its `model.pt`.
        shape: Shape of an image, (C, H, W).
    """

    model = load_model(file)
    costs = count_layers(model, shape)
    layers = []
    for name, layer in model.named_modules():
        if isinstance(layer, nn.Conv2d) and layer.groups == 1 and not isinstance(layer.padding, str):
            stride, padding, dilation = ((int(a), int(b)) for a, b in (layer.stride, layer.padding, layer.dilation))
            one = Layer(name, layer.weight.detach().float(), stride, padding, dilation, costs[name].input)
            if one.density <= _PRUNED:
                layers.append(one)
    return layers


def conversion_times(file: str, shape: tuple[int, int, int], repetitions: int, device: str) -> dict[str, Any]:
    """Return for each pruned layer its `shape` and `density`, and the `seconds` of each of `CONVERSIONS`.

    The seconds are a minimum, a median and a third quartile. The conversions alternate.

    Args:
        file, shape: See `pruned_layers`.
        repetitions: Number of measurements per conversion.
        device: `cpu`.
    """
    times = {}
    for layer in pruned_layers(file, shape):
        calls = conversions(layer)
        measured = interleaved_times([*calls.values()], repetitions, stamps_of(torch.device(device)), warm_ups=2)
        points = np.quantile(measured, (0.0, 0.5, 0.75), axis=0).T.tolist()
        seconds = dict(zip(calls, points, strict=True))
        times[layer.name] = {"shape": [*layer.weight.shape], "density": layer.density, "seconds": seconds}
    return times


def conversions(layer: Layer) -> dict[str, Callable[[], Any]]:
    """Return a function for each of `CONVERSIONS` of a layer's weight. No time includes the dense matrix for CSR."""

    weight = layer.weight.contiguous(memory_format=torch.channels_last)
    matrix, kept = layer.weight.contiguous().flatten(1), layer.weight != 0
    taps = CpuSparseConvolution(kept, layer.stride, layer.padding, layer.dilation)

    def rebuilt() -> Tensor:
        convolution = CpuSparseConvolution(kept, layer.stride, layer.padding, layer.dilation)
        convolution.prepare(layer.size)
        return convolution.values(weight)

    return dict(zip(CONVERSIONS, (matrix.to_sparse_csr, lambda: taps.values(weight), rebuilt), strict=True))
