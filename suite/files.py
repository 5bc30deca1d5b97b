"""Paths, and reading and writing of files.

`read_path` and `read_bytes` check paths and files that a user names. `read_json` and `clean` take text from outside;
their result can be encoded and printed on a terminal. The other functions write files atomically: a reader finds either
the old content or the new content, even after a crash. Nothing is written through a link in the place of a file, which
a folder of somebody else may have. Errors of the disk name the file.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import json
import logging
import math
import os
import re
import secrets
import shutil
import stat
import tempfile
import time
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from typing import IO, Any

from filelock import lock_descriptor

from suite.errors import UsageError, in_words

MAX_FILE_BYTES = 1 << 20  # size of a file of options or a plugin

DATA_ROOT = "~/.cache/pdt-data"

# `.NAME.RANDOM.part`, in the folder of the file that it will replace
_PART = re.compile(r"\.(?P<name>.+)\.[0-9a-f]{16}\.part")
_UNCLEAN = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ufffe\uffff\ud800-\udfff]")
"""Lone surrogates, which UTF-8 excludes, and control characters, which XML excludes and terminals obey."""
_PLAIN = re.compile(rb"[^\\\x7f-\xff]*")  # JSON whose texts are clean
_LOCK_INTERVAL_S = 0.1
_ABANDONED_AFTER_S = 3600
"""Seconds without a write after which a temporary file is abandoned."""
_NO_LINKS = {errno.EPERM, errno.EACCES, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EMLINK, errno.EXDEV, errno.ENOSYS}
"""Errors of file systems that have no hard links or refuse another one."""
_READ_ONLY = {errno.EROFS, errno.EACCES, errno.EPERM}
_DISK_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS}

_warn_once = functools.cache(logging.getLogger(__name__).warning)


def default_data_root() -> str:
    """Return the folder of the data sets if none is typed: $PDT_DATA, otherwise `DATA_ROOT`."""
    return os.environ.get("PDT_DATA") or DATA_ROOT


def read_path(text: str, option: str) -> Path:
    """Return the absolute path that a text names; `~` is the home folder. The file or folder need not exist.

    Args:
        text: Path as typed.
        option: Name of the option for error messages, for example `--out`.

    Raises:
        UsageError: The text is not a valid path, or the path cannot be looked up.
    """
    if not text:
        raise UsageError(f"{option} is empty; give the path of a file or a folder")
    try:
        path = Path(text).expanduser().absolute()
    except RuntimeError:  # pathlib raises it for ~NAME if no such user exists
        user = Path(text).parts[0]
        hint = f"there is no user '{user[1:]}'; ./{user} is a folder of that name" if user != "~" else "HOME is not set"
        raise UsageError(f"{option} '{text}': {hint}") from None
    except OSError as error:
        raise UsageError(f"{option} '{text}': {error.strerror or error}") from error
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        pass  # the caller reports a missing file or parent folder
    except (OSError, ValueError) as error:  # a name that is too long, a loop of links; a null byte
        raise UsageError(f"{option} '{text}': {getattr(error, 'strerror', None) or error}") from error
    return path


def read_bytes(path: Path, option: str, limit: int = MAX_FILE_BYTES) -> bytes:
    """Return the content of a regular file.

    A device or a pipe is refused, because it may never end.

    Args:
        option: Name of the option for error messages.
        limit: Largest number of bytes.

    Raises:
        UsageError: The file does not exist, cannot be read, is not a regular file, or is larger than `limit`.
    """
    try:
        # Without O_NONBLOCK, opening a pipe would wait for a writer.
        with os.fdopen(os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)), "rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            if not stat.S_ISREG(mode):
                raise UsageError(f"{option} {path}: is {_file_type(mode)}, not a regular file")
            content = file.read(limit + 1)
    except FileNotFoundError:
        raise UsageError(f"{option} {path}: no such file") from None
    except (OSError, ValueError) as error:
        if isinstance(error, IsADirectoryError):
            raise UsageError(f"{option} {path}: is a folder, not a regular file") from None
        raise UsageError(f"{option} {path}: {getattr(error, 'strerror', None) or error}") from error
    if len(content) > limit:
        raise UsageError(f"{option} {path}: is too large; the limit is {limit:,} bytes")
    return content


def clean(text: str) -> str:
    """Replace lone surrogates and control characters, except for tabs and line breaks, by U+FFFD."""
    return _UNCLEAN.sub("\ufffd", text)


def read_json(text: str | bytes) -> Any:
    """Parse JSON into plain data with clean text.

    Raises:
        ValueError: The text is not JSON, or is nested too deeply.
    """
    content = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
    try:
        # Folders of 1,000 trials have millions of numbers. A call of Python code for each would be slow.
        return json.loads(text) if _PLAIN.fullmatch(content) else _tidy(json.loads(text))
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def _tidy(value: Any) -> Any:
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, dict):
        return {clean(key): _tidy(inner) for key, inner in value.items()}
    return [_tidy(inner) for inner in value] if isinstance(value, list) else value


def _file_type(mode: int) -> str:
    if stat.S_ISDIR(mode):
        return "a folder"
    return "a pipe or socket" if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) else "a device"


def no_link(path: str | Path, flags: int) -> int:
    """Open a file, which is created if it does not exist, unless it is a link: an opener for `open`."""
    return os.open(path, flags | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o666)


def append(path: Path, text: str) -> None:
    """Append text to a file and wait until it is on the disk. After a crash, the text may be incomplete.

    Raises:
        OSError: The file cannot be written; the error names the file.
    """
    with _named(path), open(path, "ab", opener=no_link) as file:
        file.write(_encoded(text))
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def errors_of(folder: Path) -> Iterator[None]:
    """Turn errors of files in a folder, such as a full disk, into a one-line `UsageError` with reason and file."""
    try:
        yield
    except OSError as error:
        if not isinstance(error.filename, (str, bytes)) or not Path(os.fsdecode(error.filename)).is_relative_to(folder):
            raise
        copy = f"; if {folder} is read-only, copy it and name the copy" if error.errno in _READ_ONLY else ""
        raise UsageError(in_words(error) + copy) from error


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Add the name of the file to errors of the disk, because `write` and `fsync` do not know the name."""
    try:
        yield
    except OSError as error:
        if error.errno in _DISK_ERRORS and error.filename is None:
            error.filename = str(path)
        raise


