"""The expected size of a cache is announced before it is written, and two commands decode a folder once."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import tasks.sources.image_cache as image_cache
from tasks.sources.image_tree import read_tree

IMAGES = 80


def write_images(folder: Path, side: int) -> None:
    random = np.random.RandomState(0)
    for place in ("train/cat", "train/dog", "val/cat", "val/dog"):
        (folder / place).mkdir(parents=True)
        for number in range(IMAGES // 4):
            noise = random.randint(0, 256, (side, side, 3)).astype(np.uint8)
            Image.fromarray(noise).save(folder / place / f"{number}.jpg")


def test_the_size_of_the_cache_is_announced_before_anything_is_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_images(tmp_path / "pets", 120)
    printed = []
    original = image_cache._decode_all

    def decode_all(*arguments: Any) -> None:
        printed.append(capsys.readouterr().out)
        original(*arguments)

    monkeypatch.setattr(image_cache, "_decode_all", decode_all)
    image_cache.store(read_tree(tmp_path / "pets"), tmp_path / "cache", 100, False)
    text = f"pdt: the decoded images of {tmp_path}/pets take about 2 MB in {tmp_path}/cache\n"
    assert printed == [text]  # 80 images of 100 x 100 pixels
    assert (tmp_path / "cache" / "pixels.bin").stat().st_size == IMAGES * 3 * 100 * 100
    image_cache.store(read_tree(tmp_path / "pets"), tmp_path / "cache", 100, False)
    assert (capsys.readouterr().out, len(printed)) == ("", 1)


def test_two_at_once_decode_a_folder_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_images(tmp_path / "pets", 36)
    decoded, original = [], image_cache.decode

    def slow(path: Path, side: int) -> Any:
        decoded.append(path)
        time.sleep(0.01)
        return original(path, side)

    monkeypatch.setattr(image_cache, "decode", slow)
    with ThreadPoolExecutor(2) as pool:
        found = list(
            pool.map(
                lambda tree: image_cache.store(tree, tmp_path / "cache", 32, False),
                [read_tree(tmp_path / "pets") for _ in range(2)],
            )
        )
    assert len(decoded) == IMAGES
    assert found[0] == found[1]
