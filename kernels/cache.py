"""Compiled kernels on disk.

Each file has a note, NAME.json, with its size and SHA-256, so that a truncated or altered file is never loaded. The
loader maps a library into memory, and a read past the end of a truncated file would kill the process with SIGBUS.

Anyone who can write a library can run code as its user. A folder or file that others own or can write is therefore
refused.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import secrets
import shlex
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

log = logging.getLogger("pdt.kernels")

_TEMPORARY = ".building-"
# Older temporary files are abandoned, because a compiler is stopped after minutes.
ABANDONED_AFTER_S = 6 * 3600.0


def folder() -> Path:
    """Return the folder of compiled kernels: $PDT_CACHE, otherwise ~/.cache/pdt-kernels."""
    chosen = os.environ.get("PDT_CACHE")
    return Path(chosen).expanduser() if chosen else Path.home() / ".cache" / "pdt-kernels"


def choices_folder() -> Path:
    """Return the folder of measured choices of this machine: `$PDT_CHOICES`, otherwise `choices` in `folder`."""
    chosen = os.environ.get("PDT_CHOICES")
    return Path(chosen).expanduser() if chosen else folder() / "choices"


class RefusedError(Exception):
    """Others may have written to the folder. The message is one line that tells what to type."""


def make_folder(folder: Path) -> None:
    """Create a folder and its missing parents with mode 0700.

    Raises:
        OSError: The folder cannot be created.
    """
    for missing in reversed([path for path in (folder, *folder.parents) if not path.exists()]):
        missing.mkdir(mode=0o700, exist_ok=True)


def check_folder(folder: Path) -> None:
    """Refuse a folder that somebody else owns or can write to. A missing folder is accepted.

    Files in it then stay the same between a check and an opening by name. The folders above it are not checked,
    although whoever can write to one of them can exchange the whole folder.

    Raises:
        RefusedError: Others may have written to the folder.
    """
    folder = folder.expanduser().resolve()  # the folder behind symbolic links in the path
    try:
        status = folder.stat()
    except OSError:
        return
    why = _strangers(status)
    if why:
        shared = not why.startswith("others") or status.st_mode & stat.S_ISVTX  # /tmp, for example, stays open
        close = "" if shared else f"type chmod go-w {shlex.quote(str(folder))}, or "
        raise RefusedError(f"the cache {folder} is not used: {why}; {close}set PDT_CACHE to a folder of your own")


def keep_code_of_torch_compile() -> None:
    """Let `torch.compile` of this process and its children keep compiled code in this cache.

    torch's own folder has a name among the temporary files that everybody can guess. Whoever makes it first may leave
    code in it for others. A $TORCHINDUCTOR_CACHE_DIR that is already set stays.

    Raises:
        RefusedError: See `check_folder`.
        OSError: The folder cannot be created.
    """
    if not os.environ.get("TORCHINDUCTOR_CACHE_DIR"):
        own = folder() / "inductor"
        make_folder(own)
        for path in (own.parent, own):
            check_folder(path)
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(own.resolve())


def _strangers(status: os.stat_result) -> str:
    """Return who else can write to a file or folder; empty if only its user and root can.

    An access control list that lets others write shows among the bits of the group. Windows has no owners and bits of
    this kind; it protects a user's folders by itself.
    """
    if not hasattr(os, "geteuid"):
        return ""
    if status.st_uid not in (os.geteuid(), 0):
        return f"it belongs to the user {status.st_uid}, and you are {os.geteuid()}"
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"others can write to it (mode {stat.S_IMODE(status.st_mode):04o})"
    return ""


def find(path: Path) -> dict[str, str] | None:
    """Check a compiled file against its note.

    Returns:
        The facts that were stored with the file. None if the file or its note is missing, if they do not match, or if
        others can write to one of them.

    Raises:
        RefusedError: See `check_folder`.
    """
    check_folder(path.parent)
    try:
        note = json.loads(_read(_note(path)))
        content = _read(path)
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(note, dict) or note.get("bytes") != len(content) or note.get("sha256") != _checksum(content):
        return None
    facts = note.get("facts")
    return facts if isinstance(facts, dict) else None


@contextmanager
def building(path: Path) -> Iterator[Path]:
    """Provide a temporary file in the folder of `path`, to be passed to `store`, and remove it afterwards.

    This also removes the temporary files of processes that were killed.

    Raises:
        OSError: The folder cannot be created or written.
        RefusedError: See `check_folder`.
    """
    make_folder(path.parent)
    check_folder(path.parent)
    _remove_abandoned(path.parent)
    temporary = path.with_name(f"{_TEMPORARY}{secrets.token_hex(8)}{path.suffix}")
    temporary.touch(exist_ok=False)  # shows a folder without write permission before a compiler runs
    try:
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)


def store(built: Path, path: Path, **facts: str) -> None:
    """Move a file into place, then write its note. Both reach the disk before they get their names.

    A process that is killed in between leaves a file without a note, which `find` ignores. Two processes may store the
    same file at once, because each rename replaces one complete file by another.

    Raises:
        OSError: The file or its note cannot be written.
    """
    content = built.read_bytes()
    _close(built)
    _sync(built)
    built.replace(path)
    _write_note(path, {"bytes": len(content), "sha256": _checksum(content), "facts": facts})


def add_facts(path: Path, **facts: str) -> None:
    """Store further facts with a file.

    Raises:
        OSError: The note cannot be written.
    """
    note = json.loads(_note(path).read_bytes())
    _write_note(path, {**note, "facts": {**note["facts"], **facts}})


def _remove_abandoned(folder: Path) -> None:
    for temporary in folder.glob(f"{_TEMPORARY}*"):
        with contextlib.suppress(OSError):  # another process may remove or own it
            if time.time() - temporary.stat().st_mtime > ABANDONED_AFTER_S:
                temporary.unlink()


def _write_note(path: Path, note: dict[str, object]) -> None:
    with building(_note(path)) as temporary:
        temporary.write_text(json.dumps(note), encoding="utf-8")
        _close(temporary)
        _sync(temporary)
        temporary.replace(_note(path))
    with contextlib.suppress(OSError):  # some file systems cannot sync a folder, and the files are already in place
        _sync(path.parent)


def _read(path: Path) -> bytes:
    """Return the content of a file after a check of owner and mode. The check is of the open file, not of its name."""
    with path.open("rb") as file:
        why = _strangers(os.fstat(file.fileno()))
        if why:
            log.warning("the cached kernel %s is not used, and compiled again: %s", path, why)
            raise PermissionError(why)
        return file.read()


def _close(path: Path) -> None:
    """Take the write permission, which the user's umask may have given, from group and others."""
    path.chmod(path.stat().st_mode & ~(stat.S_IWGRP | stat.S_IWOTH))


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
