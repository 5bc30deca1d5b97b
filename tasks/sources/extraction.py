"""Extraction of archives, each into a folder that gets its name when it is complete."""

from __future__ import annotations

import logging
import shutil
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path

from suite import files
from suite.errors import UsageError

logger = logging.getLogger(__name__)

LOCK = ".pdt-extraction.lock"


def extract_once(archive: Path, target: Path, unpack: Callable[[Path], None]) -> None:
    """Extract an archive, or wait for another process that extracts it at the same time.

    Only one process at a time extracts next to a target. Another temporary folder there therefore belongs to a killed
    process, and is removed.

    Args:
        archive: Archive of images, which are about as large as the archive.
        target: Folder that is written. Its parent exists.
        unpack: Writes a folder of the target's name into a given temporary folder, which is next to the target.

    Raises:
        UsageError: The archive cannot be extracted, or the disk is too small. No temporary folder is left.
    """
    temporary = target.with_name(f".{target.name}.part")
    try:
        with files.lock(target.parent / LOCK):
            if target.is_dir():
                return  # another process has extracted it
            shutil.rmtree(temporary, ignore_errors=True)
            needed, free = archive.stat().st_size, shutil.disk_usage(target.parent).free
            if needed > free:
                raise UsageError(
                    f"{target.parent}: has {free / 1e9:.3g} GB free, and the content of {archive.name} takes about "
                    f"{needed / 1e9:.3g} GB; make room"
                )
            logger.info("extracting %s", archive)
            temporary.mkdir()
            try:
                unpack(temporary)
                if not (temporary / target.name).is_dir():
                    raise UsageError(f"{archive}: contains no folder {target.name}/")
                (temporary / target.name).rename(target)
            finally:
                shutil.rmtree(temporary, ignore_errors=True)
    # tarfile, zlib and torchvision raise these for damaged archives, and OSError comes from the disk.
    except (tarfile.TarError, zlib.error, EOFError, OSError, RuntimeError, ValueError) as error:
        raise UsageError(f"{archive}: cannot be extracted: {error}") from error
