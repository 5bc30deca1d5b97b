"""The sample of real images that the package carries."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import torch

from tasks.cifar10 import CIFAR10
from tasks.sources.cifar10_sample import FILE


def test_sample_file_is_about_a_megabyte_and_names_its_origin() -> None:
    assert FILE.stat().st_size < 1_200_000
    with np.load(FILE) as file:
        digest = hashlib.sha256(file["jpeg"])
        for name in ("lengths", "labels"):
            digest.update(file[name].astype("<i8").tobytes())
        digest.update(str(file["num_train"]).encode())
    page = FILE.with_suffix(".md").read_text(encoding="utf-8")
    for part in ("Krizhevsky", "quality 75", "4:2:0", "seed 0", digest.hexdigest(), "smoke"):
        assert part in page


def test_smoke_trains_on_the_sample_and_says_so(task: CIFAR10, tmp_path: Path) -> None:
    copy = task.prepare(tmp_path / "nowhere", "smoke")
    assert copy.kind == "sample"
    assert copy.label.startswith("sample-")
    assert "accuracies say nothing" in copy.note
    recipe = task.recipe("smoke")
    assert recipe.epochs >= 3
    splits = task.load(copy, recipe, 0, torch.device("cpu"))
    assert (splits.train.num_samples, splits.test.num_samples, splits.validation) == (2000, 1000, None)
    assert splits.train.steps_per_epoch(recipe.batch_size) == 2000 // recipe.batch_size
    images, labels = next(iter(splits.train.epoch(0, recipe.batch_size)))
    assert images.shape == (recipe.batch_size, 3, 32, 32)
    assert labels.unique().numel() == 10
