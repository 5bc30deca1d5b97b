"""Final networks of trials: load them, cut them once more, and time them in a separate process."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from reports.papers.prunetrain.quantities import REPETITIONS
from suite import registry
from suite.engine.cost.clock import stamps_of
from suite.engine.cost.interleaved import interleaved_times
from suite.engine.network.model_files import load_model
from suite.engine.training.method_runner import MethodRunner
from suite.method import Context


def cut_again(file: str, threshold: float, gating: bool, shape: tuple[int, int, int], classes: int) -> nn.Module:
    """Load a final network and let PruneTrain remove its dead channels once more, with channel union or gating.

    Args:
        file: Path of its `model.pt`.
        threshold: A channel of a layer is dead if all its |w| are below this value.
        gating: Whether to use channel gating; otherwise channel union.
        shape: Shape of an image, (C, H, W).
        classes: Number of classes of the task.
    """
    model = load_model(file)
    method = registry.get("method", "prunetrain")(interval=1, threshold=threshold, gating=gating)
    hooks = MethodRunner(method, Context(model, input_shape=shape, num_classes=classes, epochs=1, batch_size=1))
    hooks.end_epoch()
    hooks.finish()
    return model.eval()


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
    images = _images(shape, batch, torch_device)
    models = [_on(torch_device, load_model(file)) for file in files]
    calls = [lambda model=model: _infer(model, images, dtype) for model in models]  # type: ignore[misc]
    return [batch / seconds for seconds in _median_seconds(calls, torch_device)]


def _median_seconds(calls: Sequence[Callable[[], object]], device: torch.device) -> list[float]:
    """Return the median seconds of several calls that run in turn."""

    times = interleaved_times(calls, REPETITIONS, stamps_of(device), warm_ups=2)
    return [float(value) for value in np.median(times, axis=0)]


def _images(shape: tuple[int, int, int], batch: int, device: torch.device) -> Tensor:

    images = torch.randn(batch, *shape, generator=torch.Generator().manual_seed(0))
    return images.to(device).contiguous(memory_format=torch.channels_last)


def _on(device: torch.device, model: nn.Module) -> nn.Module:

    moved: nn.Module = model.to(device).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return moved


def _autocast(images: Tensor, dtype: str) -> torch.autocast:

    return torch.autocast(images.device.type, getattr(torch, dtype), enabled=dtype != "float32")


def _infer(model: nn.Module, images: Tensor, dtype: str) -> None:

    with torch.no_grad(), _autocast(images, dtype):
        model(images)
