"""A refusal names the bad files behind the first one, as far as they are found soon."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_copies import image_folder

from suite.errors import UsageError
from tasks.sources import image_cache

SKIP = "remove such files, or leave them out with the task's parameter bad_images=skip, --task NAME[bad_images=skip]"


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
    spoil(folder, "train/cat/2", "train/dog/0", "val/dog/1")
    said = refused(folder, cache)
    assert said.startswith(f"{folder}/train/cat/2.png: cannot be read as an image: ")
    assert f"; bad files behind it: train/dog/0.png, val/dog/1.png; {SKIP}" in said


def test_the_look_is_bounded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spoil(folder, "train/cat/0", "train/cat/1", "train/dog/0", "val/dog/2")
    monkeypatch.setattr(image_cache, "LOOK", 5)
    assert "; bad files behind it: train/cat/1.png, train/dog/0.png; remove" in refused(folder, "on")
    monkeypatch.setattr(image_cache, "MOST", 1)
    assert "; bad files behind it: train/cat/1.png; remove" in refused(folder, "on")
