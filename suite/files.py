"""Files that are written whole: a reader, or a crash, finds the old content or the new, never a part of it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

_PARTS = ".*.part"  # `.NAME.RANDOM.part`, beside the file that it is to become


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
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            if durable:
                file.flush()
                os.fsync(file.fileno())
        temporary.chmod(0o666 & ~_umask())  # mkstemp's files are for their owner alone
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    if durable:
        # The rename itself is lost in a power failure unless the folder reaches the disk too.
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def write(path: Path, content: bytes | str, *, durable: bool = True) -> None:
    """Replace a file by new content; text as UTF-8. Arguments and errors as of `replacing`."""
    with replacing(path, durable=durable) as file:
        file.write(content.encode() if isinstance(content, str) else content)


def parts(folder: Path) -> set[Path]:
    """What killed writers left in a folder, and what others write there now."""
    return set(folder.glob(_PARTS))


def parts_of(path: Path) -> set[Path]:
    """What killed writers of one file left, and what others write of it now."""
    return {part for part in parts(path.parent) if part.stem.rpartition(".")[0] == f".{path.name}"}


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
