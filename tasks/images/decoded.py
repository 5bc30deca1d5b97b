"""Decoded images with their labels, their checksum, and the file that stores them."""

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

MAX_BYTES = 1 << 36  # size of a file of decoded images; far more than any task needs


class DamagedFile(Exception):
    """A file of decoded images is truncated, altered or of another format."""


@dataclass(frozen=True, eq=False)
class DecodedImages:
    """A data set of small images in memory.

    Attributes:
        train_images, test_images: (N, H, W, C) uint8, 0 to 255.
        train_labels, test_labels: (N,) int64, from 0.
    """

    train_images: NDArray[np.uint8]
    train_labels: NDArray[np.int64]
    test_images: NDArray[np.uint8]
    test_labels: NDArray[np.int64]

    def fault(self) -> str:
        """Return a description of a wrong type or shape; empty if the arrays are valid."""
        for split in ("train", "test"):
            images, labels = getattr(self, f"{split}_images"), getattr(self, f"{split}_labels")
            if images.dtype != np.uint8 or images.ndim != 4 or not len(images):
                return f"{split}_images are {images.shape} {images.dtype}, not (N, H, W, C) uint8"
            if labels.dtype != np.int64 or labels.shape != images.shape[:1] or labels.min() < 0:
                return f"{split}_labels are {labels.shape} {labels.dtype}, not ({len(images)},) int64 from 0"
        return ""

    def checksum(self) -> str:
        """Return the SHA-256, in hex, of shapes, pixels and labels (little-endian), in the order of the attributes."""
        digest = hashlib.sha256()
        for field in fields(self):
            array = getattr(self, field.name)
            digest.update(f"{field.name} {array.shape}\n".encode())
            digest.update(np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<")).data)
        return digest.hexdigest()


def save_decoded(path: Path, data: DecodedImages, fingerprint: str) -> str:
    """Write images atomically, and return their checksum.

    Args:
        path: Path in an existing folder. If two processes write it at once, the later one wins.
        data: Images and labels.
        fingerprint: Fingerprint of the source, which shows a change of the source.

    Raises:
        OSError: The file cannot be written. No partial file is left.
    """
    checksum = data.checksum()
    arrays = {field.name: getattr(data, field.name) for field in fields(data)}
    with files.replacing(path) as file:
        np.savez(file, checksum=np.array(checksum), fingerprint=np.array(fingerprint), **arrays)
    return checksum


def load_decoded(path: Path) -> tuple[DecodedImages, str]:
    """Read a file that `save_decoded` wrote, and verify its checksum.

    Returns:
        The images and their checksum.

    Raises:
        FileNotFoundError: The file does not exist.
        DamagedFile: The content is not what was written.
    """
    with _opened(path) as file:
        data = DecodedImages(**{field.name: file[field.name] for field in fields(DecodedImages)})
        recorded = str(file["checksum"])
        if fault := data.fault():
            raise ValueError(fault)
    if data.checksum() != recorded:
        raise DamagedFile(f"{path}: the images do not match the recorded checksum")
    return data, recorded


def read_fingerprint(path: Path) -> str:
    """Return the fingerprint of the source of a file; errors as in `load_decoded`."""
    with _opened(path) as file:
        return str(file["fingerprint"])


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """Open the arrays of a file. Pipes and devices are refused, because a read may never return."""
    try:
        facts = path.stat()
        if not stat.S_ISREG(facts.st_mode) or facts.st_size > MAX_BYTES:
            raise ValueError("not a regular file of a possible size")
        with np.load(path, allow_pickle=False) as file:
            yield file
    except FileNotFoundError:
        raise
    except Exception as error:  # zipfile, zlib and numpy raise different exceptions for damaged files
        raise DamagedFile(f"{path}: {type(error).__name__}: {error}") from error
