"""Training steps of one trainer whose parts are timed, and the same steps without clocks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor

from suite.cost.memory import SavedTensors
from suite.cost.parts.step_clock import CLOCKS, BackwardClock, Key, NormalizationClock, StepClock
from suite.cost.stamps import Stamps
from suite.passes.stage_steps import Steps
from suite.training.steps import EagerStep, Outcome
from suite.training.trainer import Trainer


class ClockedStep(EagerStep):
    """An eager step whose forward and backward are the part `network`, interrupted by the parts inside them.

    Args:
        trainer: Trainer whose step it is.
        clock: The clock.
    """

    def __init__(self, trainer: Trainer, clock: StepClock) -> None:
        super().__init__(trainer.hooks, trainer.recipe, trainer.dtype, trainer.scaler)
        self._clock, self.backward = clock, BackwardClock(clock)
        self._normalization = NormalizationClock(clock)

    def gradients(self, images: Tensor, labels: Tensor, saved: SavedTensors | None = None) -> Outcome:
        self.backward.forget()
        with self._clock.span("network"):
            return super().gradients(images, labels, saved)

    def task_loss(self, images: Tensor, labels: Tensor) -> Tensor:
        with self._normalization:
            loss = super().task_loss(images, labels)
        with self._clock.span(CLOCKS):
            self.backward.time_normalization(loss)
        return loss


class ProfiledSteps:
    """Steps of one trainer, with clocks or without. All run eagerly, whatever the recipe's execution is.

    Args:
        steps: The steps.
        stamps: Source of the clock's points in time; that of the device if `None`.

    Attributes:
        parts: Seconds of each part of the last step with clocks.
        flops: FLOPs of the last step: by layer, product and column of the ledger.
    """

    def __init__(self, steps: Steps, stamps: Stamps | None = None) -> None:
        self.steps, self.trainer = steps, steps.trainer
        self._clock = StepClock(self.trainer.device, stamps)
        self._clocked = ClockedStep(self.trainer, self._clock)
        trainer = self.trainer
        trainer.step = EagerStep(trainer.hooks, trainer.recipe, trainer.dtype, trainer.scaler)
        self.parts: dict[Key, float] = {}
        self.flops: dict[str, dict[str, dict[str, float]]] = {}

    def plain(self) -> float:
        """Run a step without clocks, and return its seconds."""
        return self.steps.timed()

    def clocked(self) -> float:
        """Run a step with clocks, and return its seconds, those of the clocks included."""
        flops = deepcopy(self.trainer.ledger.state_dict()["interval"])
        with self._clocks():
            seconds = self.steps.timed()
        self.flops = _difference(self.trainer.ledger.state_dict()["interval"], flops)
        return seconds

    @contextmanager
    def _clocks(self) -> Iterator[None]:
        """Time the parts of the step that runs inside."""
        trainer, clock = self.trainer, self._clock
        hooks, optimizer = trainer.hooks, trainer.optimizer
        train_epoch, optimizer_step = trainer.train_epoch, hooks.optimizer_step
        regularization, update = hooks.regularization, optimizer.step

        def timed(part: str, function: Callable[..., Any]) -> Callable[..., Any]:
            def call(*arguments: Any, **options: Any) -> Any:
                with clock.span(part):
                    return function(*arguments, **options)

            return call

        def whole_step() -> Any:
            clock.begin()
            record = train_epoch()
            self.parts = clock.end()
            return record

        def term_of(task_loss: Tensor) -> Tensor | None:
            with clock.span("pruning"):
                term = regularization(task_loss)
            if term is not None:
                with clock.span(CLOCKS):
                    self._clocked.backward.time_pruning(term)
            return term

        def without_modes(forward: Callable[..., Tensor]) -> Callable[..., Tensor]:
            def call(given: Tensor) -> Tensor:
                with torch._C.DisableTorchFunction():  # a planned layer has no function that normalises
                    return forward(given)

            return call

        states = {id(layer.step_state): layer.step_state for layer in hooks.planned_layers}.values()
        changes: list[tuple[Any, dict[str, Any]]] = [
            (self.steps, {"next_batch": timed("input", self.steps.next_batch)}),
            (trainer, {"train_epoch": whole_step, "step": self._clocked}),
            (hooks, {"transform_batch": timed("pruning", hooks.transform_batch), "regularization": term_of}),
            (hooks, {"optimizer_step": timed("pruning", lambda: optimizer_step(timed("optimizer", update)))}),
            (optimizer, {"zero_grad": timed("optimizer", optimizer.zero_grad)}),
            *((state, {"clock": clock}) for state in states),
            *((one, {"update": timed("optimizer", one.update)}) for one in (trainer.average,) if one is not None),
            *((layer, {"forward": without_modes(layer.forward)}) for layer in hooks.planned_layers),
        ]
        with ExitStack() as stack:
            for thing, attributes in changes:
                stack.enter_context(_replaced(thing, attributes))
            yield


@contextmanager
def _replaced(thing: Any, attributes: dict[str, Any]) -> Iterator[None]:
    """Give an object other attributes inside, and its own ones afterwards."""
    own = vars(thing)
    before = {name: own[name] for name in attributes if name in own}
    own.update(attributes)
    try:
        yield
    finally:
        for name in attributes:
            del own[name]
        own.update(before)


def _difference(after: Any, before: Any) -> Any:
    """Return the difference of numbers in equal nested dictionaries."""
    if isinstance(after, dict):
        return {name: _difference(value, before[name]) for name, value in after.items()}
    return after - before
