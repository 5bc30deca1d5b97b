"""Assignment of images to splits: stratified by class, and determined by the recipe's seed, not by the trial's."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from suite.errors import UsageError
from suite.recipe import Recipe

Indices = NDArray[np.int64]


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
    # RandomState, not default_rng: published splits depend on its stream, which never changes.
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
        UsageError: If the recipe asks for more images than there are, or leaves none for training or testing.
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
