"""Images of one size in the layout `FOLDER/{train,test}/CLASS/*.{png,jpg,jpeg}`."""

from __future__ import annotations

import hashlib
import os
import stat
import struct
import zlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from suite.errors import UsageError
from tasks.images.decoded import DecodedImages
from tasks.sources.progress import progress

SPLITS = ("train", "test")
JPEG = (".jpg", ".jpeg")
SUFFIXES = (*JPEG, ".png")
CHUNK = 256
MAX_BYTES = 1 << 24  # of a small image, with metadata


@dataclass(frozen=True)
class ImageFile:
    """An image file.

    Attributes:
        path: Path.
        label: Class.
        stamp: Size in bytes, and modification time in nanoseconds.
    """

    path: str
    label: int
    stamp: tuple[int, int]


class ImageFolder:
    """A data set as a folder of image files; a `tasks.sources.cache.Source`.

    Attributes:
        kind: `jpeg` if any image is a JPEG file, otherwise `png`.
        path: Folder with the subfolders `train` and `test`.
        files: Files of each split, ordered by class and then by name.
    """

    def __init__(self, path: Path, classes: tuple[str, ...], side: int) -> None:
        """List the folder.

        Args:
            path: Folder with the subfolders `train` and `test`.
            classes: Names of the classes' folders, in the order of the labels.
            side: Height and width of every image in pixels.

        Raises:
            UsageError: If the folder of a class is missing, empty or unreadable, or there is a folder of another name.
        """
        self.path, self._side = path, side
        self.files = {split: _listed(path / split, classes) for split in SPLITS}
        every = (file for files in self.files.values() for file in files)
        self.kind = "jpeg" if any(file.path.lower().endswith(JPEG) for file in every) else "png"

    def fingerprint(self) -> str:
        """Return a hash of every file's name, size and modification time."""
        digest = hashlib.sha256()
        for split, files in self.files.items():
            for file in files:
                # Names are bytes, and not always UTF-8.
                name = os.fsencode(os.path.relpath(file.path, self.path))
                digest.update(b"%s %s %s\n" % (split.encode(), name, str(file.stamp).encode()))
        return digest.hexdigest()

    def decode(self) -> DecodedImages:
        """Decode all images with as many threads as there are processors.

        Raises:
            UsageError: If a file is not an image, or the image has another size.
        """
        decoded = {}
        total = sum(len(files) for files in self.files.values())
        # Threads suffice because the decoder releases the interpreter lock.
        with (
            progress(f"decoding {total:,} images of {self.path}", total) as advance,
            ThreadPoolExecutor(os.cpu_count()) as pool,
        ):
            for split, files in self.files.items():
                images = np.empty((len(files), self._side, self._side, 3), dtype=np.uint8)

                starts = range(0, len(files), CHUNK)
                jobs = [pool.submit(_decode_into, images, files, first, self._side) for first in starts]
                try:
                    for job in jobs:
                        advance(job.result())
                except BaseException:
                    # Stop decoding after an unreadable image or Ctrl-C.
                    pool.shutdown(cancel_futures=True)
                    raise
                decoded[split] = images, np.array([file.label for file in files], dtype=np.int64)
        return DecodedImages(*decoded["train"], *decoded["test"])


def _listed(folder: Path, classes: tuple[str, ...]) -> list[ImageFile]:
    try:
        present = {entry.name for entry in os.scandir(folder) if entry.is_dir()}
        missing = [name for name in classes if name not in present]
        if missing:
            raise UsageError(f"{folder}: no folder for class {', '.join(missing)}; it needs one for each class")
        unknown = sorted(present.difference(classes))
        if unknown:
            raise UsageError(f"{folder}: '{unknown[0]}' is not one of the classes {', '.join(classes)}")
        files = []
        for label, name in enumerate(classes):
            found = [entry for entry in os.scandir(folder / name) if entry.name.lower().endswith(SUFFIXES)]
            if not found:
                raise UsageError(f"{folder / name}: contains no image; names of images end in {', '.join(SUFFIXES)}")
            for entry in sorted(found, key=lambda entry: entry.name):
                found_stat = entry.stat()
                if not stat.S_ISREG(found_stat.st_mode):
                    raise UsageError(f"{entry.path}: is not a regular file")
                if found_stat.st_size > MAX_BYTES:
                    raise UsageError(f"{entry.path}: is larger than {MAX_BYTES:,} bytes, the limit for an image")
                files.append(ImageFile(entry.path, label, (found_stat.st_size, found_stat.st_mtime_ns)))
        return files
    except OSError as error:
        raise UsageError(f"{error.filename or folder}: cannot be read: {error.strerror or error}") from error


def _decode_into(images: NDArray[np.uint8], files: list[ImageFile], first: int, side: int) -> int:
    chunk = files[first : first + CHUNK]
    for position, file in enumerate(chunk, start=first):
        images[position] = _decoded(file.path, side)
    return len(chunk)


def _decoded(path: str, side: int) -> NDArray[np.uint8]:
    try:
        # Only PNG and JPEG are accepted, and the size is checked before a pixel is decoded.
        with Image.open(path, formats=("PNG", "JPEG")) as image:
            if image.size != (side, side):
                raise UsageError(f"{path}: the image is {image.width}x{image.height}, not {side}x{side}")
            return np.asarray(image.convert("RGB"))
    # Exceptions of Pillow for damaged files, depending on the format and the position of the damage.
    except (OSError, SyntaxError, ValueError, zlib.error, struct.error, Image.DecompressionBombError) as error:
        raise UsageError(f"{path}: cannot be read as an image: {error}") from error
