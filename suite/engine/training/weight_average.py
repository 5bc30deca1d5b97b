"""Averages of a model's weights: one that is evaluated and saved in their place, and one that replaces the weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from suite.engine.cost.memory import size_of
from suite.engine.network.planned_layer import without_plans
from suite.engine.training.method_runner import MethodRunner
from suite.errors import UsageError
from suite.recipe import Recipe

_ROUNDING = 1e-9


class WeightAverage:
    """Exponential moving average of the weights and floating-point buffers of a model, by torch's `AveragedModel`.

    The average begins with the weights after the first step. Statistics of batch normalisation are averaged with the
    same decay, as in torchvision's reference training, so that they fit the averaged weights. A reconfiguration cuts
    the average like the model. A weight of a planned layer that is exactly 0 is also 0 wherever the average is used.

    Args:
        runner: The method on the model. From now on, its reconfigurations also cut the average.
        decay: Share of the average that remains in a step; 0 < decay < 1.

    Attributes:
        bytes: Bytes of the average.
    """

    def __init__(self, runner: MethodRunner, decay: float) -> None:
        self._runner, self._model = runner, runner.model
        with without_plans(runner.planned_layers):
            self._averaged = AveragedModel(self._model, multi_avg_fn=get_ema_multi_avg_fn(decay), use_buffers=True)
        self._averaged.requires_grad_(False)
        runner.averages.append(self._averaged.module)

    @property
    def bytes(self) -> int:
        return size_of(average for _, _, average in self._tensors())

    def update(self, share: float) -> None:
        """Add the present weights to the average, after a step of the optimizer.

        Args:
            share: Share of the training that is done, that step included.
        """
        self._averaged.update_parameters(self._model)

    def begin_epoch(self) -> None:
        """Begin an epoch, before its first step."""

    def end_epoch(self) -> None:
        """End an epoch, after its last step and before the hooks of the method at its end."""

    def finish(self) -> None:
        """End the training: set the model's weights to their average."""
        self._replace_weights()

    def begin_again(self) -> None:
        """Discard the average, because the training was restarted. The next update begins a new one."""
        self._averaged.n_averaged.zero_()

    @contextmanager
    def evaluated(self) -> Iterator[None]:
        """Give the model the averaged weights inside the context. Before the first update, the model keeps its own."""
        kept = [(tensor, tensor.data) for _, tensor, _ in self._tensors()]
        for tensor, value in self._values():
            tensor.data = value
        try:
            yield
        finally:
            for tensor, value in kept:
                tensor.data = value

    def _replace_weights(self) -> None:
        """Set the model's weights to their average."""
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
        of_model = {**dict(self._model.named_parameters()), **dict(self._model.named_buffers())}
        return [(name, of_model[name], average) for name, average in averages.items() if average.is_floating_point()]

    def _values(self) -> list[tuple[Tensor, Tensor]]:
        """Return the model's tensors with the values that they have where the average is used."""
        if not self._averaged.n_averaged:
            return []
        weights = {f"{name}.weight" for name in self._runner.ctx.layers}
        return [
            (tensor, average.masked_fill(tensor.detach() == 0, 0) if name in weights else average.detach())
            for name, tensor, average in self._tensors()
        ]


class Lookahead(WeightAverage):
    """An average that replaces the weights every few steps and at the end of each epoch. The momentum stays.

    What hooks change at the end of an epoch also becomes part of the average.

    Source: K. Jordan, "94 % on CIFAR-10 in 3.29 seconds on a single GPU", arXiv 2404.00498.

    Args:
        runner: As for `WeightAverage`.
        recipe: Recipe with the fields `lookahead_...`.
        steps_per_epoch: Steps of an epoch.

    Raises:
        UsageError: An epoch has no update of the average, so that its end would undo all of its steps.
    """

    def __init__(self, runner: MethodRunner, recipe: Recipe, steps_per_epoch: int) -> None:
        super().__init__(runner, recipe.averaging.lookahead_decay)
        self._averaging, self._length = recipe.averaging, recipe.length(steps_per_epoch)
        self._steps = 0  # steps that the method and the loss scale have not skipped
        steps = [recipe.steps_in(epoch, steps_per_epoch) for epoch in range(recipe.whole_epochs)]
        updates = [end // self._averaging.lookahead_steps for end in accumulate(steps, initial=0)]
        for count, (before, after) in zip(steps, pairwise(updates), strict=True):
            if before == after:
                raise UsageError(
                    f"recipe.lookahead_steps is {self._averaging.lookahead_steps}; an epoch has {count} steps, "
                    "all of which its end would undo"
                )

    def update(self, share: float) -> None:
        """Begin the average, update it and replace the weights by it, or do nothing, depending on the step."""
        averaging = self._averaging
        self._steps += 1
        if not self._averaged.n_averaged:
            if share * self._length > averaging.lookahead_after + _ROUNDING:
                super().update(share)
        elif self._steps % averaging.lookahead_steps == 0:
            decay = averaging.lookahead_decay**averaging.lookahead_steps * share**3
            self._averaged.multi_avg_fn = get_ema_multi_avg_fn(decay)
            super().update(share)
            self._replace_weights()
            self._follow()

    def begin_epoch(self) -> None:
        self._follow()

    def end_epoch(self) -> None:
        """Replace the weights by the average, which undoes the steps since its last update."""
        self._replace_weights()

    @contextmanager
    def evaluated(self) -> Iterator[None]:
        """Leave the model as it is: it got the average at the end of the epoch."""
        yield

    def finish(self) -> None:
        """Leave the model as it is: it got the average at the end of the epoch."""

    def state_dict(self) -> dict[str, Any]:
        return {"average": super().state_dict(), "steps": self._steps}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state["average"])
        self._steps = state["steps"]

    @torch.no_grad()
    def _follow(self) -> None:
        """Set the average to the weights, which a method may have changed. A regrown weight then begins at zero."""
        if self._averaged.n_averaged:
            for _, tensor, average in self._tensors():
                average.copy_(tensor)
