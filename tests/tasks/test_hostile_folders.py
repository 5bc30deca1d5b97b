"""Image folders that are hard to handle: unusual names, links, damaged caches, full disks, changed settings."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from small_copies import image_folder

import tasks.images.decoding as decoding
import tasks.sources.image_cache as image_cache
from suite.errors import UsageError
from suite.task import DataCopy
from tasks.images.decoding import BadImage, decode
from tasks.sources.image_tree import ImageTree, read_tree

TASK = image_folder()
QUICK = replace(TASK.recipe("quick"), batch_size=4)


def prepare(folder: Path, **parameters: Any) -> DataCopy:
    return image_folder(**parameters).prepare(folder, "quick", QUICK)


@pytest.mark.parametrize(
    ("name", "text"), [(b"a\nb.png", r"cat/a\nb.png"), (b"\xff.png", r"cat/\xff.png"), (b"a\nb.txt", r"cat/a\nb.txt")]
)
def test_names_that_are_not_text_are_escaped(folder: Path, name: bytes, text: str) -> None:
    Path(os.fsdecode(os.fsencode(folder / "train/cat") + b"/" + name)).write_bytes(b"no image")
    with pytest.raises(UsageError) as error:
        prepare(folder)
    assert text in str(error.value)
    assert str(error.value).isprintable()
    if not name.endswith(b"txt"):
        assert f"the first is train/{text}" in prepare(folder, bad_images="skip").note


def test_a_folder_whose_name_is_not_text_is_refused(folder: Path) -> None:
    renamed = folder.with_name(folder.name + os.fsdecode(b"\xff"))
    folder.rename(renamed)
    with pytest.raises(UsageError, match=r"\\xff: the name of this folder is not readable text"):
        prepare(renamed)


@pytest.mark.parametrize("target", ["nowhere.png", "9.png"])  # missing, and the link itself
def test_links_to_nothing_are_named_or_left_out(folder: Path, target: str) -> None:
    (folder / "train/cat/9.png").symlink_to(target)
    with pytest.raises(UsageError, match=r"train/cat/9\.png: cannot be read as an image: (No such|Too many)"):
        prepare(folder)
    assert "1 file that cannot be read as an image was left out" in prepare(folder, bad_images="skip").note
    assert read_tree(folder).train[3].stamp == (-1, -1)


def test_long_narrow_images_are_refused(tmp_path: Path) -> None:
    Image.new("L", (8000, 40)).save(tmp_path / "fits.png")
    Image.new("L", (40, 8001)).save(tmp_path / "long.png")
    assert decode(tmp_path / "fits.png", 40).pixels.shape == (40, 8000, 3)
    with pytest.raises(BadImage, match=r"long\.png: has 40x8,001 pixels; the limit of the ratio is 200"):
        decode(tmp_path / "long.png", 40)


def tree_of(root: Path, *places: str) -> ImageTree:
    """Return what is found in a folder with two images at each place."""
    for place in places:
        (root / place).mkdir(parents=True)
        for number in range(2):
            (root / place / f"{number}.png").touch()
    return read_tree(root)


def below(folders: str, classes: Iterable[str] = "ab") -> list[str]:
    return [f"{folder}/{name}" for folder in folders.split() for name in classes]


RENAMED = {
    "words": ([*below("seg_train seg_test"), "seg_pred/x"], "rename seg_test to test and seg_train to train"),
    "words of other splits": (below("train2017 val2017"), "rename train2017 to train and val2017 to val"),
    "long names": (below("Training Validation"), "rename Training to train and Validation to val"),
    "no test split": (below("train tests"), "rename tests to test"),
    "one folder deeper": (below("pets/train pets/val"), "use --data-root {root}/pets"),
    "only a training split": (below("train"), "use --data-root {root}/train"),
    "only a test split": (below("val"), "use --data-root {root}/val"),
    "classes in folders": ([*below("cats dogs")], "if cats/ is a class, move its images into it"),
}


@pytest.mark.parametrize("case", RENAMED)
def test_another_layout_is_refused_with_the_nearest_change_that_helps(tmp_path: Path, case: str) -> None:
    places, expected = RENAMED[case]
    with pytest.raises(UsageError) as error:
        tree_of(tmp_path, *places)
    said = str(error.value)
    assert said.endswith(expected.format(root=tmp_path)) or "since folders inside are not searched" in said
    assert expected.format(root=tmp_path) in said
    assert "; expected train/CLASS/*.jpg with test/ or val/, or CLASS/*.jpg; " in said
    assert said.startswith(f"{tmp_path}: contains ")
    assert "\n" not in said


@pytest.mark.parametrize(
    "places", [below("train", ["a/x", "b"]) + below("val"), ["train/a", "train/b", "val/a", "val/b/1"]]
)
def test_images_in_folders_of_a_class_are_not_searched(tmp_path: Path, places: list[str]) -> None:
    with pytest.raises(UsageError, match="contains no image, and folders inside are not searched"):
        tree_of(tmp_path, *places)


@pytest.mark.parametrize("classes", ["car train plane", "car test plane", "trains valleys", "train_station test_tube"])
def test_classes_may_have_names_of_splits(tmp_path: Path, classes: str) -> None:
    assert tree_of(tmp_path, *classes.split()).classes == tuple(sorted(classes.split()))


def test_case_does_not_count_in_names_of_splits(tmp_path: Path) -> None:
    tree = tree_of(tmp_path, *below("Train VAL"))
    assert (tree.split, len(tree.train), len(tree.test)) == ("test images from VAL/", 4, 4)


@pytest.mark.parametrize("others", [["test"], ["test/unknown"], ["test/a"]])
def test_the_test_split_that_has_all_classes_is_used(tmp_path: Path, others: list[str]) -> None:
    tree = tree_of(tmp_path, *below("train val"), *others)
    assert tree.split == "test images from val/; test/ not used"
    assert {file.label for file in tree.test} == {0, 1}


def test_a_name_in_two_unicode_forms_is_one_class(tmp_path: Path) -> None:
    composed, decomposed = "caf\u00e9", "cafe\u0301"
    tree = tree_of(tmp_path / "splits", *below("train", [composed, "dog"]), *below("val", [decomposed, "dog"]))
    assert tree.classes == (composed, "dog")
    assert [file.label for file in tree.test] == [0, 0, 1, 1]
    with pytest.raises(UsageError, match="two folders of one name, in different Unicode forms"):
        tree_of(tmp_path / "classes", composed, decomposed)


@pytest.mark.parametrize(("split", "name"), [("train", "training"), ("val", "test")])
def test_a_class_whose_files_are_all_left_out_is_named(folder: Path, split: str, name: str) -> None:
    for file in (folder / split / "dog").iterdir():
        file.write_bytes(b"no image")
    with pytest.raises(UsageError, match=f"no file of class 'dog' in the {name} split is an image"):
        prepare(folder, bad_images="skip")
    assert not list(Path.home().rglob("cache.json"))


def test_a_cache_without_skipped_files_serves_both_settings(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = prepare(folder)
    monkeypatch.setattr(image_cache, "decode", None)
    assert prepare(folder, bad_images="skip") == first


def test_a_cache_with_skipped_files_does_not_serve_refusal(folder: Path) -> None:
    (folder / "train/cat/9.png").write_bytes(b"no image")
    prepare(folder, bad_images="skip")
    with pytest.raises(UsageError, match=r"train/cat/9\.png"):
        prepare(folder)


def test_a_damaged_pixel_is_an_error_that_says_what_to_delete(folder: Path) -> None:
    copy = prepare(folder)
    with open(Path(copy.path) / "pixels.bin", "r+b") as pixels:
        pixels.write(b"\7")
    splits = TASK.load(copy, QUICK, 0, torch.device("cpu"))
    with pytest.raises(UsageError, match=f"delete {copy.path}, and run the command again"):
        list(splits.train.epoch(0, 6))


def test_held_out_images_are_not_trained_on_and_are_the_same_in_every_epoch(folder: Path) -> None:
    recipe = replace(QUICK, validation_images=2, flip=False, drop_last=False)
    splits = image_folder(crop_area=1.0, image_size=32).load(prepare(folder), recipe, 0, torch.device("cpu"))
    assert splits.validation is not None

    def content(batches: Any, epoch: int) -> list[tuple[float, int]]:
        """Return the red value and the class, which identify an image, in the order of the epoch."""
        ((images, labels),) = batches.epoch(epoch, 6)
        return [
            (round(image[0, 16, 16].item(), 4), label) for image, label in zip(images, labels.tolist(), strict=True)
        ]

    held_out, trained = content(splits.validation, 0), content(splits.train, 0)
    assert (len(held_out), len(trained)) == (2, 4)
    assert content(splits.validation, 1) == held_out
    assert len(set(held_out + trained)) == 6


def test_test_images_are_resized_to_eight_sevenths_of_the_image_size(folder: Path) -> None:
    Image.radial_gradient("L").resize((40, 40)).save(folder / "val/cat/0.png")
    copy = prepare(folder)
    pixels = [
        torch.cat([images for images, _ in task.load(copy, QUICK, 0, torch.device("cpu")).test.epoch(0, 6)])
        for task in (image_folder(image_size=28), image_folder(image_size=28, eval_resize=32))
    ]
    torch.testing.assert_close(*pixels, rtol=0, atol=0)


def test_giant_files_and_images_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "giant.png"
    Image.new("RGB", (40, 40)).save(file)
    monkeypatch.setattr(decoding, "MAX_PIXELS", 1599)
    with pytest.raises(BadImage, match="has 40x40 pixels; the limit is 1,599 pixels"):
        decode(file, 40)
    monkeypatch.setattr(decoding, "MAX_BYTES", file.stat().st_size - 1)
    with pytest.raises(BadImage, match="is larger than"):
        decode(file, 40)