@contextmanager
def replacing(path: Path, *, durable: bool = True) -> Iterator[IO[bytes]]:
    """Open a temporary binary file that replaces `path` when the block ends.

    If the block fails, the temporary file is removed. If two processes write the same path at once, the later one wins.

    Args:
        path: Path in an existing folder.
        durable: Whether to wait for the disk, so that the file survives a power failure.

    Yields:
        The temporary file.

    Raises:
        OSError: The file cannot be written. The error names the file, and `path` is unchanged.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.part")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    except OSError as error:
        error.filename = str(path)  # the user does not know the temporary name
        raise
    try:
        with _named(path):
            with os.fdopen(descriptor, "wb") as file:
                yield file
                if durable:
                    file.flush()
                    os.fsync(file.fileno())
            temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    if durable:
        # A power failure undoes the rename unless the folder is also written to the disk. Some file systems cannot
        # write a folder; the file is replaced nevertheless.
        with contextlib.suppress(OSError):
            folder = os.open(path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)


def write(path: Path, content: bytes | str, *, durable: bool = True) -> None:
    """Replace the content of a file; text is written as UTF-8. Arguments and errors are those of `replacing`.

    A path that is not UTF-8 contains lone surrogates. They are written as `\\udcXX`, the notation of JSON, so that a
    trial's process finds its files.
    """
    with replacing(path, durable=durable) as file:
        file.write(_encoded(content) if isinstance(content, str) else content)


def keep_copy(source: Path, path: Path) -> None:
    """Give a file a second name, which stays when the file is replaced. A copy replaces a missing hard link.

    Raises:
        OSError: The file cannot be read, linked or copied.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.part")
    try:
        os.link(source, temporary)
        temporary.replace(path)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        with open(source, "rb") as content, replacing(path) as file:
            shutil.copyfileobj(content, file)
    finally:
        temporary.unlink(missing_ok=True)


def _encoded(text: str) -> bytes:
    return text.encode(errors="backslashreplace")


def parts(folder: Path, name: str = "") -> list[Path]:
    """Return the temporary files in a folder, for the file `name` or for all files.

    The writer of each was killed or still runs.
    """
    paths = []
    for path in sorted(folder.glob(".*.part")):
        matched = _PART.fullmatch(path.name)
        if matched and path.is_file() and name in ("", matched["name"]):
            paths.append(path)
    return paths


