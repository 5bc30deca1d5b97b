"""Decoded images with their labels, their checksum, and the file that stores them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from suite import files


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


def save_decoded(path: Path, data: DecodedImages, fingerprint: str) -> None:
    """Write images atomically.

    Args:
        path: Path in an existing folder. If two processes write it at once, the later one wins.
        data: Images and labels.
        fingerprint: Fingerprint of the source, which shows a change of the source.

    Raises:
        OSError: The file cannot be written. No partial file is left.
    """
    with files.replacing(path) as file:
        np.savez(file, fingerprint=np.array(fingerprint), **vars(data))


def load_decoded(path: Path, fingerprint: str = "") -> tuple[DecodedImages, str]:
    """Read a file that `save_decoded` wrote.

    Args:
        path: File.
        fingerprint: Fingerprint of the source; empty to read the images of any source.

    Returns:
        The images and their checksum.

    Raises:
        FileNotFoundError: The file does not exist.
        DamagedFile: The file is damaged, or the source has another fingerprint.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            if fingerprint and str(file["fingerprint"]) != fingerprint:
                raise DamagedFile(f"{path}: the files from which it was decoded have changed")
            data = DecodedImages(**{field.name: file[field.name] for field in fields(DecodedImages)})
            return data, data.checksum()
    except (FileNotFoundError, DamagedFile):
        raise
    except Exception as error:  # zipfile, zlib and numpy raise different exceptions for damaged files
        raise DamagedFile(f"{path}: {type(error).__name__}: {error}") from error
