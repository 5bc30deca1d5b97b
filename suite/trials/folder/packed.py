"""Files of a trial that an exported folder compresses: `epochs.jsonl`, or `epochs.jsonl.gz`."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from suite.files import canonical_json

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


def digest(record: Mapping[str, Any]) -> str:
    """Return the checksum of a record: that of the canonical JSON of all fields except `sha256`."""
    content = {name: value for name, value in record.items() if name != "sha256"}
    return hashlib.sha256(canonical_json(content).encode()).hexdigest()


def altered(folder: Path, record: Mapping[str, Any]) -> list[str]:
    """Find the files of a finished trial, among those that a report reads, that were changed after the trial ended.

    Missing files do not count, because exported suites have compressed files and no models. Models are not read.

    Args:
        folder: Folder of the trial.
        record: Content of its `trial.json`, which need not be valid.

    Returns:
        One line per changed file.
    """
    facts = record.get("files")
    if record.get("status") != "done" or not isinstance(facts, Mapping):
        return []
    lines = []
    for name in COMPRESSED:
        path, expected = held(folder / name), facts.get(name)
        if path is None or not isinstance(expected, Mapping):
            continue
        with contextlib.suppress(OSError):  # the reader of the file reports the error
            if hashlib.sha256(read(path)).hexdigest() != expected.get("sha256"):
                lines.append(f"{name} does not have the checksum in trial.json")
    return lines
