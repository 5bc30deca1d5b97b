"""Without a cache, every file is decoded once before the first trial, which is remembered until the folder changes."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from PIL import Image
from small_copies import image_folder

import tasks.sources.image_cache as image_cache
from suite.errors import UsageError
from suite.task import DataCopy
from tasks.images.decoding import MAX_PIXELS
from tasks.sources.cache import cache_folder


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Collect the path and the shorter side of every decoded file."""
    calls: list[Any] = []
    original = image_cache.decode
    monkeypatch.setattr(image_cache, "decode", lambda path, side: (calls.append((path, side)), original(path, side))[1])
    return calls


def prepare(folder: Path, preset: str = "quick") -> DataCopy:
    return image_folder(preset, cache="off").prepare(folder, preset)


def test_every_file_is_decoded_once_and_at_its_own_size(folder: Path, decoded: list[Any]) -> None:
    first = prepare(folder)
    assert sorted(path for path, _ in decoded) == sorted(folder.rglob("*.png"))
    assert {side for _, side in decoded} == {MAX_PIXELS}
    assert prepare(folder) == first
    assert prepare(folder, "paper").note == first.note
    assert len(decoded) == 12
    (cache,) = (path for path in cache_folder(folder, home_first=True).iterdir() if path.is_dir())
    assert (cache / "pixels.bin").stat().st_size == 0


def test_a_changed_folder_is_checked_again(folder: Path, decoded: list[Any]) -> None:
    prepare(folder)
    Image.new("P", (40, 40)).save(folder / "train/cat/palette.png")
    assert prepare(folder).note.endswith("; converted to RGB: 1 from palette")
    assert len(decoded) == 12 + 13


def test_a_refused_folder_is_checked_again(folder: Path, decoded: list[Any]) -> None:
    last = folder / "val/dog/2.png"
    content, stamp = last.read_bytes(), last.stat().st_mtime_ns
    last.write_bytes(b"\0" * len(content))  # as large, so that the folder looks unchanged afterwards
    os.utime(last, ns=(stamp, stamp))
    setting = r"--task NAME\[bad_images=skip\] and with cache=on"
    with pytest.raises(UsageError, match=rf"val/dog/2\.png: cannot be read .* {setting}"):
        prepare(folder)
    last.write_bytes(content)
    os.utime(last, ns=(stamp, stamp))
    prepare(folder)
    assert len(decoded) == 24


def test_images_next_to_the_folders_name_the_setting(folder: Path) -> None:
    Image.new("RGB", (4, 4)).save(folder / "a.png")
    Image.new("RGB", (4, 4)).save(folder / "train/b.png")
    with pytest.raises(UsageError) as error:
        prepare(folder)
    assert str(error.value) == (
        f"{folder}/a.png: is an image next to the folders of classes (the first of 2 such files); move or remove it, "
        "or leave out such files with --task imagefolder[bad_images=skip]"
    )


@pytest.mark.parametrize("cache", ["on", "off"])
def test_images_in_both_splits_are_named(
    folder: Path, cache: str, caplog: pytest.LogCaptureFixture, decoded: list[Any]
) -> None:
    task = image_folder("quick", cache=cache)
    assert "training split too" not in task.prepare(folder, "quick").note
    assert not caplog.text
    for number in range(2):
        shutil.copy(folder / f"train/cat/{number}.png", folder / f"val/dog/1{number}.png")
    said = "2 test images are in the training split too, the first is val/dog/10.png (train/cat/0.png)"
    for _ in range(2):
        assert task.prepare(folder, "quick").note.endswith(said)
        assert f"{folder}: {said}; the test accuracy is too high by them" in caplog.text
        caplog.clear()
    pairs = 4 if cache == "off" else 0  # two files of each pair are decoded again, by each command
    assert len(decoded) == 12 + 14 + 2 * pairs


def test_images_of_equal_checksums_are_compared(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_cache, "zlib", SimpleNamespace(crc32=lambda content: 5))
    assert "training split too" not in image_folder("quick").prepare(folder, "quick").note


def test_decoded_images_are_not_among_the_pictures(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = sorted(folder.iterdir())
    for cache in ("on", "off"):
        image_folder("quick", cache=cache).prepare(folder, "quick")
    assert sorted(folder.iterdir()) == sorted([*before, folder / "home"])
    assert len([*(folder / "home/.cache/pdt-data/.pdt-cache").iterdir()]) == 4  # the cache and the check, with locks
