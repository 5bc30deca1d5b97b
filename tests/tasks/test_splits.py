from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from suite.errors import UsageError
from suite.recipe import Recipe
from tasks.images.splits import choose_splits, stratified_order

RECIPE = Recipe(epochs=1, batch_size=4, learning_rate=0.1)
TRAIN = np.repeat(np.arange(10), 50)
TEST = np.repeat(np.arange(10), 20)


@settings(max_examples=60)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=80), st.integers(0, 2**32 - 1), st.data())
def test_every_beginning_of_the_order_is_stratified(labels: list[int], seed: int, data: st.DataObject) -> None:
    array = np.array(labels, dtype=np.int64)
    order = stratified_order(array, seed)
    assert sorted(order.tolist()) == list(range(len(labels)))
    length = data.draw(st.integers(0, len(labels)))
    for label in range(5):
        share = np.count_nonzero(array == label) * length / len(labels)
        # Half an image of rounding for the class itself, and its part of the rounding of all five.
        assert abs(np.count_nonzero(array[order[:length]] == label) - share) <= 3


def test_balanced_classes_differ_by_at_most_one_in_every_beginning() -> None:
    order = stratified_order(TRAIN, seed=3)
    for length in range(len(order)):
        counts = np.bincount(TRAIN[order[:length]], minlength=10)
        assert counts.max() - counts.min() <= 1


def test_the_order_is_fixed_by_its_seed() -> None:
    # Published splits depend on these numbers: if they change, so do the results.
    assert stratified_order(np.array([0, 0, 0, 1, 1, 1]), seed=0).tolist() == [2, 5, 4, 0, 1, 3]
    assert not np.array_equal(stratified_order(TRAIN, 0), stratified_order(TRAIN, 1))


def test_validation_is_balanced_and_shares_no_image_with_training() -> None:
    chosen = choose_splits(TRAIN, TEST, dataclasses.replace(RECIPE, validation_images=100))
    assert np.bincount(TRAIN[chosen.validation]).tolist() == [10] * 10
    assert np.bincount(TRAIN[chosen.train]).tolist() == [40] * 10
    assert not set(chosen.validation.tolist()) & set(chosen.train.tolist())
    assert len(chosen.test) == len(TEST)


def test_a_subset_of_training_images_leaves_the_validation_where_it_is() -> None:
    whole = choose_splits(TRAIN, TEST, dataclasses.replace(RECIPE, validation_images=100))
    some = choose_splits(
        TRAIN, TEST, dataclasses.replace(RECIPE, validation_images=100, train_images=50, test_images=30)
    )
    np.testing.assert_array_equal(whole.validation, some.validation)
    assert set(some.train.tolist()) < set(whole.train.tolist())
    assert np.bincount(TRAIN[some.train]).tolist() == [5] * 10
    assert np.bincount(TEST[some.test]).tolist() == [3] * 10


def test_a_larger_subset_contains_the_smaller_one() -> None:
    subsets = [
        set(choose_splits(TRAIN, TEST, dataclasses.replace(RECIPE, train_images=count)).train.tolist())
        for count in (20, 70, 333)
    ]
    assert subsets[0] < subsets[1] < subsets[2]


def test_other_split_seeds_choose_other_images() -> None:
    chosen = [
        choose_splits(TRAIN, TEST, dataclasses.replace(RECIPE, validation_images=100, split_seed=seed)).validation
        for seed in (0, 1)
    ]
    assert not np.array_equal(chosen[0], chosen[1])


@pytest.mark.parametrize(
    "wrong",
    [
        {"validation_images": 500},
        {"train_images": 501},
        {"train_images": 401, "validation_images": 100},
        {"test_images": 201},
    ],
)
def test_asking_for_images_that_are_not_there_is_a_usage_error(wrong: dict[str, int]) -> None:
    with pytest.raises(UsageError, match="recipe"):
        choose_splits(TRAIN, TEST, dataclasses.replace(RECIPE, **wrong))
