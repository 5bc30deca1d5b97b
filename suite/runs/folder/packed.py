"""Files of a trial that may be compressed: `epochs.jsonl`, or `epochs.jsonl.gz` in a folder that is kept or shared."""

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


def altered(folder: Path, record: Mapping[str, Any]) -> list[str]:
    """Those of a finished trial's files that a report is made from, and that are not what they were.

    Files that are missing are not among them: suites are kept and shared without their models, and with the others
    compressed.

    Args:
        folder: the trial's.
        record: the content of its `trial.json`, whatever that holds.

    Returns:
        For each file its name and what is wrong with it.
    """
    facts = record.get("files")
    if record.get("status") != "done" or not isinstance(facts, Mapping):
        return []
    found = []
    for name in ("epochs.jsonl", "layers.csv"):
        path, expected = held(folder / name), facts.get(name)
        if path is None or not isinstance(expected, Mapping):
            continue
        with contextlib.suppress(OSError):  # who reads the file says that it cannot be read
            if hashlib.sha256(read(path)).hexdigest() != expected.get("sha256"):
                found.append(f"{name} does not have the checksum in trial.json")
    return found
