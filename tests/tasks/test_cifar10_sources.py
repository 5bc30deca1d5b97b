"""Search for CIFAR-10 in a data root, and messages about copies that cannot be used."""

from __future__ import annotations

import dataclasses
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from small_copies import write_image_folder

from suite.errors import MissingData, UsageError
from suite.recipe import Augmentation
from tasks.cifar10 import CIFAR10
from tasks.sources.cache import load_decoded

CPU = torch.device("cpu")


def test_unpacked_archive_is_read_as_the_original(task: CIFAR10, small_archive: Any, tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    small_archive.unpacked.rename(root / "cifar-10-batches-py")
    copy = task.prepare(root, "quick")
    assert copy.kind == "original"
    data, checksum = load_decoded(Path(copy.path))
    assert checksum == copy.checksum
    batches = ("data_batch_1", "data_batch_2")
    np.testing.assert_array_equal(data.train_images, np.concatenate([small_archive.images[name] for name in batches]))
    assert data.train_labels.tolist() == [label for name in batches for label in small_archive.labels[name]]
    np.testing.assert_array_equal(data.test_images, small_archive.images["test_batch"])
    packed = tmp_path / "packed"
    packed.mkdir()
    small_archive.packed.rename(packed / small_archive.packed.name)
    assert task.prepare(packed, "paper").checksum == copy.checksum


def test_archive_comes_before_image_folder(task: CIFAR10, small_archive: Any, tmp_path: Path) -> None:
    write_image_folder(tmp_path / "root" / "cifar10", "png")
    small_archive.packed.rename(tmp_path / "root" / small_archive.packed.name)
    assert task.prepare(tmp_path / "root", "quick").kind == "original"


def test_altered_batch_is_refused_and_never_unpickled(
    task: CIFAR10, small_archive: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = (small_archive.unpacked / "data_batch_2").read_bytes()
    (small_archive.unpacked / "data_batch_2").write_bytes(content[:-1] + b"x")
    monkeypatch.setattr(pickle, "load", None)
    with pytest.raises(UsageError, match="cifar-10-batches-py: is not as published, or incomplete") as raised:
        task.prepare(tmp_path / "made", "quick")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("keep", [0, 100, 5000])
def test_archive_cut_short_is_one_line(task: CIFAR10, small_archive: Any, tmp_path: Path, keep: int) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (root / small_archive.packed.name).write_bytes(small_archive.packed.read_bytes()[:keep])
    with pytest.raises(UsageError, match=r"cifar-10-python\.tar\.gz") as raised:
        task.prepare(root, "quick")
    assert "\n" not in str(raised.value)


def test_png_folder_is_read_exactly_in_order_of_class_and_name(task: CIFAR10, tmp_path: Path) -> None:
    written = write_image_folder(tmp_path / "cifar10", "png")
    copy = task.prepare(tmp_path, "quick")
    assert copy.kind == "png"
    data, _ = load_decoded(Path(copy.path))
    np.testing.assert_array_equal(data.train_images, written["train"])
    np.testing.assert_array_equal(data.test_images, written["test"])
    assert data.train_labels.tolist() == [label for label in range(10) for _ in range(3)]
    assert "30 training and 20 test images" in copy.note


def test_jpeg_folder_says_that_its_numbers_are_not_the_published_ones(task: CIFAR10, tmp_path: Path) -> None:
    write_image_folder(tmp_path / "cifar10", "JPG")
    copy = task.prepare(tmp_path, "quick")
    assert copy.kind == "jpeg"
    assert copy.label == f"jpeg-{copy.checksum[:8]}"
    assert "re-encoded as JPEG" in copy.note
    assert "\n" not in copy.note


def test_unknown_class_is_named(task: CIFAR10, tmp_path: Path) -> None:
    write_image_folder(tmp_path / "cifar10", "png")
    for split in ("train", "test"):
        (tmp_path / "cifar10" / split / "ship").rename(tmp_path / "cifar10" / split / "boat")
    with pytest.raises(UsageError, match="'boat' is not one of the classes"):
        task.prepare(tmp_path, "quick")


def test_unreadable_image_is_named(task: CIFAR10, tmp_path: Path) -> None:
    write_image_folder(tmp_path / "cifar10", "jpg")
    path = tmp_path / "cifar10" / "train" / "deer" / "0001.jpg"
    path.write_bytes(path.read_bytes()[:700])
    with pytest.raises(UsageError, match=r"deer/0001\.jpg: cannot be read as an image") as raised:
        task.prepare(tmp_path, "quick")
    assert "\n" not in str(raised.value)


def test_image_of_another_size_is_named(task: CIFAR10, tmp_path: Path) -> None:
    write_image_folder(tmp_path / "cifar10", "png")
    Image.new("RGB", (33, 32)).save(tmp_path / "cifar10" / "test" / "cat" / "0000.png")
    with pytest.raises(UsageError, match=r"cat/0000\.png: the image is 33x32, not 32x32"):
        task.prepare(tmp_path, "quick")


def test_splits_hold_the_recipes_images_and_only_training_is_augmented(task: CIFAR10, tmp_path: Path) -> None:
    write_image_folder(tmp_path / "cifar10", "png", train=6, test=4)
    copy = task.prepare(tmp_path, "quick")
    recipe = dataclasses.replace(task.recipe("quick"), validation_images=20, train_images=30, test_images=10)
    splits = task.load(copy, recipe, seed=0, device=CPU)
    assert splits.validation is not None
    assert [split.num_samples for split in (splits.train, splits.test, splits.validation)] == [30, 10, 20]
    first, again = (torch.cat([images for images, _ in splits.test.epoch(epoch, 4)]) for epoch in (0, 1))
    assert torch.equal(first, again)
    assert task.load(copy, task.recipe("quick"), seed=0, device=CPU).validation is None


def test_the_seed_shuffles_but_never_moves_an_image_to_another_split(task: CIFAR10, tmp_path: Path) -> None:
    write_image_folder(tmp_path / "cifar10", "png", train=6, test=4)
    copy = task.prepare(tmp_path, "quick")
    recipe = dataclasses.replace(task.recipe("smoke"), validation_images=20, flip=False, translate=0)
    seen, orders = [], []
    for seed in (0, 1):
        splits = task.load(copy, recipe, seed=seed, device=CPU)
        images = torch.cat([images for images, _ in splits.train.epoch(0, 10)]).flatten(1)
        orders.append(images)
        seen.append({tuple(row) for row in images[:, :20].tolist()})
    assert seen[0] == seen[1]
    assert not torch.equal(orders[0], orders[1])


def test_images_changed_between_planning_and_loading_are_one_line(task: CIFAR10, tmp_path: Path) -> None:
    write_image_folder(tmp_path / "cifar10", "png")
    copy = task.prepare(tmp_path, "quick")
    with pytest.raises(MissingData, match="have changed"):
        task.load(dataclasses.replace(copy, checksum="0" * 64), task.recipe("quick"), 0, CPU)
    Path(copy.path).unlink()
    with pytest.raises(MissingData, match="missing or damaged; run the command again"):
        task.load(copy, task.recipe("quick"), 0, CPU)


def test_paper_recipe_is_that_of_the_sdgp_repository(task: CIFAR10) -> None:
    recipe = task.recipe("paper")
    assert (recipe.epochs, recipe.batch_size, recipe.validation_images) == (150, 512, 0)
    assert (recipe.augmentation, recipe.evaluation.flip_tta) == (Augmentation(translate=2, cutout=4), True)
    assert (recipe.momentum, recipe.nesterov, recipe.weight_decay, recipe.label_smoothing) == (0.9, False, 5e-4, 0.1)
    assert recipe.decay_norm_and_bias
    assert recipe.drop_last
    assert recipe.learning_rate_at(0.0) == pytest.approx(0.5e-4)
    assert recipe.learning_rate_at(5 / 150) == pytest.approx(0.5)
    assert recipe.learning_rate_at(77.5 / 150) == pytest.approx(0.25)
    assert recipe.learning_rate_at(1.0) == 0.0
    assert task.default_model("paper") == "resnet9"
    assert task.default_model("smoke") == task.paper_recipes["resnet9"].model == "resnet9[width=0.25]"
