"""Files of a trial that an exported folder compresses: `epochs.jsonl`, or `epochs.jsonl.gz`."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

SUFFIX = ".gz"
COMPRESSED = ("epochs.jsonl", "layers.csv")  # compressed in an exported folder
LARGEST = 2**30  # bytes of a file before compression, because a few kilobytes may expand to terabytes


def held(path: Path) -> Path | None:
    """Return `path` or its compressed form, whichever exists; `None` if neither does."""
    for candidate in (path, path.with_name(path.name + SUFFIX)):
        try:
            if candidate.is_file():
                return candidate
        except (OSError, ValueError):  # the name is too long or has a null byte
            return None
    return None


def read(path: Path) -> bytes:
    """Return the decompressed content of a file that `held` found.

    Raises:
        OSError: The file cannot be read, its compression is damaged, or it is larger than any file of a trial.
    """
    try:
        with open(path, "rb") if path.suffix != SUFFIX else gzip.open(path) as file:
            content = file.read(LARGEST + 1)
    except (EOFError, zlib.error) as error:
        raise OSError(f"{path.name} is not a whole gzip file: {error}") from error
    if len(content) > LARGEST:
        raise OSError(f"{path.name} is larger than {LARGEST} bytes")
    return content


def pack(content: bytes) -> bytes:
    """Return the compressed form, which depends on the content alone."""
    return gzip.compress(content, 9, mtime=0)


def size(path: Path) -> int:
    """Return the size in bytes of a file that `held` found, before compression.

    Raises:
        OSError: As `read`.
    """
    return len(read(path)) if path.suffix == SUFFIX else path.stat().st_size
