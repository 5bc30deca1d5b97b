"""Compiled kernels on disk.

Each file has a note, NAME.json, with its size and SHA-256, so that a truncated or altered file is never loaded. The
loader maps a library into memory, and reading past the end of a truncated file kills the process with SIGBUS.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_TEMPORARY = ".building-"
# Temporary files older than this are considered abandoned. A compiler is stopped after minutes.
ABANDONED_AFTER_S = 6 * 3600.0


def folder() -> Path:
    """Return the folder of compiled kernels: $PDT_CACHE, otherwise ~/.cache/pdt-kernels."""
    chosen = os.environ.get("PDT_CACHE")
    return Path(chosen).expanduser() if chosen else Path.home() / ".cache" / "pdt-kernels"


def find(path: Path) -> dict[str, str] | None:
    """Check a compiled file against its note.

    Returns:
        The facts that were stored with the file, or None if the file or its note is missing or they do not match.
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
    """Provide a temporary file in the folder of `path`, to be passed to `store`, and remove it afterwards.

    Also removes the temporary files of processes that were killed.

    Raises:
        OSError: The folder cannot be created or written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(path.parent)
    temporary = path.with_name(f"{_TEMPORARY}{secrets.token_hex(8)}{path.suffix}")
    temporary.touch(exist_ok=False)  # a folder without write permission is detected before a compiler runs
    try:
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)


def store(built: Path, path: Path, **facts: str) -> None:
    """Move a file into place, then write its note; both reach the disk before they get their names.

    A process that is killed in between leaves a file without a note, which `find` ignores. Two processes may store the
    same file at once: each rename replaces one complete file by another.

    Raises:
        OSError: The file or its note cannot be written.
    """
    content = built.read_bytes()
    note = {"bytes": len(content), "sha256": _checksum(content), "facts": facts}
    _sync(built)
    built.replace(path)
    with building(_note(path)) as temporary:
        temporary.write_text(json.dumps(note), encoding="utf-8")
        _sync(temporary)
        temporary.replace(_note(path))
    with contextlib.suppress(OSError):  # some file systems cannot sync a folder, and the files are in place already
        _sync(path.parent)


def forget(path: Path) -> None:
    """Remove a file and its note.

    Raises:
        OSError: They cannot be removed.
    """
    _note(path).unlink(missing_ok=True)
    path.unlink(missing_ok=True)


def _remove_abandoned(folder: Path) -> None:
    for temporary in folder.glob(f"{_TEMPORARY}*"):
        with contextlib.suppress(OSError):  # another process may remove it, or own it
            if time.time() - temporary.stat().st_mtime > ABANDONED_AFTER_S:
                temporary.unlink()


def _note(path: Path) -> Path:
    return path.with_name(f"{path.name}.json")


def _checksum(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