def remove_parts(path: Path) -> None:
    """Remove what killed processes left of a file that only this process writes."""
    for part in parts(path.parent, path.name):
        part.unlink(missing_ok=True)


def remove_abandoned(folder: Path, name: str = "") -> None:
    """Remove the temporary files that stopped growing, for the file `name` or for all files."""
    for path in parts(folder, name):
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > _ABANDONED_AFTER_S:
                path.unlink()


def lock(path: Path, seconds: float = math.inf) -> FileIO:
    """Open a file, which is created if it does not exist, and lock it until it is closed or this process ends.

    Programs that this process starts do not inherit the lock. Without locks in the file system, there is a warning.

    Args:
        path: File in an existing folder.
        seconds: Time to wait for another process that holds the lock.

    Raises:
        TimeoutError: Another process still holds the lock.
        OSError: The file cannot be opened.
    """
    try:
        descriptor = no_link(path, os.O_RDWR)
    except PermissionError:  # another user of a shared folder has made the lock
        if not path.exists():
            raise
        descriptor = os.open(path, os.O_RDONLY)
    file, deadline = FileIO(descriptor, "r+"), time.monotonic() + seconds
    while not try_lock(descriptor, path.parent):
        if time.monotonic() > deadline:
            file.close()
            raise TimeoutError(f"{path} is locked")
        time.sleep(_LOCK_INTERVAL_S)
    return file


def try_lock(descriptor: int, folder: Path) -> bool:
    """Lock an open file in a folder, and return whether no other process holds its lock, as far as that is known."""
    try:
        return lock_descriptor(descriptor, blocking=False)
    except OSError as error:
        _warn_once(
            "%s: its file system has no locks (%s), so do not run two commands on this folder at the same time; "
            "--out (for data, --data-root) chooses a folder on another file system", folder, error.strerror,
        )  # fmt: skip
        return True


@contextmanager
def temporary_folder(prefix: str, parent: str = "") -> Iterator[Path]:
    """Yield a new folder among the temporary files, or in the folder `parent`, and remove it at the end.

    This also removes what killed processes of this user left: folders with the same prefix whose locks are free.
    """
    prefix = f"{prefix}{os.getuid()}-"
    for path in Path(parent or tempfile.gettempdir()).glob(f"{prefix}*"):
        with contextlib.suppress(OSError):
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                facts = os.fstat(descriptor)
                ours = facts.st_uid == os.getuid() and time.time() - facts.st_mtime > 1  # a new one is not yet locked
                if ours and lock_descriptor(descriptor, blocking=False):
                    shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(descriptor)
    path = Path(tempfile.mkdtemp(prefix=prefix, dir=parent or None))
    descriptor = os.open(path, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # without locks, others do not remove it either
            lock_descriptor(descriptor, blocking=False)
        yield path
    finally:
        os.close(descriptor)
        shutil.rmtree(path, ignore_errors=True)


def archive_damage(path: Path) -> str:
    """Return why a file of tensors is damaged, as text that follows its name; empty if the file is intact.

    Torch writes uncompressed zip archives, and its own reader does not verify their checksums.

    Raises:
        OSError: The file cannot be read.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            if any(member.compress_type != zipfile.ZIP_STORED for member in archive.infolist()):
                return "is not a file of tensors"
            broken = archive.testzip()
    except (zipfile.BadZipFile, zlib.error, ValueError, NotImplementedError, RuntimeError, EOFError, KeyError):
        return "is damaged, or not a file of tensors"  # zipfile raises all of these for damaged archives
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return "is damaged: its table of contents points outside the file"  # zipfile seeks to a negative position
    return f"is damaged: the checksum of {broken} in it is wrong" if broken else ""


def canonical_json(data: Any) -> str:
    """Return JSON with sorted keys and without spaces, so that equal data gives equal text. Infinities are refused."""
    return json.dumps(data, sort_keys=True, separators=(",", ":"), allow_nan=False, default=_plain)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{value!r} is not plain data")


def without_home(text: str) -> str:
    """Replace the home folder, which contains the user's name, by `~`."""
    home = str(Path.home())
    return text.replace(home, "~") if len(home) > 1 else text
