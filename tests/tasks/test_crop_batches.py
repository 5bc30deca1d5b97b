"""What remains of epochs, boxes and decodings at their ends."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from tasks.images.augmentation import Normalization
from tasks.images.crops import CropBatches
from tasks.images.stored import MemoryImages
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


def test_the_fingerprint_knows_the_split(tmp_path: Path) -> None:
    for place in ("a", "b"):
        (tmp_path / place).mkdir()
        for number in range(3):
            Image.new("RGB", (4, 4)).save(tmp_path / place / f"{number}.png")
    tree = read_tree(tmp_path)
    first, *others = tree.test
    assert replace(tree, train=(*tree.train, first), test=tuple(others)).fingerprint() != tree.fingerprint()
