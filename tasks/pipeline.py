"""Tasks of images in memory: splits that are shuffled, augmented and normalised on the training device.

`ImageTask` is the base class of tasks that read their images at once; `make_splits` does the same for a task that
implements `prepare` and `load` itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from suite.errors import MissingData, UsageError
from suite.recipe import Recipe
from suite.task import DataCopy, Splits, Task
from tasks.images.augmentation import Augmentation, draw_epoch, source_pixels
from tasks.images.decoded import DecodedImages
from tasks.images.splits import choose_splits


@dataclass(frozen=True)
class Normalization:
    """Mean and standard deviation of each channel, in the units of stored images: 0 to 255."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    @classmethod
    def of(cls, images: NDArray[np.uint8]) -> Normalization:
        """Return the mean and standard deviation of images (N, H, W, C); 1 replaces a standard deviation of 0."""
        mean = images.mean(axis=(0, 1, 2), dtype=np.float64)
        std = images.std(axis=(0, 1, 2), dtype=np.float64)
        return cls(tuple(map(float, mean)), tuple(float(value) or 1.0 for value in std))


class ImageTask(Task):
    """Base class of tasks whose images are small enough to be read into memory by every trial.

    A subclass defines `read_images` and the class attributes of `suite.task.Task`.

    Class attributes:
        normalization: Mean and standard deviation of each channel; `None` uses those of the training images.
        note: One line for log and report about the data; if it is empty, the numbers of images are reported.
    """

    normalization: ClassVar[Normalization | None] = None
    note: ClassVar[str] = ""

    def read_images(self, data_root: Path) -> DecodedImages:
        """Return the images and labels; called once per command and once in every trial.

        Args:
            data_root: Value of `--data-root`.

        Raises:
            suite.errors.MissingData: If the data is missing; one line that says where it was searched.
        """
        raise self._undefined("read_images()")

    def prepare(self, data_root: Path, preset: str, recipe: Recipe | None = None) -> DataCopy:
        """Read the images, check them against `input_shape` and `num_classes`, and return their checksum.

        Raises:
            UsageError: If a shape, a type or a label is wrong.
        """
        data = self.read_images(data_root)
        if fault := data.fault() or self._mismatch(data):
            raise UsageError(f"task {self.registered_name}: {fault}")
        train, test = len(data.train_images), len(data.test_images)
        note = self.note or f"{train:,} training and {test:,} test images"
        return DataCopy("original", data.checksum(), str(data_root), note)

    def load(self, copy: DataCopy, recipe: Recipe, seed: int, device: torch.device) -> Splits:
        """Read the images again and put the splits on the device.

        Raises:
            MissingData: If the images are no longer those of `copy`.
            UsageError: If the recipe asks for more images than there are.
        """
        data = self.read_images(Path(copy.path))
        found = data.checksum()
        if found != copy.checksum:
            raise MissingData(
                f"task {self.registered_name}: the images have changed since this trial was planned "
                f"(checksum {found[:8]}, not {copy.checksum[:8]}); run the command again"
            )
        return make_splits(data, recipe, seed, device, self.normalization or Normalization.of(data.train_images))

    def _mismatch(self, data: DecodedImages) -> str:
        channels, height, width = self.input_shape
        for name, images in (("train_images", data.train_images), ("test_images", data.test_images)):
            if images.shape[1:] != (height, width, channels):
                return f"{name} are {images.shape}; input_shape {self.input_shape} asks for (N, H, W, C) of that size"
        largest = max(int(data.train_labels.max()), int(data.test_labels.max()))
        if largest >= self.num_classes:
            return f"a label is {largest}; the largest for {self.num_classes} classes is {self.num_classes - 1}"
        return ""


class DeviceBatches:
    """One split on one device; implements `suite.task.Batches`.

    Images are stored as a matrix of pixels, (N * H * W + 2, C) uint8: channels-last without a second copy. The last two
    rows are the mean colour, rounded to integers, and black; they fill the pixels that cutout and translation leave
    empty.

    Attributes:
        num_samples: Number of images in the split.
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
            normalization: Normalisation, applied after the augmentation.
            device: Device on which images are stored, augmented and normalised.
            training: Whether epochs are shuffled and augmented.
            seed: Seed of the trial; shuffling and augmentation depend on it and on the number of the epoch.
            augmentation: Augmentation of a training split; `None` for none.
            drop_last: Whether a training split drops a last batch that is smaller than the others.

        Raises:
            UsageError: If the cutout is larger than the image, or the translation moves all of the image out.
            ValueError: If shapes or types differ from those above.
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
            raise UsageError(f"recipe.cutout is {self._augmentation.cutout}; images have only {size} pixels")
        if self._augmentation.translate >= min(self._height, self._width):
            size = f"{self._height}x{self._width}"
            raise UsageError(f"recipe.translate is {self._augmentation.translate}; images have only {size} pixels")

        self.labels = labels.to(device)
        fill = torch.tensor([round(value) for value in normalization.mean], dtype=torch.uint8)
        self._pixels = torch.empty(images[..., 0].numel() + 2, channels, dtype=torch.uint8, device=device)
        self._pixels[:-2] = images.reshape(-1, channels).to(device)
        self._pixels[-2] = fill.to(device)
        self._pixels[-1] = 0

        # (x - mean) / std = x * scale + offset, with scale and offset repeated for a whole image: a loop over an
        # innermost dimension of three channels would not be vectorised.
        mean = torch.tensor(normalization.mean, dtype=torch.float64)
        scale = 1 / torch.tensor(normalization.std, dtype=torch.float64)
        repeats = self._height * self._width
        self._scale = scale.float().repeat(repeats).to(device)
        self._offset = (-mean * scale).float().repeat(repeats).to(device)

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
    """Select the splits of a recipe and put them on the device; only the training split is augmented.

    Args:
        data: Images and labels.
        recipe: Recipe with the sizes of the splits and the augmentation.
        seed: Seed of the trial, for shuffling and augmentation.
        device: Device on which images are stored.
        normalization: Mean and standard deviation of each channel.

    Raises:
        UsageError: If the recipe asks for more images than there are, or for a cutout larger than an image.
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
