"""Extraction of archives, each into a folder that gets its name when it is complete."""

from __future__ import annotations

import logging
import re
import shutil
import tarfile
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock, Timeout

from suite.errors import UsageError

logger = logging.getLogger(__name__)

LOCK = ".pdt-extraction.lock"
_RANDOM = r"[a-z0-9_]{8}"  # the end of a name of a temporary folder from `tempfile`


def extract_once(archive: Path, target: Path, prefix: str, unpack: Callable[[Path], None]) -> None:
    """Extract an archive, or wait for another process that extracts it at the same time.

    Only one process at a time extracts next to a target. Every other temporary folder there therefore belongs to a
    killed process, and is removed.

    Args:
        archive: Archive of images, which are about as large as the archive.
        target: Folder that is written. Its parent exists.
        prefix: Start of the names of temporary folders, which are next to the target.
        unpack: Writes a folder of the target's name into a given temporary folder.

    Raises:
        UsageError: The archive cannot be extracted, or the disk is too small. No temporary folder is left.
    """
    try:
        lock = FileLock(target.parent / LOCK)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            logger.info("waiting for another process that extracts an archive in %s", target.parent)
            lock.acquire()
        try:
            if target.is_dir():
                return  # the other process has extracted it
            _remove_abandoned(target.parent, prefix)
            _check_space(archive, target.parent)
            logger.info("extracting %s", archive)
            with tempfile.TemporaryDirectory(dir=target.parent, prefix=prefix) as temporary:
                unpack(Path(temporary))
                if not (Path(temporary) / target.name).is_dir():
                    raise UsageError(f"{archive}: contains no folder {target.name}/")
                (Path(temporary) / target.name).rename(target)
        finally:
            lock.release()
    # tarfile, zlib and torchvision raise these for damaged archives, and OSError comes from the disk.
    except (tarfile.TarError, zlib.error, EOFError, OSError, RuntimeError, ValueError) as error:
        raise UsageError(f"{archive}: cannot be extracted: {error}") from error


def _remove_abandoned(folder: Path, prefix: str) -> None:
    pattern = re.compile(re.escape(prefix) + _RANDOM)
    for path in sorted(folder.iterdir()):
        if pattern.fullmatch(path.name) and path.is_dir() and not path.is_symlink():
            logger.info("removing %s, which an extraction that was killed has left", path)
            shutil.rmtree(path)


def _check_space(archive: Path, folder: Path) -> None:
    """Check that the images of an archive fit on the disk.

    Raises:
        UsageError: The disk is too small.
    """
    needed, free = archive.stat().st_size, shutil.disk_usage(folder).free
    if needed > free:
        raise UsageError(
            f"{folder}: has {free / 1e9:.3g} GB free, and the content of {archive.name} takes about "
            f"{needed / 1e9:.3g} GB; make room"
        )
