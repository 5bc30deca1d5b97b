"""Accuracy and loss of a model on a split."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from suite.engine.training.data_parallel import DataParallel
from suite.engine.training.records import Diverged
from suite.recipe import Evaluations
from suite.task import Batches, Splits


class Evaluation:
    """Evaluates a model as its recipe says.

    Args:
        parallel: Divides the batches of a split among the ranks.
        model: The model.
        settings: The batch size of evaluation and the views of an image to average.
        device: Device of model and data.
        dtype: Autocast type of the trial; `torch.float32` for no autocast.
    """

    def __init__(
        self, parallel: DataParallel, model: nn.Module, settings: Evaluations, device: torch.device, dtype: torch.dtype
    ) -> None:
        self.parallel = parallel
        self.model, self.settings, self.device, self.dtype = model, settings, device, dtype

    def record(self, splits: Splits, is_last: bool = False) -> dict[str, float]:
        """Return accuracy (a fraction) and loss of the test split and of the validation split, if they exist.

        Args:
            splits: The splits.
            is_last: Whether this is the last evaluation, which averages six views if the recipe says so.
        """
        results: dict[str, float] = {}
        logits = self.logits_of(is_last)
        if splits.test is not None:
            results["test_accuracy"], results["test_loss"] = self.accuracy_and_loss(splits.test, logits)
            if is_last and self.settings.six_views:
                results["test_accuracy_one_view"], _ = self.accuracy_and_loss(splits.test, self.predict)
        if splits.validation is not None:
            results["val_accuracy"], results["val_loss"] = self.accuracy_and_loss(splits.validation, logits)
        return results

    def logits_of(self, is_last: bool = False) -> Callable[[Tensor], Tensor]:
        """Return the function that returns logits (n, classes) of images (n, C, H, W), over the recipe's views."""
        if is_last and self.settings.six_views:
            return self._of_six_views
        return self._of_two_views if self.settings.flip_tta else self.predict

    @staticmethod
    def check(record: Mapping[str, Any], epoch: int) -> None:
        """Check the losses of an evaluation.

        Raises:
            Diverged: A loss is infinite or NaN.
        """
        for name in ("test_loss", "val_loss"):
            if not math.isfinite(record.get(name, 0.0)):
                raise Diverged(f"the {name} is {record[name]} after epoch {epoch}")

    def accuracy_and_loss(
        self, batches: Batches, logits_of: Callable[[Tensor], Tensor] | None = None
    ) -> tuple[float, float]:
        """Return accuracy (a fraction) and mean cross entropy (without label smoothing) over a split.

        Args:
            batches: The split.
            logits_of: Returns logits (n, classes) of images (n, C, H, W); `None`: `predict`.
        """
        self.model.eval()
        correct = torch.zeros((), dtype=torch.int64, device=self.device)
        loss = torch.zeros((), dtype=torch.float64, device=self.device)
        for images, labels, _ in self.parallel.epoch(batches, 0, self.settings.eval_batch_size):
            if not len(images):  # the last batch may have fewer images than there are ranks
                continue
            right, sum_of_losses = self.sums(images, labels, logits_of or self.predict)
            correct += right
            loss += sum_of_losses
        correct, loss = (self.parallel.ranks.all_reduce(value, "bookkeeping") for value in (correct, loss))
        return correct.item() / batches.num_samples, loss.item() / batches.num_samples

    @staticmethod
    @torch.no_grad()
    def sums(images: Tensor, labels: Tensor, logits_of: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        """Return the number of right answers to a batch and the sum of its cross entropies, both 0-dimensional."""
        logits = logits_of(images)
        return (logits.argmax(1) == labels).sum(), F.cross_entropy(logits, labels, reduction="sum")

    def predict(self, images: Tensor) -> Tensor:
        """Return logits (n, classes) in float32, computed with the trial's autocast type."""
        with torch.autocast(self.device.type, self.dtype, enabled=self.dtype != torch.float32):
            logits: Tensor = self.model(images)
        return logits.float()

    def _of_two_views(self, images: Tensor) -> Tensor:
        return (self.predict(images) + self.predict(images.flip(3))) / 2

    def _of_six_views(self, images: Tensor) -> Tensor:
        height, width = images.shape[2:]
        padded = F.pad(images, (1, 1, 1, 1), mode="reflect")
        logits = self._of_two_views(images) / 2
        for corner in (2, 0):
            logits += self._of_two_views(padded[:, :, corner : corner + height, corner : corner + width]) / 4
        return logits
