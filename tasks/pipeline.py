"""Batches of images that lie on the training device: shuffled, augmented and normalised there, a batch at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from suite.errors import UsageError
from suite.recipe import Recipe
from suite.task import Splits
from tasks.images.augmentation import Augmentation, draw_epoch, source_pixels
from tasks.images.decoded import DecodedImages
from tasks.images.splits import choose_splits


@dataclass(frozen=True)
class Normalization:
    """Mean and standard deviation of each channel, in the units of a stored image: 0 .. 255."""

    mean: tuple[float, ...]
    std: tuple[float, ...]


class DeviceBatches:
    """One split on one device; implements `suite.task.Batches`.

    Images are stored as a matrix of pixels, (N * H * W + 2, C) uint8: channels-last without a second copy. The last two
    rows are the mean colour, rounded to whole numbers, and black, which fill what cutout and translation leave empty.

    Attributes:
        num_samples: images in the split.
        labels: (N,) int64, on the device.
    """

    def __init__(
        self,
        images: NDArray[np.uint8] | Tensor,
        labels: NDArray[np.int64] | Tensor,
        *,
        normalization: Normalization,
        device: torch.device,
        training: bool,
        seed: int = 0,
        augmentation: Augmentation | None = None,
        drop_last: bool = True,
    ) -> None:
        """Copy the images to the device.

        Args:
            images: (N, H, W, C) uint8.
            labels: (N,) int64.
            normalization: applied after the augmentation.
            device: where images are kept, augmented and normalised.
            training: whether epochs are shuffled and augmented.
            seed: the trial's seed; with the epoch's number it decides shuffling and augmentation.
            augmentation: of a training split; `None`: none.
            drop_last: whether a training split leaves out a last batch that is smaller than the others.

        Raises:
            UsageError: if the cutout is larger than the image, or the translation moves it out.
            ValueError: if shapes or types are not as above.
        """
        images, labels = torch.as_tensor(images), torch.as_tensor(labels)
        if images.ndim != 4 or images.dtype != torch.uint8:
            raise ValueError(f"images are {tuple(images.shape)} {images.dtype}, not (N, H, W, C) uint8")
        if labels.shape != images.shape[:1] or labels.dtype != torch.int64:
            raise ValueError(f"labels are {tuple(labels.shape)} {labels.dtype}, not ({len(images)},) int64")
        self.num_samples, self._height, self._width, channels = images.shape
        self._training, self._seed, self._device = training, seed, device
        self._drop_last = drop_last and training
        self._augmentation = augmentation if augmentation is not None and training else Augmentation()
        if self._augmentation.cutout > min(self._height, self._width):
            size = f"{self._height}x{self._width}"
            raise UsageError(f"recipe.cutout is {self._augmentation.cutout}; images are only {size}")
        if self._augmentation.translate >= min(self._height, self._width):
            size = f"{self._height}x{self._width}"
            raise UsageError(f"recipe.translate is {self._augmentation.translate}; images are only {size}")

        self.labels = labels.to(device)
        fill = torch.tensor([round(value) for value in normalization.mean], dtype=torch.uint8)
        self._pixels = torch.empty(images[..., 0].numel() + 2, channels, dtype=torch.uint8, device=device)
        self._pixels[:-2] = images.reshape(-1, channels).to(device)
        self._pixels[-2] = fill.to(device)
        self._pixels[-1] = 0

        # (x - mean) / std = x * scale + offset, written out for a whole image: an innermost dimension of only three
        # channels would keep the loop over a batch from being vectorised.
        mean = torch.tensor(normalization.mean, dtype=torch.float64)
        scale = 1 / torch.tensor(normalization.std, dtype=torch.float64)
        repeats = self._height * self._width
        self._scale = scale.float().repeat(repeats).to(device)
        self._offset = (-mean * scale).float().repeat(repeats).to(device)

    def steps_per_epoch(self, batch_size: int) -> int:
        """How many batches an epoch has.

        Raises:
            UsageError: if a training split that drops its last, smaller batch is smaller than one batch.
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
        """The batches of one epoch.

        Yields:
            Images (n, C, H, W) float32, normalised, channels-last, and labels (n,) int64. A training split is shuffled
            and augmented; another split comes in order. The last batch may be smaller than the others, unless it is
            dropped.

        Raises:
            UsageError: as of `steps_per_epoch`.
        """
        steps = self.steps_per_epoch(batch_size)
        return self._training_epoch(epoch, batch_size, steps) if self._training else self._ordered(batch_size)

    def _training_epoch(self, epoch: int, batch_size: int, steps: int) -> Iterator[tuple[Tensor, Tensor]]:
        size = (self._height, self._width)
        draws = draw_epoch(self._seed, epoch, self.num_samples, *size, self._augmentation, self._device)
        for first in range(0, steps * batch_size, batch_size):
            last = min(first + batch_size, self.num_samples)
            positions = source_pixels(draws, first, last, *size, self._augmentation)
            images = self._normalized(self._pixels.index_select(0, positions.flatten()))
            yield images, self.labels[draws.order[first:last]]

    def _ordered(self, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
        area = self._height * self._width
        for first in range(0, self.num_samples, batch_size):
            last = min(first + batch_size, self.num_samples)
            yield self._normalized(self._pixels[first * area : last * area]), self.labels[first:last]

    def _normalized(self, pixels: Tensor) -> Tensor:
        rows = pixels.reshape(-1, self._scale.numel()).float().mul_(self._scale).add_(self._offset)
        return rows.view(-1, self._height, self._width, pixels.shape[1]).permute(0, 3, 1, 2)


def make_splits(
    data: DecodedImages, recipe: Recipe, seed: int, device: torch.device, normalization: Normalization
) -> Splits:
    """Choose the recipe's splits and put them on the device; only the training split is augmented.

    Raises:
        UsageError: if the recipe asks for more images than there are, or for a cutout larger than an image.
    """
    chosen = choose_splits(data.train_labels, data.test_labels, recipe)
    augmentation = Augmentation(recipe.flip, recipe.translate, recipe.cutout, recipe.crop_padding)

    def split(images: NDArray[np.uint8], labels: NDArray[np.int64], training: bool) -> DeviceBatches:
        return DeviceBatches(
            images,
            labels,
            normalization=normalization,
            device=device,
            training=training,
            seed=seed,
            augmentation=augmentation,
            drop_last=recipe.drop_last,
        )

    held_out = chosen.validation
    return Splits(
        train=split(data.train_images[chosen.train], data.train_labels[chosen.train], True),
        test=split(data.test_images[chosen.test], data.test_labels[chosen.test], False),
        validation=split(data.train_images[held_out], data.train_labels[held_out], False) if len(held_out) else None,
    )
