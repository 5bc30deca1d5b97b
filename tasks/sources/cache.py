"""Cache of decoded images: a data set is decoded once, and later trials read the result, verified by a checksum."""

from __future__ import annotations

import hashlib
import logging
import tempfile
from dataclasses import fields
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np

from suite import files
from suite.errors import UsageError
from suite.files import DATA_ROOT
from tasks.images.splits import DecodedImages

logger = logging.getLogger(__name__)

FOLDER = ".pdt-cache"
# Part of every fingerprint. Increase it when decoding or storage changes, so that older files become stale.
FORMAT = "2"


class DamagedFile(Exception):
    """A file of decoded images is truncated, altered or of another format."""


class Source(Protocol):
    """A copy of a data set on disk.

    Attributes:
        kind: Kind of the copy in results, for example `original` or `jpeg`.
        path: Folder or archive.
    """

    kind: str
    path: Path

    def fingerprint(self) -> str:
        """Return a hash of the files' names, sizes and modification times."""

    def decode(self) -> DecodedImages:
        """Decode all images.

        Raises:
            suite.errors.UsageError: A file cannot be used; one line that names it.
        """


class Cached(NamedTuple):
    """A verified file of decoded images, and their checksum."""

    path: Path
    checksum: str


def decode_once(task: str, source: Source, data_root: Path) -> Cached:
    """Decode a source, or return the cached images if the source is unchanged.

    The cache is in the data root, or in `~/.cache/pdt-data` if the data root is not writable. It has one file per
    source. A change of the source replaces the file.

    Args:
        task: Name of the task.
        source: Copy of the data set.
        data_root: Folder of data sets.

    Raises:
        UsageError: The source cannot be decoded, or the result cannot be written.
    """
    place = hashlib.sha256(str(source.path.resolve()).encode()).hexdigest()[:8]
    name = f"{task}-{source.kind}-{place}.npz"
    fingerprint = f"{FORMAT}-{source.fingerprint()}"
    for folder in _folders(data_root):
        try:
            return Cached(folder / name, load_decoded(folder / name, fingerprint)[1])
        except FileNotFoundError:
            continue
        except DamagedFile as error:
            logger.warning("%s; decoding again", error)

    data = source.decode()
    path = cache_folder(data_root) / name
    files.remove_abandoned(path.parent)
    try:
        save_decoded(path, data, fingerprint)
    except OSError as error:
        raise UsageError(f"{path}: cannot store the decoded images: {error.strerror or error}") from error
    logger.info("stored the decoded images of %s in %s", source.path, path)
    return Cached(path, data.checksum())


def cache_folder(data_root: Path, home_first: bool = False) -> Path:
    """Return a writable folder for decoded images: in the data root, or in `~/.cache/pdt-data`.

    Args:
        data_root: Folder of data sets.
        home_first: Whether the data root is used only if `~/.cache/pdt-data` is not writable.

    Raises:
        UsageError: Neither folder is writable.
    """
    for folder in reversed(_folders(data_root)) if home_first else _folders(data_root):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                return folder
        except OSError as error:
            logger.warning("%s, for decoded images, is not writable: %s", folder, error.strerror or error)
    raise UsageError(f"no folder for decoded images is writable: {', '.join(map(str, _folders(data_root)))}")


def _folders(data_root: Path) -> list[Path]:
    return [data_root / FOLDER, Path(DATA_ROOT).expanduser() / FOLDER]


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
