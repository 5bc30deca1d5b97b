"""Initialisation of a model from training images, before its training."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from suite.errors import UsageError
from suite.task import SampledBatches, Splits

IMAGES = 5_000


@runtime_checkable
class InitializedFromImages(Protocol):
    """A model whose initialisation depends on training images."""

    def initialize_from_images(self, images: Tensor) -> None:
        """Set weights; called once before the training, without gradients.

        Args:
            images: (N, C, H, W) normalised training images in the proportions of the classes, on the model's device; N
                is `IMAGES`, or the size of the training split if that is smaller.
        """


def initialize(model: nn.Module, splits: Splits, seed: int) -> None:
    """Let a model set weights by training images, if it asks for them. All ranks draw the same images.

    Args:
        model: The new model.
        splits: The data.
        seed: Seed of the trial.

    Raises:
        UsageError: The task does not offer the images.
    """
    if not isinstance(model, InitializedFromImages):
        return
    if not isinstance(splits.train, SampledBatches):
        raise UsageError(
            f"{type(model).__name__} is initialised from training images, which the batches of this task do not offer: "
            "they have no method `sample`"
        )
    with torch.no_grad():
        model.initialize_from_images(splits.train.sample(IMAGES, seed))
