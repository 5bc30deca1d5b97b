"""Tasks of images in memory: splits that are shuffled, augmented and normalised on the training device.

`ImageTask` is the base class of tasks that read all their images at once. `make_splits` does the same for a task that
implements `prepare` and `load` itself.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from suite.errors import MissingData, UsageError
from suite.recipe import Augmentation, Recipe
from suite.task import DataCopy, Splits, Task
from tasks.images.augmentation import UNCHANGED, Normalization, Normalizer, draw_epoch, source_pixels
from tasks.images.splits import DecodedImages, EpochBatches, Indices, check_train_sizes, choose_splits


class ImageTask(Task):
    """Base class of tasks whose images are small enough to be read into memory by every trial.

    A subclass defines `read_images` and the class attributes of `suite.task.Task`.

    Class attributes:
        normalization: Mean and standard deviation of each channel; `None` uses those of the training images.
        note: One line for log and report about the data; if empty, the numbers of images.
    """

    normalization: ClassVar[Normalization | None] = None
    note: ClassVar[str] = ""

    def read_images(self, data_root: Path) -> DecodedImages:
        """Return the images and labels. Every command and every trial calls this once.

        Args:
            data_root: Value of `--data-root`.

        Raises:
            suite.errors.MissingData: The data is missing; one line that tells where it was searched.
        """
        raise self._undefined("read_images()")

    def prepare(self, data_root: Path, preset: str, recipe: Recipe | None = None) -> DataCopy:
        """Read the images, check them against `input_shape` and `num_classes`, and return their checksum.

        Raises:
            UsageError: A shape, a type or a label is wrong.
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
            MissingData: The images are no longer those of `copy`.
            UsageError: The recipe asks for more images than there are.
        """
        data = self.read_images(Path(copy.path))
        check_unchanged(f"task {self.registered_name}: the images", data.checksum(), copy)
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


def check_unchanged(images: str, checksum: str, copy: DataCopy) -> None:
    """Check that images are those of a copy.

    Args:
        images: What they are, for the message.
        checksum: Their checksum.
        copy: The copy.

    Raises:
        MissingData: They have another checksum.
    """
    if checksum != copy.checksum:
        raise MissingData(
            f"{images} have changed since this trial was planned (checksum {checksum[:8]}, not {copy.checksum[:8]}); "
            "run the command again"
        )


class DeviceBatches(EpochBatches):
    """One split on one device; implements `suite.task.Batches`.

    The images are a matrix of pixels, (N * H * W + 2, C) uint8: channels-last without a second copy. The last two rows
    are the mean colour, rounded to integers, and black. They fill the pixels that cutout and translation leave empty.
    Splits of different sizes of training images share it.

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
        augmentation: Augmentation = UNCHANGED,
        drop_last: bool = True,
    ) -> None:
        """Copy the images to the device.

        Args:
            images: (N, H, W, C) uint8.
            labels: (N,) int64.
            normalization: Normalisation, applied after the augmentation.
            device: Device on which images are stored, augmented and normalised.
            training: Whether epochs are shuffled and augmented.
            seed: Seed of the trial. Shuffling and augmentation depend on it and on the number of the epoch.
            augmentation: Augmentation of a training split.
            drop_last: Whether a training split drops a last batch that is smaller than the others.

        Raises:
            UsageError: The cutout is larger than the image, or the translation moves all of the image out.
        """
        images, labels = torch.as_tensor(images), torch.as_tensor(labels)
        super().__init__(images.shape[0], training, drop_last)
        _, self._height, self._width, channels = images.shape
        self._seed, self._device = seed, device
        self._augmentation = augmentation if training else UNCHANGED
        limit = min(self._height, self._width)
        for field, value, largest in (
            ("cutout", self._augmentation.cutout, limit),
            ("translate", self._augmentation.translate, limit - 1),
        ):
            if value > largest:
                raise UsageError(f"recipe.{field} is {value}; images have only {self._height}x{self._width} pixels")

        self.labels = labels.to(device)
        fill = torch.tensor([round(value) for value in normalization.mean], dtype=torch.uint8)
        self._pixels = torch.empty(images[..., 0].numel() + 2, channels, dtype=torch.uint8, device=device)
        self._pixels[:-2] = images.reshape(-1, channels).to(device)
        self._pixels[-2] = fill.to(device)
        self._pixels[-1] = 0

        self._normalization = normalization
        self._normalized = self._training_normalized = Normalizer(normalization, self._height, self._width, device)
        self._window = self._resized_side = 0  # sides of smaller training images; 0 for whole ones

    def shrunk(self, side: int, crop: bool) -> DeviceBatches:
        """Return this training split with smaller training images, made from the same augmented images.

        `sample` still returns images of full size.

        Args:
            side: Height and width of the training images, at most those of the stored images.
            crop: Whether a training image is a window of the augmented image; otherwise that image is resized.
        """
        smaller = copy.copy(self)
        if crop:
            smaller._window = side
            smaller._training_normalized = Normalizer(self._normalization, side, side, self._device)
        else:
            smaller._resized_side = side
        return smaller

    def _training_epoch(self, epoch: int, spans: Sequence[range]) -> Iterator[tuple[Tensor, Tensor]]:
        size = (self._height, self._width)
        draws = draw_epoch(self._seed, epoch, self.num_samples, *size, self._augmentation, self._device, self._window)
        for span in spans:
            positions = source_pixels(draws, span.start, span.stop, *size, self._augmentation, self._window)
            images = self._training_normalized(self._pixels.index_select(0, positions.flatten()))
            if self._resized_side:
                resized = F.interpolate(images, size=(self._resized_side,) * 2, mode="bilinear", antialias=True)
                images = resized.contiguous(memory_format=torch.channels_last)
            yield images, self.labels[draws.order[span.start : span.stop]]

    def _unaugmented(self, images: Tensor) -> Tensor:
        area = self._height * self._width
        pixels = images.to(self._device).view(-1, 1) * area + torch.arange(area, device=self._device)
        return self._normalized(self._pixels.index_select(0, pixels.flatten()))

    def _ordered(self, spans: Sequence[range]) -> Iterator[tuple[Tensor, Tensor]]:
        area = self._height * self._width
        for span in spans:
            images = self._normalized(self._pixels[span.start * area : span.stop * area])
            yield images, self.labels[span.start : span.stop]


