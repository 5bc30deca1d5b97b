"""The cache of decoded images of a folder, and the same images without a cache.

A cache is written to a folder whose name ends in `.part`, which gets its final name when it is complete. An interrupted
decoding continues there. `tasks.images.stored` describes the files and reads them.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import zlib
from collections import Counter, deque
from collections.abc import Callable, Generator, Hashable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import IO, Any, TypeVar

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray

from suite import files
from suite.errors import UsageError
from tasks.images.decoding import (
    CONVERSIONS,
    MAX_PIXELS,
    BadImage,
    Decoded,
    decode,
    image_size,
    reduced_size,
    shown,
)
from tasks.images.stored import RECORD, VERSION, checksum_of, end_of_pixels, read_cache
from tasks.sources.bad_files import refusal
from tasks.sources.image_tree import ImageTree, TreeFile
from tasks.sources.progress import progress

logger = logging.getLogger(__name__)
Result = TypeVar("Result")
SKIP = "the task's parameter bad_images=skip, --task NAME[bad_images=skip]"

CHUNK = 256  # images that are lost at most when a decoding is interrupted
GROUP = 16  # images that a thread decodes before it hands them over, which bounds the memory of a decoding
# Bytes of pixels that are written at once. A write for each image would hand over Python's lock more often.
BUFFER = 1 << 20
_CHECKED = {"fingerprint", "converted", "skipped", "shared"}
PROBED = 64  # images whose size is read to estimate the size of the cache


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
        sizes = [reduced_size(height, width, shorter_side) for width, height in widths_heights]
        self.sizes = np.array(sizes, dtype=np.int64).reshape(-1, 2)

    def path(self, index: int) -> Path:
        """Return the file of an image."""
        return self._root / self._files[index].path

    def read(self, index: int) -> NDArray[np.uint8]:
        """Decode an image.

        Raises:
            UsageError: The file is not an image.
        """
        try:
            return decode(self.path(index), self._side).pixels
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
        The content of `cache.json`; and `shared`, the images that are in both splits: pairs of the paths in the test
        split and in the training split.

    Raises:
        UsageError: A file is not an image, a class has no images left, or the disk is too small.
        OSError: The cache cannot be written.
    """
    refusing, skipping = (f"{VERSION}-{shorter_side}-{name}-{tree.fingerprint()}" for name in ("refuse", "skip"))
    fingerprint = skipping if skip else refusing
    with FileLock(path.with_name(f"{path.name}.lock")):
        found = read_cache(path)
        # Where no file was left out, both settings give the same images.
        if found is not None and found["fingerprint"] in (refusing, skipping) and (skip or not found["skipped"]):
            return {**found, "shared": _shared_in_cache(tree, path)}
        part = path.with_name(f"{path.name}.part")
        _begin(part, fingerprint, (refusing, fingerprint))
        _announce(tree, path, part, shorter_side)
        _decode_all(tree, part, shorter_side, skip)
        records = np.fromfile(part / "index.bin", dtype=RECORD)
        _check_classes(tree, records)
        meta = {
            "version": VERSION,
            "fingerprint": fingerprint,
            "checksum": checksum_of(records),
            "skipped": [file.path for file, skipped in zip(tree.files, records["skipped"], strict=True) if skipped],
            "converted": _by_conversion(Counter(records["converted"].tolist())),
        }
        files.write(part / "cache.json", json.dumps(meta))
        (part / "source.txt").unlink()
        if path.exists():
            shutil.rmtree(path)
        part.rename(path)
        return {**meta, "shared": _shared_in_cache(tree, path)}


def _shared_in_cache(tree: ImageTree, path: Path) -> list[tuple[str, str]]:
    """Return the images of a cache that are in both splits."""
    records = np.fromfile(path / "index.bin", dtype=RECORD)
    content = np.memmap(path / "pixels.bin", dtype=np.uint8, mode="r")

    def pixels(number: int) -> NDArray[np.uint8]:
        offset, height, width = (int(records[number][name]) for name in ("offset", "height", "width"))
        return np.asarray(content[offset : offset + 3 * height * width])

    fields = (records[name].tolist() for name in ("skipped", "height", "width", "crc"))
    keys = [None if skipped else tuple(key) for skipped, *key in zip(*fields, strict=True)]
    # Different images may have the same CRC-32.
    return [
        (tree.files[one].path, tree.files[other].path)
        for one, other in _in_both(tree, keys)
        if np.array_equal(pixels(one), pixels(other))
    ]


