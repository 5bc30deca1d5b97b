"""The losses of an epoch, and the end of a training that has diverged."""

from __future__ import annotations

import math


class Diverged(Exception):
    """The loss is infinite or NaN, or no step of an epoch had finite gradients."""


class EpochLosses:
    """Sums over the steps of an epoch.

    Attributes:
        skipped: Number of steps without an update, because a gradient was not finite.
    """

    def __init__(self) -> None:
        self.skipped = 0
        self._losses = self._terms = self._batches = 0.0

    def add(self, where: str, task_loss: float, term: float, batches: float, updates: bool) -> None:
        """Add a step.

        Args:
            where: Epoch and step, for the message.
            task_loss: Loss of the task.
            term: Term of the method.
            batches: Images of the step, in batches: below 1 for a last, smaller one.
            updates: Whether the gradients are finite, so that the weights are updated.

        Raises:
            Diverged: A value is infinite or NaN.
        """
        for name, value in (("loss", task_loss), ("regularization", term)):
            if not math.isfinite(value):
                raise Diverged(f"the {name} is {value} in {where}")
        self._losses += task_loss * batches
        self._batches += batches
        if updates:
            self._terms += term
        else:
            self.skipped += 1

    def record(self, steps: int) -> dict[str, float]:
        """Return the mean loss over all images, and the mean term over the steps that updated the weights."""
        updated = max(steps - self.skipped, 1)
        return {"train_loss": self._losses / self._batches, "regularization": self._terms / updated}
