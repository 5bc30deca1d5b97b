"""The cache of decoded images of a folder, and the same images without a cache.

A cache is written to a folder whose name ends in `.part`, which gets its final name when it is complete. An interrupted
decoding continues there. `tasks.images.stored` describes the files and reads them.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import zlib
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import IO, Any, TypeVar

import numpy as np
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
from tasks.sources.image_tree import ImageTree, TreeFile
from tasks.sources.progress import progress

Result = TypeVar("Result")
SKIP = "the task's parameter bad_images=skip, --task NAME[bad_images=skip]"

CHUNK = 256  # images that are lost at most when a decoding is interrupted
GROUP = 16  # images that a thread decodes before it hands them over, which bounds the memory of a decoding
# Bytes of pixels that are written at once. A write for each image would hand over Python's lock more often.
BUFFER = 1 << 20
LOOK, MOST = 1000, 20  # files behind a bad one that are looked at, and bad ones among them that are named
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

    def read(self, index: int) -> NDArray[np.uint8]:
        """Decode an image.

        Raises:
            UsageError: The file is not an image.
        """
        try:
            return decode(self._root / self._files[index].path, self._side).pixels
        except BadImage as error:
            raise UsageError(str(error)) from error


def store(tree: ImageTree, path: Path, shorter_side: int, skip: bool, keep: bool = True) -> dict[str, Any]:
    """Decode a folder into a cache, unless the cache is complete and the folder unchanged.

    Args:
        tree: Files of the folder.
        path: Folder of the cache; its parent exists.
        shorter_side: Images whose shorter side is longer are reduced to it.
        skip: Whether files that are not images are left out instead of refused.
        keep: Whether the pixels are stored. Otherwise the files are only checked.

    Returns:
        The content of `cache.json`; and `shared`, the images that are in both splits: pairs of the paths in the test
        split and in the training split.

    Raises:
        UsageError: A file is not an image, a class has no images left, or the disk is too small.
        OSError: The cache cannot be written.
    """
    fingerprint = f"{VERSION}-{shorter_side}-{tree.fingerprint()}"
    with files.lock(path.with_name(f"{path.name}.lock")):
        meta = read_cache(path)
        if meta is None or meta["fingerprint"] != fingerprint or (meta["skipped"] and not skip):
            part = path.with_name(f"{path.name}.part")
            source = part / "source.txt"
            if part.exists() and not (source.is_file() and source.read_text() == fingerprint):
                shutil.rmtree(part)
            part.mkdir(exist_ok=True)
            files.write(source, fingerprint)
            if keep:
                _announce(tree, path, part, shorter_side)
            _decode_all(tree, part, shorter_side, skip, keep)
            records = np.fromfile(part / "index.bin", dtype=RECORD)
            _check_classes(tree, records)
            meta = {
                "version": VERSION,
                "fingerprint": fingerprint,
                "checksum": checksum_of(records),
                "skipped": [file.path for file, skipped in zip(tree.files, records["skipped"], strict=True) if skipped],
                "converted": _by_conversion(records["converted"].tolist()),
            }
            files.write(part / "cache.json", json.dumps(meta))
            source.unlink()
            if path.exists():
                shutil.rmtree(path)
            part.rename(path)
        return {**meta, "shared": _in_both(tree, path, keep)}


def _in_both(tree: ImageTree, path: Path, keep: bool) -> list[tuple[str, str]]:
    """Return the images of a cache that are in both splits."""
    records = np.fromfile(path / "index.bin", dtype=RECORD)
    content = np.memmap(path / "pixels.bin", dtype=np.uint8, mode="r") if keep else np.empty(0, dtype=np.uint8)
    every = tree.files

    def pixels(number: int) -> NDArray[np.uint8]:
        if not keep:
            return decode(tree.root / every[number].path, MAX_PIXELS).pixels
        offset, height, width = (int(records[number][name]) for name in ("offset", "height", "width"))
        return np.asarray(content[offset : offset + 3 * height * width])

    # In arrays, since a data set may have millions of images. Sides are below 2**16: the cache reduces the shorter one,
    # and the longer one is at most 200 times as long.
    keys = records["crc"].astype(np.uint64)
    for name, shift in (("height", 32), ("width", 48)):
        keys |= records[name].astype(np.uint64) << np.uint64(shift)
    used = records["skipped"] == 0
    train, test = (np.flatnonzero(used & (records["split"] == split)) for split in range(2))
    known, first = np.unique(keys[train], return_index=True)
    places = np.searchsorted(known, keys[test]).clip(max=len(known) - 1)
    same = known[places] == keys[test]
    pairs = zip(test[same].tolist(), train[first[places[same]]].tolist(), strict=True)
    # Different images may have the same CRC-32.
    return [(every[one].path, every[other].path) for one, other in pairs if np.array_equal(pixels(one), pixels(other))]


def _by_conversion(conversions: Iterable[int]) -> dict[str, int]:
    """Return numbers of files by the name of their conversion, without those that needed none."""
    counts = Counter(conversions)
    return {CONVERSIONS[number]: counts[number] for number in sorted(counts) if CONVERSIONS[number]}


def _refusal(first: BadImage, further: Iterable[tuple[TreeFile, object]], setting: str) -> UsageError:
    """Return the error for a folder with a bad file, after a look at the files behind it.

    Args:
        first: The fault of the first bad file.
        further: The files behind it, each with its result: a `BadImage`, or anything else for an image.
        setting: Options with which bad files are left out.
    """
    looked = itertools.islice(further, LOOK)
    others = [shown(file.path) for file, result in looked if isinstance(result, BadImage)][:MOST]
    more = f"; bad files behind it: {', '.join(others)}" if others else ""
    return UsageError(f"{first}{more}; remove such files, or leave them out with {setting}")


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


def _decode_all(tree: ImageTree, part: Path, shorter_side: int, skip: bool, keep: bool) -> None:
    """Append what is missing to the files of an incomplete cache; arguments as of `store`.

    Raises:
        UsageError: A file is not an image, and `skip` is not set.
    """
    every = tree.files
    doing = "decoding" if keep else "checking"
    with (
        open(part / "pixels.bin", "ab", buffering=BUFFER) as pixels,
        open(part / "index.bin", "ab") as index,
        progress(f"{doing} {len(every):,} images of {tree.root}", len(every)) as advance,
        ExitStack() as stack,
    ):
        done, offset = _resume(part, pixels, index, skip)
        advance(done)
        work = partial(_decoded, shorter_side=shorter_side)
        decoded = stack.enter_context(closing(in_threads(work, tree.root, every[done:])))
        results = zip(every[done:], decoded, strict=True)
        records: list[tuple[int, ...]] = []
        for number, (file, image) in enumerate(results, start=done):
            split = int(number >= len(tree.train))
            if isinstance(image, BadImage):
                if not skip:
                    raise _refusal(image, results, SKIP if keep else f"{SKIP} and with cache=on")
                records.append((offset, 0, 0, file.label, 0, split, True, 0))
            else:
                (content, converted), crc = image
                size = content.shape[:2] if keep else (0, 0)
                records.append((offset, *size, file.label, crc, split, False, CONVERSIONS.index(converted)))
                if keep:
                    pixels.write(content.data)
                    offset += content.nbytes
            if len(records) == CHUNK or number + 1 == len(every):
                # Write the index after the pixels, so that every record describes pixels that exist.
                pixels.flush()
                index.write(np.array(records, dtype=RECORD).tobytes())
                index.flush()
                advance(len(records))
                records.clear()
        os.fsync(pixels.fileno())
        os.fsync(index.fileno())


def _resume(part: Path, pixels: IO[bytes], index: IO[bytes], skip: bool) -> tuple[int, int]:
    """Cut both files back to the last complete chunk, and return the number of records and the end of the pixels.

    If bad files are refused, the first one that was left out ends what is kept.
    """
    count = os.fstat(index.fileno()).st_size // RECORD.itemsize
    records = np.fromfile(part / "index.bin", dtype=RECORD, count=count)
    if not skip and records["skipped"].any():
        records = records[: int(records["skipped"].argmax())]
    if os.fstat(pixels.fileno()).st_size < end_of_pixels(records):
        records = records[:0]
    index.truncate(records.nbytes)
    pixels.truncate(end_of_pixels(records))
    return len(records), end_of_pixels(records)


def in_threads(work: Callable[[Path], Result], root: Path, every: Sequence[TreeFile]) -> Generator[Result, None, None]:
    """Call a function for files in their order, for several groups at once.

    Yields:
        The result for each file.
    """

    def work_on(group: int) -> list[Result]:
        return [work(root / file.path) for file in every[group : group + GROUP]]

    threads = os.cpu_count() or 1
    started: deque[Future[list[Result]]] = deque()
    pool = ThreadPoolExecutor(threads)
    try:
        for group in range(0, len(every), GROUP):
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