def _in_both(tree: ImageTree, keys: Sequence[Hashable]) -> list[tuple[int, int]]:
    """Return the numbers of the files of the test split whose key a file of the training split has, with its number.

    Args:
        tree: Files of the folder.
        keys: Key of the pixels of each file; `None` for files that are left out.
    """
    count = len(tree.train)
    first = {key: number for number, key in reversed([*enumerate(keys[:count])]) if key is not None}
    return [(number, first[key]) for number, key in enumerate(keys[count:], start=count) if key in first]


def check(tree: ImageTree, path: Path | None) -> dict[str, Any]:
    """Decode every file of a folder without storing it, unless this has been done and the folder is unchanged.

    Args:
        tree: Files of the folder.
        path: File that remembers the check, in an existing folder; `None` remembers nothing.

    Returns:
        Fingerprint of the folder, counts of conversions, skipped files, of which there are none, and the images that
        are in both splits, as `store` does.

    Raises:
        UsageError: A file is not an image.
    """
    fingerprint = f"{VERSION}-{tree.fingerprint()}"
    if path is not None and (found := _read_check(path)) and found["fingerprint"] == fingerprint:
        return found
    every = tree.files
    counts: Counter[int] = Counter()
    keys = []
    with (
        progress(f"checking {len(every):,} images of {tree.root}", len(every)) as advance,
        closing(_in_threads(_conversion_of, tree.root, every, 0)) as checked,
    ):
        results = zip(every, checked, strict=True)
        for _, checked_one in results:
            if isinstance(checked_one, BadImage):
                raise refusal(
                    checked_one, results, f"{SKIP} and with cache=on, since the cache stores what is left out"
                )
            counts[checked_one[0]] += 1
            keys.append(checked_one[1])
            advance(1)
    shared = [(every[one].path, every[other].path) for one, other in _in_both(tree, keys)]
    meta = {"fingerprint": fingerprint, "converted": _by_conversion(counts), "skipped": [], "shared": shared}
    if path is not None:
        try:
            files.write(path, json.dumps(meta))
        except OSError as error:
            logger.warning("%s cannot be written (%s): the next command checks the images again", path, error.strerror)
    return meta


