"""Compiled kernels on disk.

Beside each file is a note, NAME.json, with its size and SHA-256: a file that was cut short or altered is never loaded.
The loader maps a library into memory, and a page behind the end of a truncated file kills the process with SIGBUS.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def folder() -> Path:
    """Gives the folder of compiled kernels: $PDT_CACHE, else ~/.cache/pdt-kernels."""
    chosen = os.environ.get("PDT_CACHE")
    return Path(chosen).expanduser() if chosen else Path.home() / ".cache" / "pdt-kernels"


def find(path: Path) -> dict[str, str] | None:
    """Reads a compiled file and its note.

    Returns:
        The facts that were stored with the file; None where the file or its note is missing, or they do not agree.
    """
    try:
        note = json.loads(_note(path).read_bytes())
        content = path.read_bytes()
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(note, dict) or note.get("bytes") != len(content) or note.get("sha256") != _checksum(content):
        return None
    facts = note.get("facts")
    return facts if isinstance(facts, dict) else None


@contextmanager
def building(path: Path) -> Iterator[Path]:
    """A name beside `path` under which a file is made, to be handed to `store`; what is left of it is removed.

    Raises:
        OSError: the folder cannot be made or written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".building-{secrets.token_hex(8)}{path.suffix}")
    temporary.touch(exist_ok=False)  # a folder that cannot be written is found out before a compiler runs
    try:
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)


def store(made: Path, path: Path, **facts: str) -> None:
    """Puts a file into its place, and then its note; both reach the disk before they get their names.

    A process that is killed in between leaves a file without its note, which `find` does not take. Two processes may
    store the same file at once: each rename replaces a whole file by a whole one.

    Raises:
        OSError: it cannot be written.
    """
    content = made.read_bytes()
    note = {"bytes": len(content), "sha256": _checksum(content), "facts": facts}
    _to_disk(made)
    made.replace(path)
    with building(_note(path)) as temporary:
        temporary.write_text(json.dumps(note), encoding="utf-8")
        _to_disk(temporary)
        temporary.replace(_note(path))
    with contextlib.suppress(OSError):  # not every file system can be asked for that, and the files are in place
        _to_disk(path.parent)


def forget(path: Path) -> None:
    """Removes a file and its note.

    Raises:
        OSError: they cannot be removed.
    """
    _note(path).unlink(missing_ok=True)
    path.unlink(missing_ok=True)


def _note(path: Path) -> Path:
    return path.with_name(f"{path.name}.json")


def _checksum(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _to_disk(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
