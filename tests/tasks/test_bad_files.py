"""A refusal names the bad files behind the first one, as far as they are found soon."""

from __future__ import annotations

from pathlib import Path

import pytest
from image_trials import image_folder
from PIL import Image

from suite.errors import UsageError
from tasks.sources import image_cache

SKIP = "remove such files, or leave them out with the task's parameter bad_images=skip, --task NAME[bad_images=skip]"


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
    assert f"; bad files behind it: train/dog/0.png, val/dog/9.png; {SKIP}" in said


def test_the_look_is_bounded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spoil(folder, "train/cat/3", "train/cat/4", "train/cat/8", "val/dog/9")
    monkeypatch.setattr(image_cache, "LOOK", 5)
    assert "; bad files behind it: train/cat/4.png, train/cat/8.png; remove" in refused(folder, "on")
    monkeypatch.setattr(image_cache, "MOST", 1)
    assert "; bad files behind it: train/cat/4.png; remove" in refused(folder, "on")


def test_skipping_continues_behind_a_look(folder: Path) -> None:
    spoil(folder, "train/cat/3", "val/dog/9")
    refused(folder, "on")
    assert refused(folder, "on")  # a look stores nothing by which a second command would pass
    copy = image_folder(bad_images="skip").prepare(folder, "quick")
    assert "2 files that cannot be read as images were left out" in copy.note
