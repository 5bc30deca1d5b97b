"""Small copies of CIFAR-10 in each layout, and a machine without a network."""

from __future__ import annotations

import hashlib
import os
import pickle
import tarfile
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from tasks.cifar10 import CIFAR10, CLASSES
from tasks.cifar_archive import PublishedArchive


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """The tensors are small, and processors may be shared: more threads would only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test writes to the user's own cache."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every address is out of reach, as on a machine without a network."""

    def refuse(*_: object, **__: object) -> None:
        raise urllib.error.URLError("no network in tests")

    monkeypatch.setattr(urllib.request, "urlopen", refuse)


@pytest.fixture
def image_folder() -> Callable[..., dict[str, NDArray[np.uint8]]]:
    """`write_image_folder`, for tests: a folder of image files in CIFAR-10's layout."""
    return write_image_folder


def random_images(count: int, seed: int) -> NDArray[np.uint8]:
    """(count, 32, 32, 3) uint8."""
    return np.random.RandomState(seed).randint(0, 256, (count, 32, 32, 3)).astype(np.uint8)


def write_image_folder(folder: Path, suffix: str, train: int = 3, test: int = 2) -> dict[str, NDArray[np.uint8]]:
    """Write so many images of each class, and return them in the order in which they are to be read."""
    written = {}
    for split, count, seed in (("train", train, 1), ("test", test, 2)):
        images = random_images(count * len(CLASSES), seed)
        for position, pixels in enumerate(images):
            path = folder / split / CLASSES[position // count] / f"{position % count:04d}.{suffix}"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(path)
        written[split] = images
    return written


class SmallArchive:
    """CIFAR's layout with ten images a batch, as a folder's content and as the archive that unpacks to it."""

    def __init__(self, folder: Path) -> None:
        self.images: dict[str, NDArray[np.uint8]] = {}
        self.labels: dict[str, list[int]] = {}
        content: dict[str, bytes] = {}
        for seed, name in enumerate(["data_batch_1", "data_batch_2", "test_batch"]):
            self.images[name] = random_images(10, seed)
            self.labels[name] = np.random.RandomState(seed).permutation(10).tolist()
            rows = self.images[name].transpose(0, 3, 1, 2).reshape(10, -1)
            content[name] = pickle.dumps({"data": rows, "labels": self.labels[name]}, protocol=2)
        self.unpacked = folder / "cifar-10-batches-py"
        self.unpacked.mkdir(parents=True)
        for name, data in content.items():
            (self.unpacked / name).write_bytes(data)
        self.packed = folder / "cifar-10-python.tar.gz"
        with tarfile.open(self.packed, "w:gz") as archive:
            archive.add(self.unpacked, arcname=self.unpacked.name)
        md5 = {name: hashlib.md5(data).hexdigest() for name, data in content.items()}
        self.published = PublishedArchive(
            url="https://authors.invalid/cifar-10-python.tar.gz",
            filename=self.packed.name,
            md5=hashlib.md5(self.packed.read_bytes()).hexdigest(),
            folder=self.unpacked.name,
            train=(("data_batch_1", md5["data_batch_1"]), ("data_batch_2", md5["data_batch_2"])),
            test=(("test_batch", md5["test_batch"]),),
        )


@pytest.fixture
def small_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SmallArchive:
    """A small archive, made outside of any data root, that the task takes for the published one."""
    archive = SmallArchive(tmp_path / "made")
    monkeypatch.setattr(CIFAR10, "_published", lambda self: archive.published)
    return archive


@pytest.fixture
def task() -> CIFAR10:
    return CIFAR10()


# Read before any test changes HOME.
REAL_DATA = Path(os.environ.get("PDT_DATA", "~/.cache/pdt-data")).expanduser()


@pytest.fixture
def real_data() -> Path:
    """The data root of this machine, if the unpacked JPEG copy lies there."""
    if not (REAL_DATA / "cifar10" / "train" / "airplane").is_dir():
        pytest.skip(f"{REAL_DATA} has no cifar10/train: unpack shared/data there, or set PDT_DATA")
    return REAL_DATA
