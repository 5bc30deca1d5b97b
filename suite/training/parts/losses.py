"""The losses of a step and of an epoch, and the end of a training that has diverged."""

from __future__ import annotations

import math
from dataclasses import dataclass


class Diverged(Exception):
    """The loss is infinite or NaN, or no step of an epoch had finite gradients."""


@dataclass(frozen=True)
class StepRecord:
    """What a training step found.

    Attributes:
        loss: Loss of the task, over all micro-batches and ranks.
        term: Term of the method.
        share: Images of the batch, in batches: below 1 in a last, smaller one.
        updated: Whether the gradients were finite, so that the weights were updated unless the method skipped it.
    """

    loss: float
    term: float
    share: float
    updated: bool

    def check(self, where: str) -> None:
        """Check the losses; `where` is the epoch and the step, for the message.

        Raises:
            Diverged: One of them is infinite or NaN.
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
