"""Cache of decoded images: a data set is decoded once, and later trials read the result, verified by a checksum."""

from __future__ import annotations

import hashlib
import logging
import tempfile
from pathlib import Path
from typing import NamedTuple, Protocol

from suite import files
from suite.errors import UsageError
from suite.files import DATA_ROOT
from tasks.images.decoded import DamagedFile, DecodedImages, load_decoded, read_fingerprint, save_decoded

logger = logging.getLogger(__name__)

FOLDER = ".pdt-cache"
# Part of every fingerprint. Increase it when decoding or storage changes, so that older files become stale.
FORMAT = "1"


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
    folders = _folders(data_root)
    for folder in folders:
        checksum = _valid(folder / name, fingerprint)
        if checksum is not None:
            return Cached(folder / name, checksum)

    data = source.decode()
    path = _writable(folders) / name
    files.remove_abandoned(path.parent)
    try:
        checksum = save_decoded(path, data, fingerprint)
    except OSError as error:
        raise UsageError(f"{path}: cannot store the decoded images: {error.strerror or error}") from error
    logger.info("stored the decoded images of %s in %s", source.path, path)
    return Cached(path, checksum)


def _valid(path: Path, fingerprint: str) -> str | None:
    try:
        if read_fingerprint(path) != fingerprint:
            logger.warning("the files from which %s was decoded have changed; decoding again", path)
            return None
        return load_decoded(path)[1]
    except FileNotFoundError:
        return None
    except DamagedFile as error:
        logger.warning("damaged cache, decoding again: %s", error)
        return None


def cache_folder(data_root: Path, home_first: bool = False) -> Path:
    """Return a writable folder for decoded images: in the data root, or in `~/.cache/pdt-data`.

    Args:
        data_root: Folder of data sets.
        home_first: Whether the data root is used only if `~/.cache/pdt-data` is not writable.

    Raises:
        UsageError: Neither folder is writable.
    """
    folders = _folders(data_root)
    return _writable(folders[::-1] if home_first else folders)


def _folders(data_root: Path) -> list[Path]:
    return [data_root / FOLDER, Path(DATA_ROOT).expanduser() / FOLDER]


def _writable(folders: list[Path]) -> Path:
    reasons = []
    for folder in folders:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                pass
        except OSError as error:
            reasons.append(f"{folder}: {error.strerror or error}")
            continue
        if reasons:
            logger.warning(
                "a folder for decoded images is not writable (%s): %s is used in its place", reasons[0], folder
            )
        return folder
    raise UsageError(f"no folder for decoded images is writable: {'; '.join(reasons)}")
