"""Results of a step and of an epoch of a training, and the state of a training between epochs.

`suite/trials/trial_run.py` writes the records of epochs into `epochs.jsonl`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from suite.engine.cost.memory import SavedTensors, held_bytes, size_of
from suite.engine.training.optimizer_state import SGD, AdamW, tensors_per_parameter
from suite.recipe import Recipe


class Diverged(Exception):
    """The loss is infinite or NaN, or no step of an epoch had finite gradients."""


@dataclass(frozen=True)
class StepRecord:
    """Results of a training step.

    Attributes:
        loss: Loss of the task, over all micro-batches and ranks.
        term: Term of the method.
        share: Images of the batch over the batch size: below 1 in a smaller, last batch.
        updated: Whether the gradients were finite, so that the weights were updated unless the method skipped it.
    """

    loss: float
    term: float
    share: float
    updated: bool

    def check(self, where: str) -> None:
        """Check the losses; `where` names the epoch and the step in the message.

        Raises:
            Diverged: A loss is infinite or NaN.
        """
        for name, value in (("loss", self.loss), ("regularization", self.term)):
            if not math.isfinite(value):
                raise Diverged(f"the {name} is {value} in {where}")


class EpochLosses:
    """Sums over the steps of an epoch.

    Attributes:
        steps: Number of steps.
        skipped: Number of steps without an update, because a gradient was not finite.
    """

    def __init__(self) -> None:
        self.steps = self.skipped = 0
        self._losses = self._terms = self._batches = 0.0

    def add(self, step: StepRecord) -> None:
        """Add a step."""
        self.steps += 1
        self._losses += step.loss * step.share
        self._batches += step.share
        if step.updated:
            self._terms += step.term
        else:
            self.skipped += 1

    def record(self) -> dict[str, float]:
        """Return the mean loss over all images, the mean term over the steps that updated the weights, and counts."""
        return {
            "train_loss": self._losses / self._batches,
            "regularization": self._terms / max(self.steps - self.skipped, 1),
            "steps": self.steps,
            "skipped_steps": self.skipped,
        }


Record = dict[str, Any]


@dataclass
class Progress:
    """State of the trainer between epochs, a part of the checkpoint."""

    first_epoch: int = 0  # epochs that were done when the schedule began; not 0 after a restart
    lr_scale: float = 1.0
    samples: int = 0
    peak_memory_bytes: int = 0
    step_memory_bytes: int = 0  # with the network and batch size that trained last
    memory_is_counted: bool = False  # whether memory was counted for the current network, on the CPU
    best_accuracy: float = 0.0
    finished: bool = False
    last_record: Record = field(default_factory=dict)

    def note_memory(self, step_bytes: int) -> None:
        """Keep the memory of a step, in bytes, and the largest one of all steps."""
        self.step_memory_bytes = step_bytes
        self.peak_memory_bytes = max(self.peak_memory_bytes, step_bytes)

    def note_counted_memory(
        self, saved: SavedTensors, model: nn.Module, optimizer: SGD | AdamW, recipe: Recipe, average_bytes: int
    ) -> None:
        """Count the memory of a step on the CPU, once per architecture.

        Args:
            saved: Tensors that were kept for the backward.
            model, optimizer: The model with its gradients, and its optimizer.
            recipe: The recipe, for the optimizer's state before the first step.
            average_bytes: Bytes of the average of the weights; 0 without an average.
        """
        held = saved.bytes + held_bytes(model, optimizer) + average_bytes
        if not optimizer.state:  # an optimizer creates its momentum in the first step
            held += tensors_per_parameter(recipe) * size_of(model.parameters())
        self.note_memory(held)
        self.memory_is_counted = True
