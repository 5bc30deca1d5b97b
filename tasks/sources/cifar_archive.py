"""CIFAR as its authors publish it: pickled batches in an archive, or in its unpacked folder; read by torchvision."""

from __future__ import annotations

import hashlib
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from suite.errors import UsageError
from tasks.images.splits import DecodedImages
from tasks.sources.progress import progress


class CifarArchive:
    """An archive or its unpacked folder; a `tasks.sources.cache.Source` with the original images.

    Attributes:
        kind: `original`.
        path: Unpacked folder or archive.
    """

    kind = "original"

    def __init__(self, path: Path, dataset: Any) -> None:
        """Name the copy.

        Args:
            path: Unpacked folder or archive.
            dataset: torchvision's class that reads the unpacked folder.
        """
        self.path, self._dataset = path, dataset

    def fingerprint(self) -> str:
        """Return a hash of the sizes and modification times of the archive or of its batches."""
        digest = hashlib.sha256()
        for path in sorted(self.path.iterdir()) if self.path.is_dir() else [self.path]:
            facts = path.lstat()
            digest.update(f"{path.name} {facts.st_size} {facts.st_mtime_ns}\n".encode(errors="surrogateescape"))
        return digest.hexdigest()

    def decode(self) -> DecodedImages:
        """Read all batches, each verified by its MD5 before it is unpickled.

        Raises:
            UsageError: A file is missing or differs from the published one.
        """
        # torchvision takes a second to import. Images that are already decoded do not need it.
        from torchvision.datasets.utils import check_integrity

        with progress(f"reading {self.path}", 2) as advance, tempfile.TemporaryDirectory() as temporary:
            root = self.path.parent
            try:
                if not self.path.is_dir():
                    if not check_integrity(self.path, self._dataset.tgz_md5):
                        raise RuntimeError("the MD5 of the archive is another one")
                    root = Path(temporary)
                    with tarfile.open(self.path) as archive:
                        archive.extractall(root, filter="data")
                splits = []
                for training in (True, False):
                    split = self._dataset(root, train=training)
                    splits += [np.ascontiguousarray(split.data), np.array(split.targets, dtype=np.int64)]
                    advance(1)
            except (OSError, RuntimeError) as error:  # torchvision raises the second for a missing or changed file
                raise UsageError(
                    f"{self.path}: is not as published, or incomplete ({error}); delete {self.path.name}, and it is "
                    "downloaded again"
                ) from error
        return DecodedImages(*splits)


def find_archive(data_root: Path, dataset: Any) -> CifarArchive | None:
    """Return the unpacked folder in the data root, or the archive, or `None`."""
    folder, archive = data_root / dataset.base_folder, data_root / dataset.filename
    path = folder if folder.is_dir() else archive
    return CifarArchive(path, dataset) if path.exists() else None
