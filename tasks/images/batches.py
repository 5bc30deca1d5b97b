"""The division of a split into batches, which all kinds of splits share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

from torch import Tensor

from suite.errors import UsageError


class EpochBatches(ABC):
    """Base class of splits; implements `suite.task.Batches`.

    Attributes:
        num_samples: Number of images in the split.
    """

    def __init__(self, num_samples: int, training: bool, drop_last: bool) -> None:
        """Set how epochs are divided.

        Args:
            num_samples: Number of images in the split.
            training: Whether epochs are shuffled and augmented.
            drop_last: Whether a training split drops a last batch that is smaller than the others.
        """
        self.num_samples = num_samples
        self._training, self._drop_last = training, drop_last and training

    def steps_per_epoch(self, batch_size: int) -> int:
        """Return the number of batches per epoch.

        Raises:
            UsageError: If a training split that drops its last, smaller batch has fewer images than one batch.
        """
        if not self._drop_last:
            return -(-self.num_samples // batch_size)
        if self.num_samples < batch_size:
            raise UsageError(
                f"a batch of {batch_size} is larger than the training split of {self.num_samples} images; "
                "use a smaller --batch-size"
            )
        return self.num_samples // batch_size

    def epoch(self, epoch: int, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Iterate over the batches of one epoch.

        A training split is shuffled and augmented; other splits keep their order. The last batch may be smaller than
        the others, unless it is dropped.

        Yields:
            Images (n, C, H, W) float32, normalised, channels-last, and labels (n,) int64.

        Raises:
            UsageError: As `steps_per_epoch`.
        """
        steps = self.steps_per_epoch(batch_size)
        return self._training_epoch(epoch, batch_size, steps) if self._training else self._ordered(batch_size)

    @abstractmethod
    def _training_epoch(self, epoch: int, batch_size: int, steps: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Iterate over the shuffled and augmented batches of one epoch."""

    @abstractmethod
    def _ordered(self, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Iterate over all images in their order."""