def make_splits(
    data: DecodedImages, recipe: Recipe, seed: int, device: torch.device, normalization: Normalization
) -> Splits:
    """Select the splits of a recipe and put them on the device. Only the training split is augmented.

    Args:
        data: Images and labels.
        recipe: Recipe with the sizes of the splits and the augmentation.
        seed: Seed of the trial, for shuffling and augmentation.
        device: Device on which images are stored.
        normalization: Mean and standard deviation of each channel.

    Raises:
        UsageError: The recipe asks for more images than there are, for a cutout larger than an image, for training
            images that are larger, or for sizes of training images that are not square.
    """
    height, width = data.train_images.shape[1:3]
    sizes, by_crop = recipe.growing.train_sizes, recipe.growing.shrink_by == "crop"
    if sizes and height != width:
        raise UsageError(f"recipe.train_sizes applies to square images; those of this task are {height}x{width} pixels")
    check_train_sizes(recipe, height)
    chosen = choose_splits(data.train_labels, data.test_labels, recipe)
    normalization = normalization.with_std(recipe.augmentation.pixel_std)

    def split(images: NDArray[np.uint8], labels: NDArray[np.int64], which: Indices, training: bool) -> DeviceBatches:
        return DeviceBatches(
            images[which],
            labels[which],
            normalization=normalization,
            device=device,
            training=training,
            seed=seed,
            augmentation=recipe.augmentation,
            drop_last=recipe.drop_last,
        )

    held_out = chosen.validation
    train = split(data.train_images, data.train_labels, chosen.train, True)
    return Splits(
        train=train,
        test=split(data.test_images, data.test_labels, chosen.test, False) if recipe.evaluation.evaluate_test else None,
        validation=split(data.train_images, data.train_labels, held_out, False) if len(held_out) else None,
        train_by_size={side: train if side == height else train.shrunk(side, by_crop) for side in sizes},
    )
