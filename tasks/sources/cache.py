"""Decode a data set once: later trials find the decoded images beside it, verified by their checksum."""

from __future__ import annotations

import hashlib
import logging
import tempfile
from pathlib import Path
from typing import NamedTuple, Protocol

from suite import files
from suite.errors import UsageError
from tasks.images.decoded import DamagedFile, DecodedImages, load_decoded, read_fingerprint, save_decoded

logger = logging.getLogger(__name__)

FOLDER = ".pdt-cache"
# Part of every fingerprint: a change of how images are decoded or kept makes the older files stale.
FORMAT = "1"


class Source(Protocol):
    """A copy of a data set as it lies on disk.

    Attributes:
        kind: how a result names the copy: `original`, `jpeg`, ...
        path: the folder or archive.
    """

    kind: str
    path: Path

    def fingerprint(self) -> str:
        """A hash of the files' names, sizes and times of change: equal only if nothing was touched."""

    def decode(self) -> DecodedImages:
        """Read all the images.

        Raises:
            suite.errors.UsageError: one line that names the file that cannot be used.
        """


class Cached(NamedTuple):
    """A file of decoded images, verified, and their checksum."""

    path: Path
    checksum: str


def decode_once(task: str, source: Source, data_root: Path) -> Cached:
    """The decoded images of `source`, from the cache if it holds them and the source is unchanged.

    The cache lies in the data root, or, where that cannot be written, under `~/.cache/pdt-data`. It has one file for
    each source, which is replaced when the source changes.

    Raises:
        UsageError: if the source cannot be decoded, or the result be written.
    """
    place = hashlib.sha256(str(source.path.resolve()).encode()).hexdigest()[:8]
    name = f"{task}-{source.kind}-{place}.npz"
    fingerprint = f"{FORMAT}-{source.fingerprint()}"
    folders = [data_root / FOLDER, Path.home() / ".cache" / "pdt-data" / FOLDER]
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
        raise UsageError(f"{path}: cannot keep the decoded images: {error.strerror or error}") from error
    logger.info("kept the decoded images of %s in %s", source.path, path)
    return Cached(path, checksum)


def _valid(path: Path, fingerprint: str) -> str | None:
    try:
        if read_fingerprint(path) != fingerprint:
            logger.warning("%s was decoded from other files than lie there now; decoding again", path)
            return None
        return load_decoded(path)[1]
    except FileNotFoundError:
        return None
    except DamagedFile as error:
        logger.warning("damaged cache, decoding again: %s", error)
        return None


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
            logger.warning("decoded images go to %s: the data root cannot be written (%s)", folder, reasons[0])
        return folder
    raise UsageError(f"no folder for decoded images can be written: {'; '.join(reasons)}")
