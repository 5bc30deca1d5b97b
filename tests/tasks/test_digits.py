from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from tasks.digits import FILE, Digits, load_digits

CPU = torch.device("cpu")
DIGITS = Digits()


def test_split_is_1437_and_360_stratified_and_holds_every_digit_once() -> None:
    data = load_digits()
    assert data.train_images.shape == (1437, 16, 16, 1)
    assert data.test_images.shape == (360, 16, 16, 1)
    shares = np.bincount(data.train_labels) / np.bincount(np.concatenate([data.train_labels, data.test_labels]))
    assert np.abs(shares - 1437 / 1797).max() < 0.01
    table = np.loadtxt(FILE, delimiter=",")
    original = np.rint(table[:, :-1].reshape(-1, 8, 8) * 255 / 16).astype(np.uint8)
    counts = np.concatenate([data.train_images, data.test_images])[:, ::2, ::2, 0]
    assert sorted(image.tobytes() for image in counts) == sorted(image.tobytes() for image in original)


def test_each_pixel_is_doubled_and_16_strokes_are_white() -> None:
    images = load_digits().train_images[..., 0]
    for row, column in ((0, 1), (1, 0), (1, 1)):
        np.testing.assert_array_equal(images[:, ::2, ::2], images[:, row::2, column::2])
    assert set(np.unique(images).tolist()) <= {round(count * 255 / 16) for count in range(17)}
    assert (images.min(), images.max()) == (0, 255)


def test_the_split_is_the_same_every_time_and_for_every_preset_and_seed(tmp_path: Path) -> None:
    copies = [DIGITS.prepare(tmp_path / "nowhere", preset) for preset in ("smoke", "quick", "paper")]
    assert len(set(copies)) == 1
    # The split names published results: a change of it must not pass unnoticed.
    assert copies[0].checksum == "93af86e545ada71f26cbae9b21aef4bec88cea5721ec76ff760f6519320ee69a"
    tests = [
        torch.cat([images for images, _ in DIGITS.load(copies[0], DIGITS.recipe("quick"), seed, CPU).test.epoch(0, 90)])
        for seed in (0, 1)
    ]
    assert torch.equal(tests[0], tests[1])
    assert list(tmp_path.iterdir()) == []
