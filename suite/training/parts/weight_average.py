"""An exponential moving average of a model's weights, which is evaluated and saved in place of the weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from suite.method import EMPTY_PLAN
from suite.training.hooks import Hooks


class WeightAverage:
    """Exponential moving average of the weights and floating-point buffers of a model, by torch's `AveragedModel`.

    The average begins with the weights after the first step. Statistics of batch normalisation are averaged with the
    same decay, as in torchvision's reference training, so that they fit the averaged weights. A reconfiguration cuts
    the average like the model. A masked weight, which is exactly 0 in a planned layer, is also 0 where the average is
    used.

    Args:
        hooks: Hooks of the method on the model; reconfigurations cut the average from now on.
        decay: Share of the average that remains in a step; 0 < decay < 1.

    Attributes:
        bytes: Bytes of the average.
    """

    def __init__(self, hooks: Hooks, decay: float) -> None:
        from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

        self._hooks, self._model = hooks, hooks.model
        # A plan refers to the method, which must not be copied with the layers.
        plans = [(layer, layer.op_plan) for layer in hooks.planned_layers]
        for layer, _ in plans:
            layer.op_plan = EMPTY_PLAN
        self._averaged = AveragedModel(self._model, multi_avg_fn=get_ema_multi_avg_fn(decay), use_buffers=True)
        for layer, plan in plans:
            layer.op_plan = plan
        self._averaged.requires_grad_(False)
        hooks.averages.append(self._averaged.module)

    @property
    def bytes(self) -> int:
        return sum(average.numel() * average.element_size() for _, _, average in self._tensors())

    def update(self) -> None:
        """Add the present weights to the average, after a step of the optimizer."""
        self._averaged.update_parameters(self._model)

    def begin_again(self) -> None:
        """Discard the average, because the training was restarted; the next update begins a new one."""
        self._averaged.n_averaged.zero_()

    @contextmanager
    def evaluated(self) -> Iterator[None]:
        """Let the model have the averaged weights inside; before the first update, it keeps its own."""
        own = [(tensor, tensor.data) for _, tensor, _ in self._tensors()]
        for tensor, value in self._values():
            tensor.data = value
        try:
            yield
        finally:
            for tensor, value in own:
                tensor.data = value

    def replace_weights(self) -> None:
        """Set the model's weights to their average, at the end of the training."""
        with torch.no_grad():
            for tensor, value in self._values():
                tensor.copy_(value)

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed trial needs."""
        return self._averaged.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore `state_dict`, after the reconfigurations were carried out again."""
        self._averaged.load_state_dict(state, strict=True)

    def _tensors(self) -> list[tuple[str, Tensor, Tensor]]:
        """Return the name, the model's tensor and its average of each parameter and floating-point buffer."""
        averages = {**dict(self._averaged.module.named_parameters()), **dict(self._averaged.module.named_buffers())}
        own = {**dict(self._model.named_parameters()), **dict(self._model.named_buffers())}
        return [(name, own[name], average) for name, average in averages.items() if average.is_floating_point()]

    def _values(self) -> list[tuple[Tensor, Tensor]]:
        """Return the model's tensors with the values that they have where the average is used."""
        if not self._averaged.n_averaged:
            return []
        weights = {f"{name}.weight" for name in self._hooks.ctx.layers}
        return [
            (tensor, average.masked_fill(tensor.detach() == 0, 0) if name in weights else average.detach())
            for name, tensor, average in self._tensors()
        ]
