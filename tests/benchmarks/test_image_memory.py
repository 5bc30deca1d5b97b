"""The memory of the task `imagefolder` grows by a bounded number of bytes per image."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from benchmarks.pipeline.image_memory import generate, measure
from tasks.sources.image_tree import read_tree

# An epoch of the smaller folder lasts a few intervals of the observation, so that its peak is seen too.
FEW, MANY = 5_000, 20_000
LARGEST_PER_IMAGE = 1_000  # bytes; docs/image-folders.md states what was measured
NOISE = 8_000_000  # bytes, of the allocator

pytestmark = pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="reads /proc of Linux")


def test_the_folder_has_as_many_images_as_wanted(tmp_path: Path) -> None:
    generate(tmp_path, 300, 16)
    tree = read_tree(tmp_path / "images")
    assert (len(tree.train), len(tree.test), len(tree.classes)) == (270, 30, 10)
    assert len({os.stat(tree.root / file.path).st_ino for file in tree.files}) == 64  # noqa: PTH116


@pytest.mark.slow
def test_memory_grows_by_a_bounded_number_of_bytes_per_image(tmp_path: Path) -> None:
    found = []
    for images in (FEW, MANY):
        (tmp_path / str(images)).mkdir()
        found.append(measure(tmp_path / str(images), images, 64))
    for phase in ("build", "epoch"):
        few, many = (one[phase].growth for one in found)
        assert many - few < LARGEST_PER_IMAGE * (MANY - FEW) + NOISE, phase
        # The pixels themselves, 12 kB per image, stay in the mapped file.
        assert many < 0.5 * MANY * 64 * 64 * 3, phase
