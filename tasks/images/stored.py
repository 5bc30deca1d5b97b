"""Images of different sizes, read one at a time, from a memory-mapped cache that all processes share or from memory.

A cache is a folder, which `tasks.sources.image_cache` writes:

    pixels.bin    RGB pixels of all images, one after the other, (H, W, 3) uint8
    index.bin     one record per file (`RECORD`): place, size, class, split, what was converted, CRC-32 of the pixels
    cache.json    version, fingerprint of the source, checksum of index.bin, skipped files, and counts of conversions
"""

from __future__ import annotations

import hashlib
import json
import zlib
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from suite.errors import UsageError

VERSION = 1
SPLITS = ("train", "test")
RECORD = np.dtype(
    [
        *(("offset", "<u8"), ("height", "<u4"), ("width", "<u4"), ("label", "<u4"), ("crc", "<u4")),
        *(("split", "u1"), ("skipped", "u1"), ("converted", "u1")),
    ]
)


class DamagedCache(UsageError):
    """A cache of decoded images has other content than was written."""


class ImageSource(Protocol):
    """Images of one split, read one at a time.

    Attributes:
        labels: (N,) int64 class of each image.
        sizes: (N, 2) int64 height and width of each image.
    """

    labels: NDArray[np.int64]
    sizes: NDArray[np.int64]

    def read(self, index: int) -> NDArray[np.uint8]:
        """Return the pixels of an image, (H, W, 3) uint8. The caller must not change them."""


class StoredImages:
    """One split of a cache; implements `ImageSource`. The first read of an image verifies its CRC-32."""

    def __init__(self, path: Path, split: str, checksum: str) -> None:
        """Open a split.

        Args:
            path: Folder of the cache.
            split: `train` or `test`.
            checksum: Checksum that `store` returned.

        Raises:
            DamagedCache: A file is missing or damaged, or the checksum differs.
        """
        records, meta = read_index(path)
        if meta["checksum"] != checksum:
            raise DamagedCache(f"{path}: contains other images (checksum {meta['checksum'][:8]}, not {checksum[:8]})")
        records = records[(records["split"] == SPLITS.index(split)) & (records["skipped"] == 0)]
        self._path = path / "pixels.bin"
        self._pixels = np.asarray(np.memmap(self._path, dtype=np.uint8, mode="r"))  # an array is sliced faster
        self._offsets, self._checksums = records["offset"].astype(np.int64), records["crc"]
        self._verified = np.zeros(len(records), dtype=bool)
        self.labels = records["label"].astype(np.int64)
        self.sizes = np.stack([records["height"], records["width"]], axis=1).astype(np.int64)

    def read(self, index: int) -> NDArray[np.uint8]:
        """Return the pixels of an image, (H, W, 3) uint8.

        Raises:
            DamagedCache: The pixels are not those that were written.
        """
        height, width = self.sizes[index]
        offset = self._offsets[index]
        pixels = self._pixels[offset : offset + 3 * height * width]
        if not self._verified[index]:
            if zlib.crc32(pixels.data) != self._checksums[index]:
                raise DamagedCache(
                    f"{self._path}: the pixels of image {index} do not match their checksum; "
                    f"delete {self._path.parent}, and run the command again"
                )
            self._verified[index] = True
        return pixels.reshape(height, width, 3)


class MemoryImages:
    """Images (N, H, W, 3) uint8 in memory; implements `ImageSource`."""

    def __init__(self, images: NDArray[np.uint8], labels: NDArray[np.int64]) -> None:
        self._images, self.labels = images, labels
        self.sizes = np.tile(np.array(images.shape[1:3], dtype=np.int64), (len(images), 1))

    def read(self, index: int) -> NDArray[np.uint8]:
        """Return the pixels of an image, (H, W, 3) uint8."""
        return np.asarray(self._images[index])


def read_cache(path: Path) -> dict[str, Any] | None:
    """Return the content of `cache.json`; `None` if there is no cache, or it is damaged or of another version."""
    try:
        return read_index(path)[1]
    except DamagedCache:
        return None


def read_index(path: Path) -> tuple[NDArray[Any], dict[str, Any]]:
    """Return the records and the content of `cache.json` of a cache.

    Raises:
        DamagedCache: A file is missing or damaged, or of another version.
    """
    try:
        meta = json.loads((path / "cache.json").read_text())
        records = np.fromfile(path / "index.bin", dtype=RECORD)
        size = (path / "pixels.bin").stat().st_size
        if meta["version"] != VERSION or checksum_of(records) != meta["checksum"] or size != end_of_pixels(records):
            raise DamagedCache(f"{path}: is incomplete, damaged or of another version")
        return records, dict(meta)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DamagedCache(f"{path}: {type(error).__name__}: {error}") from error


def end_of_pixels(records: NDArray[Any]) -> int:
    """Return the number of bytes of all pixels that the records of an index describe."""
    if not len(records):
        return 0
    last = records[-1]
    return int(last["offset"]) + 3 * int(last["height"]) * int(last["width"])


def checksum_of(records: NDArray[Any]) -> str:
    """Return the SHA-256 of the index, which contains a CRC-32 of every image."""
    return hashlib.sha256(records.tobytes()).hexdigest()
