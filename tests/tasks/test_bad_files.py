"""A refusal names the bad files behind the first one, as far as they are found soon."""

from __future__ import annotations

from pathlib import Path

import pytest
from image_trials import image_folder
from PIL import Image

from suite.errors import UsageError
from tasks.sources import bad_files

SKIP = "or leave out such files with the task's parameter bad_images=skip, --task NAME[bad_images=skip]"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder of 40 images, of which none is bad."""
    for split in ("train", "val"):
        for name in ("cat", "dog"):
            (tmp_path / split / name).mkdir(parents=True)
            for number in range(10):
                Image.new("RGB", (40, 40)).save(tmp_path / split / name / f"{number}.png")
    return tmp_path


def spoil(folder: Path, *places: str) -> None:
    for place in places:
        (folder / f"{place}.png").write_bytes(b"no image")


def refused(folder: Path, cache: str) -> str:
    with pytest.raises(UsageError) as error:
        image_folder(cache=cache).prepare(folder, "quick")
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("cache", ["on", "off"])
def test_all_bad_files_of_a_small_folder_are_named(folder: Path, cache: str) -> None:
    spoil(folder, "train/cat/3", "train/dog/0", "val/dog/9")
    said = refused(folder, cache)
    assert said.startswith(f"{folder}/train/cat/3.png: cannot be read as an image: ")
    files = "2 others are bad in all files behind it: train/dog/0.png, val/dog/9.png; remove the files"
    assert f"; {files}, {SKIP}" in said


def test_a_single_bad_file_is_said_to_be_the_only_one(folder: Path) -> None:
    spoil(folder, "train/cat/3")
    assert refused(folder, "on").endswith(f"; all files behind it can be read; remove the file, {SKIP}")


def test_the_look_ends_after_some_bad_files(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bad_files, "MOST", 3)
    spoil(folder, "train/cat/3", "train/cat/4", "train/cat/8", "val/dog/9")
    assert "; 2 others are bad in the next 5 files: train/cat/4.png, train/cat/8.png; remove" in refused(folder, "on")


def test_the_look_ends_after_some_time(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bad_files, "SECONDS", 0.0)
    spoil(folder, "train/cat/3", "train/cat/5")
    assert "; the next 1 file can be read; remove the file, " in refused(folder, "on")


def test_skipping_continues_behind_a_look(folder: Path) -> None:
    spoil(folder, "train/cat/3", "val/dog/9")
    refused(folder, "on")
    assert refused(folder, "on")  # a look stores nothing by which a second command would pass
    copy = image_folder(bad_images="skip").prepare(folder, "quick")
    assert "2 files that cannot be read as images were left out" in copy.note
