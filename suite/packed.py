"""Files of a trial that may be compressed: `epochs.jsonl`, or `epochs.jsonl.gz` in a folder that is kept or shared."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

SUFFIX = ".gz"


def held(path: Path) -> Path | None:
    """Where the content of `path` is: in `path` itself, else in its compressed form; `None` where neither exists."""
    for candidate in (path, path.with_name(path.name + SUFFIX)):
        try:
            if candidate.is_file():
                return candidate
        except (OSError, ValueError):  # a name that no file can have: too long, or with a null byte
            return None
    return None


def read(path: Path) -> bytes:
    """The content of a file that `held` found.

    Raises:
        OSError: if it cannot be read; a compressed file that is damaged or cut off is such an error too.
    """
    if path.suffix != SUFFIX:
        return path.read_bytes()
    try:
        return gzip.decompress(path.read_bytes())
    except (EOFError, zlib.error) as error:
        raise OSError(f"{path.name} is not a whole gzip file: {error}") from error


def pack(content: bytes) -> bytes:
    """The compressed form, the same bytes for the same content: it holds neither a time nor a name."""
    return gzip.compress(content, 9, mtime=0)
