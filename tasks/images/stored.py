"""Images of different sizes in one memory-mapped file, decoded once and shared by all processes.

A cache is a folder:

    pixels.bin    RGB pixels of all images, one after the other, (H, W, 3) uint8
    index.bin     one record per file (`RECORD`): place, size, class, split, what was converted, CRC-32 of the pixels
    cache.json    version, fingerprint of the source, checksum of index.bin, skipped files, and counts of conversions

It is written to a folder whose name ends in `.part`, which gets its final name when it is complete. An interrupted
decoding continues there.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray

from suite import files
from suite.errors import UsageError
from tasks.images.decoding import CONVERSIONS, BadImage, Decoded, decode, image_size
from tasks.sources.image_tree import ImageTree, TreeFile
from tasks.sources.progress import progress

VERSION = 1
CHUNK = 256
PROBED = 64  # images whose size is read to estimate the size of the cache
SPLITS = ("train", "test")
RECORD = np.dtype(
    [
        *(("offset", "<u8"), ("height", "<u4"), ("width", "<u4"), ("label", "<u4"), ("crc", "<u4")),
        *(("split", "u1"), ("skipped", "u1"), ("converted", "u1")),
    ]
)


class DamagedCache(Exception):
    """A cache of decoded images is not what was written."""


class ImageSource(Protocol):
    """Images of one split, read one at a time.

    Attributes:
        labels: (N,) int64 class of each image.
        sizes: (N, 2) int64 height and width of each image.
    """

    labels: NDArray[np.int64]
    sizes: NDArray[np.int64]

    def read(self, index: int) -> NDArray[np.uint8]:
        """Return the pixels of an image, (H, W, 3) uint8, which must not be changed."""


class StoredImages:
    """One split of a cache; implements `ImageSource`. The first read of an image verifies its CRC-32."""

    def __init__(self, path: Path, split: str, checksum: str) -> None:
        """Open a split.

        Args:
            path: Folder of the cache.
            split: `train` or `test`.
            checksum: Checksum that `store` returned.

        Raises:
            DamagedCache: A file is missing or damaged, or the checksum is another one.
        """
        records, meta = _read_index(path)
        if meta["checksum"] != checksum:
            raise DamagedCache(f"{path}: contains other images (checksum {meta['checksum'][:8]}, not {checksum[:8]})")
        records = records[(records["split"] == SPLITS.index(split)) & (records["skipped"] == 0)]
        self._path, self._records = path / "pixels.bin", records
        self._pixels = np.memmap(self._path, dtype=np.uint8, mode="r")
        self._verified = np.zeros(len(records), dtype=bool)
        self.labels = records["label"].astype(np.int64)
        self.sizes = np.stack([records["height"], records["width"]], axis=1).astype(np.int64)

    def read(self, index: int) -> NDArray[np.uint8]:
        """Return the pixels of an image, (H, W, 3) uint8.

        Raises:
            DamagedCache: The pixels are not those that were written.
        """
        record = self._records[index]
        height, width, offset = int(record["height"]), int(record["width"]), int(record["offset"])
        pixels = self._pixels[offset : offset + 3 * height * width]
        if not self._verified[index]:
            if zlib.crc32(pixels.data) != record["crc"]:
                raise DamagedCache(f"{self._path}: the pixels of image {index} do not match their checksum")
            self._verified[index] = True
        return np.asarray(pixels.reshape(height, width, 3))


class MemoryImages:
    """Images (N, H, W, 3) uint8 in memory; implements `ImageSource`."""

    def __init__(self, images: NDArray[np.uint8], labels: NDArray[np.int64]) -> None:
        self._images, self.labels = images, labels
        self.sizes = np.tile(np.array(images.shape[1:3], dtype=np.int64), (len(images), 1))

    def read(self, index: int) -> NDArray[np.uint8]:
        """Return the pixels of an image, (H, W, 3) uint8."""
        return np.asarray(self._images[index])


class FileImages:
    """One split of a folder, whose files are decoded at every read; implements `ImageSource`."""

    def __init__(self, tree: ImageTree, split: str, shorter_side: int) -> None:
        """Read the size of every image from the head of its file.

        Raises:
            UsageError: A file is not an image.
        """
        self._root, self._side = tree.root, shorter_side
        self._files: tuple[TreeFile, ...] = getattr(tree, split)
        self.labels = np.array([file.label for file in self._files], dtype=np.int64)
        try:
            widths_heights = [image_size(tree.root / file.path) for file in self._files]
        except BadImage as error:
            raise UsageError(str(error)) from error
        sizes = [_reduced(height, width, shorter_side) for width, height in widths_heights]
        self.sizes = np.array(sizes, dtype=np.int64).reshape(-1, 2)

    def read(self, index: int) -> NDArray[np.uint8]:
        """Decode an image.

        Raises:
            UsageError: The file is not an image.
        """
        try:
            return decode(self._root / self._files[index].path, self._side).pixels
        except BadImage as error:
            raise UsageError(str(error)) from error


def store(tree: ImageTree, path: Path, shorter_side: int, skip: bool) -> dict[str, Any]:
    """Decode a folder into a cache, unless the cache is complete and the folder unchanged.

    Args:
        tree: Files of the folder.
        path: Folder of the cache; its parent exists.
        shorter_side: Images whose shorter side is longer are reduced to it.
        skip: Whether files that are not images are left out instead of refused.

    Returns:
        The content of `cache.json`.

    Raises:
        UsageError: A file is not an image, or the disk is too small.
        OSError: The cache cannot be written.
    """
    fingerprint = f"{VERSION}-{shorter_side}-{'skip' if skip else 'refuse'}-{tree.fingerprint()}"
    with FileLock(path.with_name(f"{path.name}.lock")):
        found = read_cache(path)
        if found is not None and found["fingerprint"] == fingerprint:
            return found
        part = path.with_name(f"{path.name}.part")
        _begin(part, fingerprint)
        _announce(tree, path, shorter_side)
        _decode_all(tree, part, shorter_side, skip)
        records = np.fromfile(part / "index.bin", dtype=RECORD)
        meta = {
            "version": VERSION,
            "fingerprint": fingerprint,
            "checksum": _checksum(records),
            "skipped": [file.path for file, skipped in zip(tree.files, records["skipped"], strict=True) if skipped],
            "converted": {
                name: int(count)
                for name, count in zip(
                    CONVERSIONS, np.bincount(records["converted"], minlength=len(CONVERSIONS)), strict=True
                )
                if name and count
            },
        }
        files.write(part / "cache.json", json.dumps(meta))
        (part / "source.txt").unlink()
        if path.exists():
            shutil.rmtree(path)
        part.rename(path)
        return meta


def read_cache(path: Path) -> dict[str, Any] | None:
    """Return the content of `cache.json`; `None` if there is no cache, or it is damaged or of another version."""
    try:
        return _read_index(path)[1]
    except DamagedCache:
        return None


def _read_index(path: Path) -> tuple[NDArray[Any], dict[str, Any]]:
    try:
        meta = json.loads((path / "cache.json").read_text())
        records = np.fromfile(path / "index.bin", dtype=RECORD)
        size = (path / "pixels.bin").stat().st_size
        if meta["version"] != VERSION or _checksum(records) != meta["checksum"] or size != _end(records):
            raise DamagedCache(f"{path}: is incomplete, damaged or of another version")
        return records, dict(meta)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DamagedCache(f"{path}: {type(error).__name__}: {error}") from error


def _begin(part: Path, fingerprint: str) -> None:
    """Keep an interrupted decoding of the same files, and remove one of others."""
    source = part / "source.txt"
    if part.exists() and (not source.is_file() or source.read_text() != fingerprint):
        shutil.rmtree(part)
    part.mkdir(exist_ok=True)
    files.write(source, fingerprint)


def _announce(tree: ImageTree, path: Path, shorter_side: int) -> None:
    """Print the expected size of the cache, and check that the disk has room for it.

    Raises:
        UsageError: The disk is too small.
    """
    every = tree.files
    total = []
    for file in every[:: max(1, len(every) // PROBED)]:
        try:
            width, height = image_size(tree.root / file.path)
        except BadImage:
            continue  # reported, with its path, when it is decoded
        high, wide = _reduced(height, width, shorter_side)
        total.append(3 * high * wide)
    expected = len(every) * (sum(total) / len(total) if total else 0)
    free = shutil.disk_usage(path.parent).free
    text = f"{expected / 1e9:.2g} GB" if expected >= 1e9 else f"{expected / 1e6:.0f} MB"
    print(f"pdt: the decoded images of {tree.root} take about {text} in {path}", flush=True)
    if expected > free:
        raise UsageError(
            f"{path.parent}: has {free / 1e9:.3g} GB free, and the decoded images take about {text}; "
            "make room, or read the files in every epoch with --set recipe.cache=off"
        )


def _decode_all(tree: ImageTree, part: Path, shorter_side: int, skip: bool) -> None:
    """Append what is missing to the files of an incomplete cache.

    Raises:
        UsageError: A file is not an image, and `skip` is not set.
    """
    every = [(split, file) for split, several in enumerate((tree.train, tree.test)) for file in several]
    with (
        open(part / "pixels.bin", "ab") as pixels,
        open(part / "index.bin", "ab") as index,
        progress(f"decoding {len(every):,} images of {tree.root}", len(every)) as advance,
        ThreadPoolExecutor(os.cpu_count()) as pool,
    ):
        done, offset = _resume(part, pixels, index)
        advance(done)
        for first in range(done, len(every), CHUNK):
            chunk = every[first : first + CHUNK]
            decoded = list(pool.map(lambda one: _decoded(tree.root / one[1].path, shorter_side), chunk))
            records = np.zeros(len(chunk), dtype=RECORD)
            for record, (split, file), image in zip(records, chunk, decoded, strict=True):
                record["offset"], record["label"], record["split"] = offset, file.label, split
                if isinstance(image, BadImage):
                    if not skip:
                        raise UsageError(
                            f"{image}; remove the file, or leave out such files with --set recipe.bad_images=skip"
                        )
                    record["skipped"] = 1
                    continue
                content = np.ascontiguousarray(image.pixels)
                record["height"], record["width"] = content.shape[:2]
                record["crc"], record["converted"] = zlib.crc32(content.data), CONVERSIONS.index(image.converted)
                pixels.write(content.data)
                offset += content.nbytes
            # Write the index after the pixels, so that every record describes pixels that exist.
            pixels.flush()
            index.write(records.tobytes())
            index.flush()
            advance(len(chunk))
        os.fsync(pixels.fileno())
        os.fsync(index.fileno())


def _resume(part: Path, pixels: IO[bytes], index: IO[bytes]) -> tuple[int, int]:
    """Cut both files back to the last complete chunk, and return the number of records and the end of the pixels."""
    count = os.fstat(index.fileno()).st_size // RECORD.itemsize
    records = np.fromfile(part / "index.bin", dtype=RECORD, count=count)
    end = _end(records)
    if os.fstat(pixels.fileno()).st_size < end:
        count, end = 0, 0
    index.truncate(count * RECORD.itemsize)
    pixels.truncate(end)
    return count, end


def _decoded(path: Path, shorter_side: int) -> Decoded | BadImage:
    try:
        return decode(path, shorter_side)
    except BadImage as error:
        return error


def _reduced(height: int, width: int, shorter_side: int) -> tuple[int, int]:
    short, long = min(height, width), max(height, width)
    if short <= shorter_side:
        return height, width
    other = int(shorter_side * long / short)
    return (shorter_side, other) if height <= width else (other, shorter_side)


def _end(records: NDArray[Any]) -> int:
    if not len(records):
        return 0
    last = records[-1]
    return int(last["offset"]) + 3 * int(last["height"]) * int(last["width"])


def _checksum(records: NDArray[Any]) -> str:
    """Return the SHA-256 of the index, which contains a CRC-32 of every image."""
    return hashlib.sha256(records.tobytes()).hexdigest()
