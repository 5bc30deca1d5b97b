"""Decoded images, those of each split, and the division of a split into batches.

The class and the recipe's seed, not the trial's seed, assign images to splits. All kinds of splits share the division
into batches and the random numbers of epochs.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from suite.errors import UsageError
from suite.recipe import Augmentation, Recipe

Indices = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class DecodedImages:
    """A data set of small images in memory.

    Attributes:
        train_images, test_images: (N, H, W, C) uint8, 0 to 255.
        train_labels, test_labels: (N,) int64, from 0.
    """

    train_images: NDArray[np.uint8]
    train_labels: NDArray[np.int64]
    test_images: NDArray[np.uint8]
    test_labels: NDArray[np.int64]

    def fault(self) -> str:
        """Return a description of a wrong type or shape; empty if the arrays are valid."""
        for split in ("train", "test"):
            images, labels = getattr(self, f"{split}_images"), getattr(self, f"{split}_labels")
            if images.dtype != np.uint8 or images.ndim != 4 or not len(images):
                return f"{split}_images are {images.shape} {images.dtype}, not (N, H, W, C) uint8"
            if labels.dtype != np.int64 or labels.shape != images.shape[:1] or labels.min() < 0:
                return f"{split}_labels are {labels.shape} {labels.dtype}, not ({len(images)},) int64 from 0"
        return ""

    def checksum(self) -> str:
        """Return the SHA-256, in hex, of shapes, pixels and labels (little-endian), in the order of the attributes."""
        digest = hashlib.sha256()
        for field in fields(self):
            array = getattr(self, field.name)
            digest.update(f"{field.name} {array.shape}\n".encode())
            digest.update(np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<")).data)
        return digest.hexdigest()


class SplitIndices(NamedTuple):
    """Indices of the images of each split, ascending.

    Attributes:
        train: Indices of training images.
        validation: Indices of training images that are held out; empty without a validation split.
        test: Indices of test images.
    """

    train: Indices
    validation: Indices
    test: Indices


def stratified_order(labels: NDArray[np.int64], seed: int) -> Indices:
    """Return a random order in which every prefix contains the classes nearly in their overall proportions.

    If classes are equally large, their counts in any prefix differ by at most one.

    Args:
        labels: (N,) class of each image.
        seed: Seed of the order within each class and among classes.

    Returns:
        (N,) indices into `labels`.
    """
    # The stream of RandomState never changes, and published splits depend on it. That of default_rng may change.
    random = np.random.RandomState(seed)
    tie_break = random.permutation(len(labels))
    share = np.empty(len(labels), dtype=np.float64)
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        share[random.permutation(members)] = (np.arange(len(members)) + 0.5) / len(members)
    return np.lexsort((tie_break, share)).astype(np.int64)


def choose_splits(train_labels: NDArray[np.int64], test_labels: NDArray[np.int64], recipe: Recipe) -> SplitIndices:
    """Select the splits of a recipe: first the validation split, which does not depend on the subset sizes.

    Raises:
        UsageError: The recipe asks for more images than there are, or leaves none for training or testing.
    """
    order = stratified_order(train_labels, recipe.split_seed)
    cut = recipe.validation_images
    if not 0 <= cut < len(order):
        raise UsageError(f"recipe.validation_images is {cut}; the task has only {len(order)} training images")
    return SplitIndices(
        train=np.sort(_first(order[cut:], recipe.train_images, "train_images")),
        validation=np.sort(order[:cut]),
        test=np.sort(_first(stratified_order(test_labels, recipe.split_seed), recipe.test_images, "test_images")),
    )


def _first(order: Indices, count: int | None, field: str) -> Indices:
    if count is None:
        return order
    if not 1 <= count <= len(order):
        raise UsageError(f"recipe.{field} is {count}; it must be between 1 and {len(order)} here")
    return order[:count]


def check_train_sizes(recipe: Recipe, size: int) -> None:
    """Check that no size of training images is larger than `size`, that of an evaluation.

    Raises:
        UsageError: One is.
    """
    largest = max(recipe.growing.train_sizes, default=0)
    if largest > size:
        raise UsageError(
            f"recipe.train_sizes has {largest}, which is larger than the image size of {size}; "
            f'--set "recipe.train_sizes=()" trains with images of {size} pixels'
        )


class EpochBatches(ABC):
    """Base class of splits; implements `suite.task.Batches`.

    Attributes:
        num_samples: Number of images in the split.
        labels: (N,) int64.
    """

    labels: Tensor

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
            UsageError: A training split drops its smaller last batch, and has fewer images than one batch.
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

        A training split is shuffled and augmented. Other splits keep their order. The last batch may be smaller than
        the others, if it is not dropped.

        Yields:
            Images (n, C, H, W) float32, normalised, channels-last, and labels (n,) int64.

        Raises:
            UsageError: As `steps_per_epoch`.
        """
        return self.share_of_epoch(epoch, batch_size, 0, 1)

    def share_of_epoch(self, epoch: int, batch_size: int, rank: int, ranks: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Iterate over one rank's share of the batches of `epoch`. Each batch is divided in the order of its images.

        Args:
            epoch, batch_size: As for `epoch`.
            rank: Number of the share, from 0.
            ranks: Number of shares. If they cannot be equal, the first ones have one image more.

        Yields:
            Images (n, C, H, W) and labels (n,), as `epoch`; n may be 0 in a last batch that is smaller than `ranks`.
        """
        wanted = self.steps_per_epoch(batch_size) * batch_size
        batches = range(min(wanted, self.num_samples))
        spans = [_share(batches[first : first + batch_size], rank, ranks) for first in range(0, wanted, batch_size)]
        return self._training_epoch(epoch, spans) if self._training else self._ordered(spans)

    def sample(self, count: int, seed: int) -> Tensor:
        """Return images of the split, drawn without replacement in the proportions of its classes.

        Args:
            count: Number of images; all if there are fewer.
            seed: Seed of the trial.

        Returns:
            (n, C, H, W) float32, normalised and not augmented.
        """
        drawn = np.sort(stratified_order(self.labels.cpu().numpy(), seed % 2**32)[:count])
        return self._unaugmented(torch.from_numpy(drawn))

    @abstractmethod
    def _unaugmented(self, images: Tensor) -> Tensor:
        """Return normalised images, given by their indices (n,), as an evaluation sees them."""

    @abstractmethod
    def _training_epoch(self, epoch: int, spans: Sequence[range]) -> Iterator[tuple[Tensor, Tensor]]:
        """Iterate over augmented batches of one epoch, each a range of places in its shuffled order."""

    @abstractmethod
    def _ordered(self, spans: Sequence[range]) -> Iterator[tuple[Tensor, Tensor]]:
        """Iterate over batches of images in their order, each a range of images."""


def epoch_generator(kind: str, seed: int, epoch: int) -> torch.Generator:
    """Return a new generator on the CPU, whose random numbers depend only on the arguments.

    Args:
        kind: Name of the random choice, so that drawing one kind does not change another.
        seed: Seed of the trial.
        epoch: Number of the epoch.
    """
    digest = hashlib.blake2b(f"{kind} {seed} {epoch}".encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "little") >> 1)


def draw_mirrored(seed: int, epoch: int, images: Tensor, augmentation: Augmentation) -> Tensor:
    """Return which images are mirrored in an epoch.

    Args:
        seed: Seed of the trial.
        epoch: Number of the epoch, from 0.
        images: (N,) int64, indices of all images, in any order.
        augmentation: Whether and how images are mirrored. With `alternating_flip`, a draw for each image says whether
            it begins with the first epoch.

    Returns:
        (N,) bool, in the order of `images`.
    """
    if not augmentation.flip:
        return torch.zeros(len(images), dtype=torch.bool)
    if augmentation.alternating_flip:
        first = torch.randint(0, 2, (len(images),), generator=epoch_generator("flip", seed, 0)).bool()
        return first[images] ^ bool(epoch % 2)
    return torch.randint(0, 2, (len(images),), generator=epoch_generator("flip", seed, epoch)).bool()


def _share(batch: range, rank: int, ranks: int) -> range:
    """Return one of the parts into which `Tensor.tensor_split` divides a batch."""
    size, more = divmod(len(batch), ranks)
    first = rank * size + min(rank, more)
    return batch[first : first + size + (rank < more)]
