"""Small copies of CIFAR-10, as image files and as the published archive."""

from __future__ import annotations

import hashlib
import pickle
import tarfile
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from torchvision.datasets import CIFAR10

from tasks.cifar10 import CLASSES
from tasks.imagefolder import ImageFolderTask


def image_folder(preset: str = "quick", **parameters: Any) -> ImageFolderTask:
    """Return the task of a folder with the preset's defaults and other values of some parameters."""
    return ImageFolderTask(**{**ImageFolderTask.defaults(preset), **parameters})


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
        content["batches.meta"] = pickle.dumps({"label_names": CLASSES}, protocol=2)
        self.unpacked = folder / "cifar-10-batches-py"
        self.unpacked.mkdir(parents=True)
        for name, data in content.items():
            (self.unpacked / name).write_bytes(data)
        self.packed = folder / "cifar-10-python.tar.gz"
        with tarfile.open(self.packed, "w:gz") as archive:
            archive.add(self.unpacked, arcname=self.unpacked.name)
        md5 = {name: hashlib.md5(data).hexdigest() for name, data in content.items()}

        class Published(CIFAR10):
            url = "https://authors.invalid/cifar-10-python.tar.gz"
            filename = self.packed.name
            tgz_md5 = hashlib.md5(self.packed.read_bytes()).hexdigest()
            base_folder = self.unpacked.name
            train_list: ClassVar = [[name, md5[name]] for name in ("data_batch_1", "data_batch_2")]
            test_list: ClassVar = [["test_batch", md5["test_batch"]]]
            meta: ClassVar = {"filename": "batches.meta", "key": "label_names", "md5": md5["batches.meta"]}

        self.published = Published
