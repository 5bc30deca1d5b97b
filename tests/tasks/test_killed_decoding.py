"""A decoding whose process is killed continues, and gives the cache of one that was not."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import tasks.sources.image_cache as image_cache
from tasks.images.stored import RECORD
from tasks.sources.image_tree import read_tree

SLOW = """
import sys, time
from pathlib import Path
import tasks.sources.image_cache as image_cache
from tasks.sources.image_tree import read_tree

original = image_cache.decode
image_cache.decode = lambda path, side: (time.sleep(0.01), original(path, side))[1]
image_cache.CHUNK = 8
image_cache.store(read_tree(Path(sys.argv[1])), Path(sys.argv[2]), 32, False)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_killed_decoding_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals) -> None:
    random = np.random.RandomState(0)
    for split in ("train", "val"):
        for name in ("cat", "dog"):
            folder = tmp_path / "pets" / split / name
            folder.mkdir(parents=True)
            for index in range(100):
                Image.fromarray(random.randint(0, 256, (36, 40, 3)).astype(np.uint8)).save(folder / f"{index}.png")
    tree = read_tree(tmp_path / "pets")
    whole = image_cache.store(tree, tmp_path / "whole", 32, False)

    path, part = tmp_path / "killed", tmp_path / "killed.part"
    process = subprocess.Popen([sys.executable, "-c", SLOW, tree.root, path], stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    index_file = part / "index.bin"
    while not index_file.is_file() or index_file.stat().st_size < 16 * RECORD.itemsize:
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.005)
    process.send_signal(number)
    process.communicate(timeout=30)
    assert process.returncode == -number
    assert not path.exists()
    stored = index_file.stat().st_size // RECORD.itemsize
    assert 16 <= stored < 400

    decoded: list[Path] = []
    original = image_cache.decode
    monkeypatch.setattr(image_cache, "decode", lambda file, side: (decoded.append(file), original(file, side))[1])
    assert image_cache.store(tree, path, 32, False) == whole
    assert len(decoded) == 400 - stored
    for file in ("pixels.bin", "index.bin"):
        assert (path / file).read_bytes() == (tmp_path / "whole" / file).read_bytes()
