"""The base class of tasks that read their images into memory."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from suite.errors import MissingData, UsageError
from suite.recipe import Recipe
from suite.task import DataCopy
from tasks.digits import Digits
from tasks.pipeline import DecodedImages, ImageTask, Normalization, make_splits

RECIPE = Recipe(epochs=1, batch_size=4, learning_rate=0.1)


class Noise(ImageTask):
    """Images drawn from a seed, which stand for a user's own data."""

    registered_name = "noise"
    num_classes = 3
    input_shape = (2, 8, 6)

    def __init__(self, **changes: Any) -> None:
        random = np.random.RandomState(0)
        arrays: dict[str, Any] = {}
        for split, count in (("train", 12), ("test", 5)):
            arrays[f"{split}_images"] = random.randint(0, 256, (count, 8, 6, 2)).astype(np.uint8)
            arrays[f"{split}_labels"] = np.arange(count) % 3
        self.data = DecodedImages(**{**arrays, **changes})

    def read_images(self, data_root: Path) -> DecodedImages:
        return self.data


def test_an_image_task_normalises_by_its_training_images(tmp_path: Path) -> None:
    task = Noise()
    copy = task.prepare(tmp_path, "quick")
    assert copy == DataCopy("original", task.data.checksum(), str(tmp_path), "12 training and 5 test images")
    splits = task.load(copy, dataclasses.replace(RECIPE, validation_images=3), 0, torch.device("cpu"))
    assert splits.validation is not None
    assert [one.num_samples for one in (splits.train, splits.test, splits.validation)] == [9, 5, 3]
    train = task.data.train_images.astype(np.float64)
    expected = (task.data.test_images - train.mean((0, 1, 2))) / train.std((0, 1, 2))
    ((images, labels),) = splits.test.epoch(0, 5)
    np.testing.assert_allclose(images.numpy(), expected.transpose(0, 3, 1, 2), rtol=1e-4, atol=1e-5)
    assert labels.tolist() == [0, 1, 2, 0, 1]


SIZES = {"train_sizes": (8, 16), "size_milestones": (0.5,)}


@pytest.mark.parametrize("shrink_by", ["resize", "crop"])
def test_images_of_each_training_size_share_their_pixels(tmp_path: Path, shrink_by: str) -> None:
    task = Digits()
    copy, recipe = task.prepare(tmp_path, "smoke"), task.recipe("smoke")
    plain = task.load(copy, recipe, 0, torch.device("cpu"))
    growing = dataclasses.replace(recipe, **SIZES, shrink_by=shrink_by)
    splits = task.load(copy, growing, 0, torch.device("cpu"))
    assert {size: next(iter(split.epoch(0, 4)))[0].shape[2:] for size, split in splits.train_by_size.items()} == {
        8: (8, 8),
        16: (16, 16),
    }
    assert {split._pixels.data_ptr() for split in splits.train_by_size.values()} == {splits.train._pixels.data_ptr()}
    assert splits.train_by_size[16] is splits.train  # nothing is spent on it
    for got, expected in zip(splits.train.epoch(1, 500), plain.train.epoch(1, 500), strict=True):
        assert torch.equal(got[0], expected[0])
        assert torch.equal(got[1], expected[1])
    assert next(iter(splits.test.epoch(0, 4)))[0].shape == (4, 1, 16, 16)


def test_shrink_by_says_how_images_get_smaller(tmp_path: Path) -> None:
    task = Digits()
    copy, recipe = task.prepare(tmp_path, "smoke"), dataclasses.replace(task.recipe("smoke"), translate=0, **SIZES)
    images = {}
    for shrink_by in ("resize", "crop"):
        splits = task.load(copy, dataclasses.replace(recipe, shrink_by=shrink_by), 0, torch.device("cpu"))
        images[shrink_by] = next(iter(splits.train_by_size[8].epoch(0, 64)))[0]
        full = next(iter(splits.train.epoch(0, 64)))[0]
    assert torch.equal(images["resize"], F.interpolate(full, size=(8, 8), mode="bilinear", antialias=True))
    windows = full.unfold(2, 8, 1).unfold(3, 8, 1)  # (n, 1, rows, columns, 8, 8)
    assert (windows == images["crop"][:, :, None, None]).flatten(4).all(4).flatten(1).any(1).all()


@pytest.mark.parametrize(
    ("shape", "line"),
    [
        ((28, 20), "recipe.train_sizes applies to square images; those of this task are 28x20 pixels"),
        ((12, 12), 'recipe.train_sizes has 16, which is larger than the image size of 12; --set "recipe.train_sizes'),
    ],
)
def test_sizes_of_training_images_that_a_task_cannot_make_are_one_line(shape: tuple[int, int], line: str) -> None:
    images, labels = np.zeros((4, *shape, 3), np.uint8), np.arange(4)
    data = DecodedImages(images, labels, images, labels)
    with pytest.raises(UsageError, match=f"^{line}"):
        make_splits(data, dataclasses.replace(RECIPE, **SIZES), 0, torch.device("cpu"), Normalization.of(images))


def test_a_constant_channel_is_not_divided_by_zero() -> None:
    assert Normalization.of(np.full((2, 4, 4, 1), 7, np.uint8)) == Normalization((7.0,), (1.0,))


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"train_labels": np.arange(12)}, "a label is 11; the largest for 3 classes is 2"),
        ({"test_images": np.zeros((5, 8, 8, 2), np.uint8)}, r"test_images are \(5, 8, 8, 2\); input_shape \(2, 8, 6\)"),
        ({"train_images": np.zeros((12, 8, 6, 2))}, "train_images are .* float64, not"),
    ],
)
def test_images_that_do_not_fit_their_task_are_one_line(tmp_path: Path, changes: dict[str, Any], line: str) -> None:
    with pytest.raises(UsageError, match=f"^task noise: {line}"):
        Noise(**changes).prepare(tmp_path, "quick")


def test_images_that_changed_since_planning_are_one_line(tmp_path: Path) -> None:
    copy = dataclasses.replace(Noise().prepare(tmp_path, "quick"), checksum="0" * 64)
    with pytest.raises(MissingData, match="task noise: the images have changed"):
        Noise().load(copy, RECIPE, 0, torch.device("cpu"))


def test_a_task_says_what_it_does_not_define(tmp_path: Path) -> None:
    for call, name in (
        (lambda task: task.prepare(tmp_path, "quick"), "read_images()"),
        (lambda task: task.recipe("quick"), "recipes"),
        (lambda task: task.default_model("quick"), "models"),
    ):
        with pytest.raises(UsageError, match=f"^task : ImageTask does not define {re.escape(name)}$"):
            call(ImageTask())