def _read_check(path: Path) -> dict[str, Any] | None:
    """Return what `check` wrote; `None` if there is nothing, or something else."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and found.keys() == _CHECKED else None


def _conversion_of(path: Path) -> tuple[int, bytes] | BadImage:
    """Decode an image at the size of its file; return what it was converted from and a digest, or what is wrong."""
    try:
        image = decode(path, MAX_PIXELS)
        return CONVERSIONS.index(image.converted), hashlib.blake2b(image.pixels.data, digest_size=16).digest()
    except BadImage as error:
        return error


def _by_conversion(counts: Counter[int]) -> dict[str, int]:
    """Return numbers of files by the name of their conversion, without those that needed none."""
    return {CONVERSIONS[number]: counts[number] for number in sorted(counts) if CONVERSIONS[number]}


def _begin(part: Path, fingerprint: str, usable: tuple[str, ...]) -> None:
    """Keep an interrupted decoding whose fingerprint is usable, and remove another."""
    source = part / "source.txt"
    if part.exists() and (not source.is_file() or source.read_text() not in usable):
        shutil.rmtree(part)
    part.mkdir(exist_ok=True)
    files.write(source, fingerprint)


def _check_classes(tree: ImageTree, records: NDArray[Any]) -> None:
    """Check that every class has images in both splits.

    Raises:
        UsageError: All files of a class were left out.
    """
    for split, name in enumerate(("training", "test")):
        labels = records["label"][(records["split"] == split) & (records["skipped"] == 0)]
        missing = set(range(len(tree.classes))).difference(labels.tolist())
        if missing:
            label = shown(tree.classes[min(missing)])
            raise UsageError(f"{shown(tree.root)}: no file of class '{label}' in the {name} split is an image")


def _announce(tree: ImageTree, path: Path, part: Path, shorter_side: int) -> None:
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
        high, wide = reduced_size(height, width, shorter_side)
        total.append(3 * high * wide)
    expected = len(every) * (sum(total) / len(total) if total else 0)
    stored = part / "pixels.bin"
    done = stored.stat().st_size if stored.is_file() else 0  # by an interrupted decoding
    free = shutil.disk_usage(path.parent).free
    text = f"{expected / 1e9:.2g} GB" if expected >= 1e9 else f"{expected / 1e6:.0f} MB"
    print(f"pdt: the decoded images of {tree.root} take about {text} in {path}", flush=True)
    if expected - done > free:
        raise UsageError(
            f"{path.parent}: has {free / 1e9:.3g} GB free, and the decoded images take about {text}; "
            "make room, or read the files in every epoch with the task's parameter cache=off: --task NAME[cache=off]"
        )


def _decode_all(tree: ImageTree, part: Path, shorter_side: int, skip: bool) -> None:
    """Append what is missing to the files of an incomplete cache.

    Raises:
        UsageError: A file is not an image, and `skip` is not set.
    """
    every = tree.files
    with (
        open(part / "pixels.bin", "ab", buffering=BUFFER) as pixels,
        open(part / "index.bin", "ab") as index,
        progress(f"decoding {len(every):,} images of {tree.root}", len(every)) as advance,
        ExitStack() as stack,
    ):
        done, offset = _resume(part, pixels, index)
        advance(done)
        work = partial(_decoded, shorter_side=shorter_side)
        decoded = stack.enter_context(closing(_in_threads(work, tree.root, every, done)))
        records = np.zeros(CHUNK, dtype=RECORD)
        filled = 0

        def write() -> None:
            # Write the index after the pixels, so that every record describes pixels that exist.
            nonlocal filled
            pixels.flush()
            index.write(records[:filled].tobytes())
            index.flush()
            advance(filled)
            filled = 0

        results = zip(every[done:], decoded, strict=True)
        for number, (file, image) in enumerate(results, start=done):
            split, label = int(number >= len(tree.train)), file.label
            if isinstance(image, BadImage):
                if not skip:
                    raise refusal(image, results, SKIP)
                records[filled] = (offset, 0, 0, label, 0, split, True, 0)
            else:
                (content, converted), crc = image
                records[filled] = (offset, *content.shape[:2], label, crc, split, False, CONVERSIONS.index(converted))
                pixels.write(content.data)
                offset += content.nbytes
            filled += 1
            if filled == CHUNK:
                write()
        write()
        os.fsync(pixels.fileno())
        os.fsync(index.fileno())


def _resume(part: Path, pixels: IO[bytes], index: IO[bytes]) -> tuple[int, int]:
    """Cut both files back to the last complete chunk, and return the number of records and the end of the pixels."""
    count = os.fstat(index.fileno()).st_size // RECORD.itemsize
    records = np.fromfile(part / "index.bin", dtype=RECORD, count=count)
    end = end_of_pixels(records)
    if os.fstat(pixels.fileno()).st_size < end:
        count, end = 0, 0
    index.truncate(count * RECORD.itemsize)
    pixels.truncate(end)
    return count, end


def _in_threads(
    work: Callable[[Path], Result], root: Path, every: Sequence[TreeFile], first: int
) -> Generator[Result, None, None]:
    """Call a function for files in their order from the file with number `first`, for several groups at once.

    Yields:
        The result for each file.
    """

    def work_on(group: int) -> list[Result]:
        return [work(root / file.path) for file in every[group : group + GROUP]]

    threads = os.cpu_count() or 1
    started: deque[Future[list[Result]]] = deque()
    pool = ThreadPoolExecutor(threads)
    try:
        for group in range(first, len(every), GROUP):
            started.append(pool.submit(work_on, group))
            if len(started) == 2 * threads:
                yield from started.popleft().result()
        while started:
            yield from started.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def _decoded(path: Path, shorter_side: int) -> tuple[Decoded, int] | BadImage:
    """Return an image, contiguous in memory, and the CRC-32 of its pixels; or what is wrong with the file."""
    try:
        image = decode(path, shorter_side)
    except BadImage as error:
        return error
    return image, zlib.crc32(image.pixels.data)
