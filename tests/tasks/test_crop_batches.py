"""What remains of epochs, boxes and decodings at their ends."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from tasks.images.augmentation import Normalization
from tasks.images.crops import CropBatches, draw_boxes
from tasks.images.stored import MemoryImages
from tasks.sources.image_cache import store
from tasks.sources.image_tree import read_tree


def batches(training: bool, drop_last: bool, alternating_flip: bool = False) -> CropBatches:
    images = np.zeros((7, 8, 8, 3), dtype=np.uint8)
    images[:, :, 4:] = 1  # the right half
    return CropBatches(
        MemoryImages(images, np.arange(7)),
        np.arange(7),
        size=8,
        eval_resize=8,
        crop_area=1.0,
        flip=True,
        alternating_flip=alternating_flip,
        normalization=Normalization((0.0,) * 3, (1.0,) * 3),
        device=torch.device("cpu"),
        training=training,
        seed=0,
        drop_last=drop_last,
    )


def test_only_training_drops_its_last_batch() -> None:
    def sizes(training: bool, drop_last: bool) -> list[int]:
        return [len(labels) for _, labels in batches(training, drop_last).epoch(0, 3)]

    assert sizes(True, True) == [3, 3]
    assert sizes(True, False) == sizes(False, True) == [3, 3, 1]


def test_an_alternating_flip_mirrors_each_image_in_every_other_epoch() -> None:
    split = batches(True, False, alternating_flip=True)

    def mirrored(epoch: int) -> list[bool]:
        ((images, labels),) = split.epoch(epoch, 7)
        return [bool(images[place, 0, 0, 0] > 0.5) for place in labels.argsort().tolist()]

    first = mirrored(0)
    assert 0 < sum(first) < 7
    assert mirrored(1) == mirrored(3) == [not one for one in first]
    assert mirrored(2) == first


def test_boxes_reach_the_last_row_and_column() -> None:
    boxes = draw_boxes(torch.full((2000, 2), 6), 0.3, torch.Generator().manual_seed(0))
    assert bool((boxes[:, 0] + boxes[:, 2] <= 6).all() and (boxes[:, 1] + boxes[:, 3] <= 6).all())
    smaller = boxes[(boxes[:, 2] < 6) & (boxes[:, 3] < 6)]
    assert int((smaller[:, 0] + smaller[:, 2] == 6).sum()) > 0
    assert int((smaller[:, 1] + smaller[:, 3] == 6).sum()) > 0


def test_an_index_without_its_pixels_is_decoded_again(tmp_path: Path) -> None:
    for place in ("train/a", "train/b", "val/a", "val/b"):
        (tmp_path / place).mkdir(parents=True)
        Image.new("RGB", (4, 4), (len(place), 0, 9)).save(tmp_path / place / "0.png")
    tree = read_tree(tmp_path)
    meta = store(tree, tmp_path / "cache", 4, False)
    pixels = (tmp_path / "cache" / "pixels.bin").read_bytes()
    (tmp_path / "cache").rename(tmp_path / "cache.part")
    (tmp_path / "cache.part" / "pixels.bin").write_bytes(pixels[:-1])
    (tmp_path / "cache.part" / "source.txt").write_text(meta["fingerprint"])
    assert store(tree, tmp_path / "cache", 4, False) == meta
    assert (tmp_path / "cache" / "pixels.bin").read_bytes() == pixels


def test_the_fingerprint_knows_the_split(tmp_path: Path) -> None:
    for place in ("a", "b"):
        (tmp_path / place).mkdir()
        for number in range(3):
            Image.new("RGB", (4, 4)).save(tmp_path / place / f"{number}.png")
    tree = read_tree(tmp_path)
    first, *others = tree.test
    assert replace(tree, train=(*tree.train, first), test=tuple(others)).fingerprint() != tree.fingerprint()
