"""Images are decoded once, noticed when they change, and never half written."""

from __future__ import annotations

import logging
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_copies import write_image_folder

from suite.errors import UsageError
from tasks.cifar10 import CIFAR10
from tasks.images.splits import DecodedImages
from tasks.sources.cache import load_decoded, save_decoded
from tasks.sources.image_folder import ImageFolder


@pytest.fixture
def decodings(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The folders decoded so far."""
    seen: list[Path] = []
    decode = ImageFolder.decode
    monkeypatch.setattr(ImageFolder, "decode", lambda self: seen.append(self.path) or decode(self))
    return seen


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A data root with a small folder of PNG files."""
    write_image_folder(tmp_path / "root" / "cifar10", "png")
    return tmp_path / "root"


def small(seed: int = 0) -> DecodedImages:
    images = np.random.RandomState(seed).randint(0, 256, (6, 4, 4, 3)).astype(np.uint8)
    labels = np.arange(6, dtype=np.int64)
    return DecodedImages(images[:4], labels[:4], images[4:], labels[4:])


def test_second_prepare_decodes_nothing(task: CIFAR10, root: Path, decodings: list[Path]) -> None:
    first = task.prepare(root, "quick")
    assert task.prepare(root, "paper") == first
    assert len(decodings) == 1
    assert Path(first.path).parent == root / ".pdt-cache"


@pytest.mark.parametrize("damage", ["altered", "cut", "empty", "foreign"])
def test_damaged_cache_is_decoded_again_and_said_so(
    task: CIFAR10, root: Path, decodings: list[Path], damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    first = task.prepare(root, "quick")
    path = Path(first.path)
    content = bytearray(path.read_bytes())
    if damage == "altered":
        # In the middle of the training images.
        content[30_000] ^= 1
    path.write_bytes({"altered": bytes(content), "cut": bytes(content[:9000]), "empty": b"", "foreign": b"abc"}[damage])
    with caplog.at_level(logging.WARNING):
        assert task.prepare(root, "quick") == first
    assert len(decodings) == 2
    assert "; decoding again" in caplog.text
    assert load_decoded(path)[1] == first.checksum


@pytest.mark.parametrize("change", ["touched", "added", "removed"])
def test_changed_source_is_decoded_again_into_the_same_file(
    task: CIFAR10, root: Path, decodings: list[Path], change: str
) -> None:
    first = task.prepare(root, "quick")
    image = root / "cifar10" / "train" / "bird" / "0002.png"
    if change == "touched":
        os.utime(image, ns=(1, 1))
    elif change == "added":
        image.with_name("0003.png").write_bytes(image.read_bytes())
    else:
        image.unlink()
    second = task.prepare(root, "quick")
    assert len(decodings) == 2
    assert (second.checksum == first.checksum) == (change == "touched")
    assert [path.name for path in (root / ".pdt-cache").iterdir()] == [Path(first.path).name]


def test_nothing_is_left_of_a_write_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_decoded(tmp_path / "x.npz", small(0), "before")

    def break_off(file: Any, **_: Any) -> None:
        file.write(b"half")
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(np, "savez", break_off)
        with pytest.raises(OSError, match="No space left"):
            save_decoded(tmp_path / "x.npz", small(1), "after")
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["x.npz"]
    assert load_decoded(tmp_path / "x.npz")[1] == small(0).checksum()


def test_a_full_disk_is_one_line(task: CIFAR10, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", full)
    with pytest.raises(UsageError, match="cannot store the decoded images: No space left on device"):
        task.prepare(root, "quick")
    assert list((root / ".pdt-cache").iterdir()) == []


def test_root_that_cannot_be_written_uses_the_users_cache(
    task: CIFAR10, root: Path, decodings: list[Path], caplog: pytest.LogCaptureFixture
) -> None:
    # A file with the name of the folder acts as a read-only disk: tests may run as root, who can write anywhere.
    (root / ".pdt-cache").write_text("")
    with caplog.at_level(logging.WARNING):
        copy = task.prepare(root, "quick")
    assert Path(copy.path).parent == Path.home() / ".cache" / "pdt-data" / ".pdt-cache"
    assert "is not writable" in caplog.text
    assert task.prepare(root, "quick") == copy
    assert len(decodings) == 1


def test_preparing_twice_at_once_gives_one_good_file(task: CIFAR10, root: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        copies = list(pool.map(lambda _: task.prepare(root, "quick"), range(4)))
    assert len(set(copies)) == 1
    assert len(list((root / ".pdt-cache").iterdir())) == 1
    assert load_decoded(Path(copies[0].path))[1] == copies[0].checksum


def test_checksum_sees_pixels_labels_and_shapes() -> None:
    data = small()
    others = [
        small(1),
        DecodedImages(data.train_images, data.train_labels[::-1].copy(), data.test_images, data.test_labels),
        DecodedImages(data.train_images.reshape(4, 2, 8, 3), data.train_labels, data.test_images, data.test_labels),
    ]
    assert data.checksum() == small().checksum()
    assert len({data.checksum(), *(other.checksum() for other in others)}) == 4
