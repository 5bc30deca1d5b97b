"""Files of a trial that may be compressed: `epochs.jsonl`, or `epochs.jsonl.gz` in an exported folder."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

SUFFIX = ".gz"


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
        OSError: The file cannot be read, or its compression is damaged.
    """
    if path.suffix != SUFFIX:
        return path.read_bytes()
    try:
        return gzip.decompress(path.read_bytes())
    except (EOFError, zlib.error) as error:
        raise OSError(f"{path.name} is not a whole gzip file: {error}") from error


def pack(content: bytes) -> bytes:
    """Return the compressed form, which depends on nothing but the content."""
    return gzip.compress(content, 9, mtime=0)


def altered(folder: Path, record: Mapping[str, Any]) -> list[str]:
    """Find files of a finished trial that were changed after it ended, among those that a report reads.

    Missing files do not count: exported suites have no models and compressed files.

    Args:
        folder: Folder of the trial.
        record: Content of its `trial.json`, which need not be valid.

    Returns:
        One line per changed file.
    """
    facts = record.get("files")
    if record.get("status") != "done" or not isinstance(facts, Mapping):
        return []
    found = []
    for name in ("epochs.jsonl", "layers.csv"):
        path, expected = held(folder / name), facts.get(name)
        if path is None or not isinstance(expected, Mapping):
            continue
        with contextlib.suppress(OSError):  # reported by the reader of the file
            if hashlib.sha256(read(path)).hexdigest() != expected.get("sha256"):
                found.append(f"{name} does not have the checksum in trial.json")
    return found
