"""The expected size of a cache is announced before it is written, and two processes decode a folder once."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import tasks.sources.image_cache as image_cache
from tasks.sources.image_tree import read_tree

IMAGES = 80
SLOW = """
import json, sys, time
from pathlib import Path
import tasks.sources.image_cache as image_cache
from tasks.sources.image_tree import read_tree

decoded, original = [], image_cache.decode
image_cache.decode = lambda path, side: (decoded.append(path), time.sleep(0.01), original(path, side))[2]
folder = Path(sys.argv[1])
(folder / f"ready{sys.argv[2]}").touch()
while not (folder / "start").exists():
    time.sleep(0.001)
meta = image_cache.store(read_tree(folder / "pets"), folder / "cache", 32, False)
print(json.dumps([len(decoded), meta["checksum"]]))
"""


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


def test_two_processes_decode_a_folder_once(tmp_path: Path) -> None:
    write_images(tmp_path / "pets", 36)
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", SLOW, str(tmp_path), str(number)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(2)
    ]
    deadline = time.monotonic() + 120
    while not all((tmp_path / f"ready{number}").exists() for number in range(2)):
        assert all(process.poll() is None for process in processes)
        assert time.monotonic() < deadline
        time.sleep(0.01)
    (tmp_path / "start").touch()
    answers = [process.communicate(timeout=120) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], answers
    counts, checksums = zip(*(json.loads(out.splitlines()[-1]) for out, _ in answers), strict=True)
    assert sorted(counts) == [0, IMAGES]
    assert len(set(checksums)) == 1
