"""Which image belongs to which split: stratified by class and decided by the recipe's seed, never by the trial's."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from suite.errors import UsageError
from suite.recipe import Recipe

Indices = NDArray[np.int64]


class SplitIndices(NamedTuple):
    """Positions, ascending, of each split's images; `validation` among the training images, and empty without one."""

    train: Indices
    validation: Indices
    test: Indices


def stratified_order(labels: NDArray[np.int64], seed: int) -> Indices:
    """A random order of which every beginning holds the classes nearly in their shares of the whole.

    Where classes are equally large, they differ by at most one image in every beginning.

    Args:
        labels: (N,) class of each image.
        seed: decides the order within each class, and who goes first among classes.

    Returns:
        (N,) positions into `labels`.
    """
    # RandomState, not default_rng: its stream is frozen for ever, and published splits depend on it.
    random = np.random.RandomState(seed)
    tie_break = random.permutation(len(labels))
    share = np.empty(len(labels), dtype=np.float64)
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        share[random.permutation(members)] = (np.arange(len(members)) + 0.5) / len(members)
    return np.lexsort((tie_break, share)).astype(np.int64)


def choose_splits(train_labels: NDArray[np.int64], test_labels: NDArray[np.int64], recipe: Recipe) -> SplitIndices:
    """Cut off the validation split first, then the subsets, so that a subset of the rest never moves the validation.

    Raises:
        UsageError: if the recipe asks for more images than there are, or leaves none to train or test on.
    """
    order = stratified_order(train_labels, recipe.split_seed)
    cut = recipe.validation_images
    if not 0 <= cut < len(order):
        raise UsageError(f"recipe.validation_images is {cut}; there are {len(order)} training images to take from")
    return SplitIndices(
        train=np.sort(_first(order[cut:], recipe.train_images, "train_images")),
        validation=np.sort(order[:cut]),
        test=np.sort(_first(stratified_order(test_labels, recipe.split_seed), recipe.test_images, "test_images")),
    )


def _first(order: Indices, count: int | None, field: str) -> Indices:
    if count is None:
        return order
    if not 1 <= count <= len(order):
        raise UsageError(f"recipe.{field} is {count}; it lies in 1 .. {len(order)} here")
    return order[:count]
