"""Files that are written whole: a reader, or a crash, finds the old content or the new, never a part of it."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

# `.NAME.RANDOM.part`, beside the file that it is to become.
_PART = re.compile(r"\.(?P<name>.+)\.[0-9a-f]{16}\.part")
_LEFT_AFTER_S = 3600
"""What nobody has written to for so long was left by a writer that was killed."""


@contextmanager
def replacing(path: Path, *, durable: bool = True) -> Iterator[IO[bytes]]:
    """A binary file to write; when the block ends it takes the place of `path`, and if the block fails nothing is left.

    Two processes may write one path at once; the later one stays.

    Args:
        path: in a folder that exists.
        durable: outlast a power failure, for the price of waiting for the disk.

    Raises:
        OSError: if it cannot be written; `path` is as it was before.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.part")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0), 0o666)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            if durable:
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    if durable:
        # The rename itself is lost in a power failure unless the folder reaches the disk too. Not every file system can
        # be asked for that, and the file is in its place.
        with contextlib.suppress(OSError):
            folder = os.open(path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)


def write(path: Path, content: bytes | str, *, durable: bool = True) -> None:
    """Replace a file by new content; text as UTF-8. Arguments and errors as of `replacing`."""
    with replacing(path, durable=durable) as file:
        file.write(content.encode() if isinstance(content, str) else content)


def parts(folder: Path, name: str = "") -> list[Path]:
    """What killed writers left in a folder, and what others write there now: of one file, or of all."""
    found = []
    for path in sorted(folder.glob(".*.part")):
        matched = _PART.fullmatch(path.name)
        if matched and path.is_file() and name in ("", matched["name"]):
            found.append(path)
    return found


def remove_left(folder: Path, name: str = "") -> None:
    """Remove parts that killed writers left, of one file or of all; one that grows is another's, and stays."""
    for path in parts(folder, name):
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > _LEFT_AFTER_S:
                path.unlink()
