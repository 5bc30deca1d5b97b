"""CIFAR as its authors publish it: pickled batches in an archive, or in its unpacked folder."""

from __future__ import annotations

import hashlib
import pickle
import stat
import struct
import tarfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from suite.errors import UsageError
from tasks.images.decoded import DecodedImages
from tasks.sources.progress import progress

# Errors when a truncated or altered archive is read
DAMAGE = (OSError, tarfile.TarError, EOFError, zlib.error, struct.error, ValueError, OverflowError)
MAX_BYTES = 1 << 28  # size of a batch; a batch of CIFAR-100 has 150 MB


@dataclass(frozen=True)
class PublishedArchive:
    """Description of a published archive.

    Attributes:
        url: Address of the authors.
        filename, md5: Name and MD5 of the archive.
        folder: Folder that the archive unpacks to.
        train, test: Name and MD5 of each batch.
        label_key: Key of the labels in a batch.
    """

    url: str
    filename: str
    md5: str
    folder: str
    train: tuple[tuple[str, str], ...]
    test: tuple[tuple[str, str], ...]
    label_key: str = "labels"

    @classmethod
    def of_torchvision(cls, dataset: Any, label_key: str = "labels") -> PublishedArchive:
        """Return the description in `torchvision.datasets.CIFAR10` or `CIFAR100`."""
        return cls(
            url=dataset.url,
            filename=dataset.filename,
            md5=dataset.tgz_md5,
            folder=dataset.base_folder,
            train=tuple((name, md5) for name, md5 in dataset.train_list),
            test=tuple((name, md5) for name, md5 in dataset.test_list),
            label_key=label_key,
        )


class CifarArchive:
    """An archive or its unpacked folder; a `tasks.sources.cache.Source` with the original images.

    Attributes:
        kind: `original`.
        path: Unpacked folder or archive.
    """

    kind = "original"

    def __init__(self, path: Path, published: PublishedArchive) -> None:
        self.path, self._published = path, published

    def fingerprint(self) -> str:
        """Return a hash of the sizes and modification times of the archive or of its batches."""
        digest = hashlib.sha256()
        batches = [self.path / name for name, _ in self._published.train + self._published.test]
        for path in batches if self.path.is_dir() else [self.path]:
            try:
                facts = path.stat()
            except OSError as error:
                raise self._unusable(path.name, error.strerror or str(error)) from error
            if not stat.S_ISREG(facts.st_mode):  # a read of a pipe or a device may never return
                raise self._unusable(path.name, "it is not a regular file")
            if path != self.path and facts.st_size > MAX_BYTES:
                raise self._unusable(path.name, f"it has more than {MAX_BYTES:,} bytes")
            digest.update(f"{path.name} {facts.st_size} {facts.st_mtime_ns}\n".encode())
        return digest.hexdigest()

    def decode(self) -> DecodedImages:
        """Read all batches, each verified by its MD5 before it is unpickled.

        Raises:
            UsageError: A batch is missing or differs from the published one.
        """
        count = len(self._published.train) + len(self._published.test)
        with progress(f"reading {self.path}", count) as advance:
            if self.path.is_dir():
                return self._decoded(lambda name: (self.path / name).read_bytes(), advance)
            try:
                with tarfile.open(self.path, "r:gz") as archive:
                    return self._decoded(lambda name: _member(archive, f"{self._published.folder}/{name}"), advance)
            except DAMAGE as error:
                raise self._unusable("the archive", str(error)) from error

    def _decoded(self, read: Callable[[str], bytes], advance: Callable[[int], None]) -> DecodedImages:
        train = self._split(self._published.train, read, advance)
        return DecodedImages(*train, *self._split(self._published.test, read, advance))

    def _split(
        self, batches: tuple[tuple[str, str], ...], read: Callable[[str], bytes], advance: Callable[[int], None]
    ) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        images, labels = [], []
        for name, md5 in batches:
            try:
                content = read(name)
            except (*DAMAGE, KeyError) as error:
                raise self._unusable(name, str(error)) from error
            digest = hashlib.md5(content, usedforsecurity=False).hexdigest()
            if digest != md5:
                raise self._unusable(name, f"its MD5 is {digest}, not the published {md5}")
            # Unpickling can run code, so the check comes first.
            batch = pickle.loads(content, encoding="latin1")
            images.append(np.asarray(batch["data"], dtype=np.uint8).reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))
            labels.append(np.asarray(batch[self._published.label_key], dtype=np.int64))
            advance(1)
        return np.ascontiguousarray(np.concatenate(images)), np.concatenate(labels)

    def _unusable(self, name: str, reason: str) -> UsageError:
        # Messages of tarfile may contain line breaks.
        reason = " ".join(reason.split())
        return UsageError(
            f"{self.path}: {name} cannot be used: {reason}; delete {self.path.name}, and it is downloaded again"
        )


def find_archive(data_root: Path, published: PublishedArchive) -> CifarArchive | None:
    """Return the unpacked folder in the data root, or the archive, or `None`."""
    for name in (published.folder, published.filename):
        if (data_root / name).exists():
            return CifarArchive(data_root / name, published)
    return None


def _member(archive: tarfile.TarFile, name: str) -> bytes:
    member = archive.getmember(name)
    if not member.isreg() or member.size > MAX_BYTES:  # a link may point to itself
        raise KeyError(f"{name} is not a regular file of a plausible size")
    file = archive.extractfile(member)
    assert file is not None, "a regular member has content"
    return file.read()
