"""CIFAR-100: its archive, its names, PruneTrain's recipe."""

from __future__ import annotations

import hashlib
import pickle
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from torchvision import datasets

from suite.errors import MissingData
from tasks.cifar100 import CIFAR100, CLASSES
from tasks.sources.cache import load_decoded


def test_fine_labels_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "cifar-100-python"
    folder.mkdir()
    random, batches = np.random.RandomState(0), {}
    for name, count in (("train", 6), ("test", 3)):
        fine = random.randint(0, 100, count).tolist()
        rows = random.randint(0, 256, (count, 3072)).astype(np.uint8)
        batches[name] = {"data": rows, "fine_labels": fine, "coarse_labels": [0] * count}
        (folder / name).write_bytes(pickle.dumps(batches[name], protocol=2))
    (folder / "meta").write_bytes(pickle.dumps({"fine_label_names": CLASSES}, protocol=2))
    md5 = {name: hashlib.md5((folder / name).read_bytes()).hexdigest() for name in (*batches, "meta")}

    class Published(datasets.CIFAR100):
        train_list: ClassVar = [["train", md5["train"]]]
        test_list: ClassVar = [["test", md5["test"]]]
        meta: ClassVar = {**datasets.CIFAR100.meta, "md5": md5["meta"]}

    monkeypatch.setattr(CIFAR100, "_published", lambda self: Published)
    copy = CIFAR100().prepare(tmp_path, "quick")
    assert (copy.kind, copy.note) == ("original", "CIFAR-100 as published")
    data, _ = load_decoded(Path(copy.path))
    assert data.train_labels.tolist() == batches["train"]["fine_labels"]
    assert data.test_images.shape == (3, 32, 32, 3)
    # Channels are planes in a row of the archive.
    assert data.train_images[0, 0, 1].tolist() == batches["train"]["data"][0, [1, 1025, 2049]].tolist()


@pytest.mark.parametrize("preset", ["smoke", "quick", "paper"])
def test_without_data_there_is_one_line(tmp_path: Path, preset: str) -> None:
    with pytest.raises(MissingData, match=r"task cifar100: .* data that needs no download: --task digits") as raised:
        CIFAR100().prepare(tmp_path, preset)
    assert "\n" not in str(raised.value)
