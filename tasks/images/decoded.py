"""Decoded images with their labels, their checksum, and the file that keeps them."""

from __future__ import annotations

import hashlib
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from suite import files

LARGEST = 1 << 36  # bytes of a file of decoded images, far above that of any task


class DamagedFile(Exception):
    """A file of decoded images is cut short, altered, or not such a file at all."""


@dataclass(frozen=True, eq=False)
class DecodedImages:
    """A data set of small images in memory.

    Attributes:
        train_images, test_images: (N, H, W, C) uint8, 0 .. 255.
        train_labels, test_labels: (N,) int64.
    """

    train_images: NDArray[np.uint8]
    train_labels: NDArray[np.int64]
    test_images: NDArray[np.uint8]
    test_labels: NDArray[np.int64]

    def fault(self) -> str:
        """What is wrong with the arrays' types and shapes; empty if nothing is."""
        for split in ("train", "test"):
            images, labels = getattr(self, f"{split}_images"), getattr(self, f"{split}_labels")
            if images.dtype != np.uint8 or images.ndim != 4 or not len(images):
                return f"{split}_images are {images.shape} {images.dtype}, not (N, H, W, C) uint8"
            if labels.dtype != np.int64 or labels.shape != images.shape[:1] or labels.min() < 0:
                return f"{split}_labels are {labels.shape} {labels.dtype}, not ({len(images)},) int64 from 0"
        return ""

    def checksum(self) -> str:
        """SHA-256, in hex, of shapes, pixels and labels (little-endian), in the order of the attributes."""
        digest = hashlib.sha256()
        for field in fields(self):
            array = getattr(self, field.name)
            digest.update(f"{field.name} {array.shape}\n".encode())
            digest.update(np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<")).data)
        return digest.hexdigest()


def save_decoded(path: Path, data: DecodedImages, fingerprint: str) -> str:
    """Write `path` so that it is either whole or as it was before, and return the images' checksum.

    Args:
        path: in a folder that exists. Two processes may write it at once; the later one stays.
        data: what to keep.
        fingerprint: of the source, to notice when that has changed.

    Raises:
        OSError: if it cannot be written; no part of it is left.
    """
    checksum = data.checksum()
    arrays = {field.name: getattr(data, field.name) for field in fields(data)}
    with files.replacing(path) as file:
        np.savez(file, checksum=np.array(checksum), fingerprint=np.array(fingerprint), **arrays)
    return checksum


def load_decoded(path: Path) -> tuple[DecodedImages, str]:
    """Read what `save_decoded` wrote, and verify it against the checksum inside.

    Returns:
        The images and their checksum.

    Raises:
        FileNotFoundError: if there is no such file.
        DamagedFile: if it does not hold what it held when it was written.
    """
    with _opened(path) as file:
        data = DecodedImages(**{field.name: file[field.name] for field in fields(DecodedImages)})
        recorded = str(file["checksum"])
        if fault := data.fault():
            raise ValueError(fault)
    if data.checksum() != recorded:
        raise DamagedFile(f"{path}: its images do not have the checksum that it records")
    return data, recorded


def read_fingerprint(path: Path) -> str:
    """The fingerprint of the source that `path` was decoded from; raises as `load_decoded` does."""
    with _opened(path) as file:
        return str(file["fingerprint"])


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """The arrays of a file. A pipe or a device, from which a read may never end, is no such file."""
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode) or found.st_size > LARGEST:
            raise ValueError("not a regular file of a possible size")
        with np.load(path, allow_pickle=False) as file:
            yield file
    except FileNotFoundError:
        raise
    except Exception as error:  # zipfile, zlib and numpy each have their own words for a damaged file
        raise DamagedFile(f"{path}: {type(error).__name__}: {error}") from error
