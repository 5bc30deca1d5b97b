"""Files that are written whole: a reader, or a crash, finds the old content or the new, never a part of it.

Nothing here writes or deletes through a symbolic link: a link in the place of a file or folder of ours leads to
something that is not ours, and is refused with a `UsageError`. Errors of the disk name the file.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from suite.errors import UsageError, in_words

# `.NAME.RANDOM.part`, beside the file that it is to become.
_PART = re.compile(r"\.(?P<name>.+)\.[0-9a-f]{16}\.part")
_LEFT_AFTER_S = 3600
"""What nobody has written to for so long was left by a writer that was killed."""
_OF_THE_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS}


def refuse_link(path: Path) -> None:
    """See that a path is not a symbolic link, whether what it leads to exists or not.

    Raises:
        UsageError: if it is one.
    """
    if path.is_symlink():
        raise UsageError(
            f"{path} is a symbolic link, and nothing is written or deleted through links; remove it, or move what it "
            "leads to into its place"
        )


def make_folder(path: Path) -> None:
    """Make a folder and those above it; one that exists may stay.

    Raises:
        UsageError: if a symbolic link has its name.
        OSError: if it cannot be made.
    """
    refuse_link(path)
    path.mkdir(parents=True, exist_ok=True)


def remove_folder(path: Path) -> None:
    """Delete a folder with all that is in it. Links inside are deleted, and what they lead to stays.

    Raises:
        UsageError: if it is a symbolic link.
        OSError: if it cannot be deleted.
    """
    refuse_link(path)
    shutil.rmtree(path)


def opened(path: Path, flags: int) -> int:
    """A descriptor of an ordinary file, which is made where there is none; `flags` are those of `os.open`.

    Raises:
        UsageError: if a link, a folder, a pipe or a device has its name.
        OSError: if it cannot be opened.
    """
    refuse_link(path)
    # Also keeps out a pipe, which would wait for its other end.
    if path.exists() and not path.is_file():
        raise UsageError(f"{path} is not an ordinary file, and one is to be there")
    return os.open(path, flags | os.O_CREAT | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0), 0o666)


def append(path: Path, text: str) -> None:
    """Add text to the end of a file, and wait until it is on the disk. A crash may leave a part of the text.

    Raises:
        UsageError: if it is a symbolic link, or not a file.
        OSError: if it cannot be written; it names the file.
    """
    with _named(path), os.fdopen(opened(path, os.O_WRONLY | os.O_APPEND), "ab") as file:
        file.write(_encoded(text))
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def errors_of(folder: Path) -> Iterator[None]:
    """Make errors of files in a folder, such as a full disk, a `UsageError`: one line with the reason and the file."""
    try:
        yield
    except OSError as error:
        if not isinstance(error.filename, (str, bytes)) or not Path(os.fsdecode(error.filename)).is_relative_to(folder):
            raise
        raise UsageError(in_words(error)) from error


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Give errors of the disk the name of the file that was written; `write` and `fsync` do not know it."""
    try:
        yield
    except OSError as error:
        if error.errno in _OF_THE_DISK and error.filename is None:
            error.filename = str(path)
        raise


@contextmanager
def replacing(path: Path, *, durable: bool = True) -> Iterator[IO[bytes]]:
    """A binary file to write; when the block ends it takes the place of `path`, and if the block fails nothing is left.

    Two processes may write one path at once; the later one stays.

    Args:
        path: in a folder that exists.
        durable: outlast a power failure, for the price of waiting for the disk.

    Raises:
        UsageError: if `path` is a symbolic link.
        OSError: if it cannot be written; it names the file, and `path` is as it was before.
    """
    refuse_link(path)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.part")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0), 0o666)
    except OSError as error:
        error.filename = str(path)  # the user knows this name alone
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
        # The rename itself is lost in a power failure unless the folder reaches the disk too. Not every file system can
        # be asked for that, and the file is in its place.
        with contextlib.suppress(OSError):
            folder = os.open(path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)


def write(path: Path, content: bytes | str, *, durable: bool = True) -> None:
    """Replace a file by new content; text as UTF-8. Arguments and errors as of `replacing`.

    Paths that are not UTF-8 hold lone surrogates, which become `\\udcXX`: in JSON, this is how they are written.
    """
    with replacing(path, durable=durable) as file:
        file.write(_encoded(content) if isinstance(content, str) else content)


def _encoded(text: str) -> bytes:
    return text.encode(errors="backslashreplace")


def parts(folder: Path, name: str = "") -> list[Path]:
    """What killed writers left in a folder, and what others write there now: of one file, or of all."""
    found = []
    for path in sorted(folder.glob(".*.part")):
        matched = _PART.fullmatch(path.name)
        if matched and path.is_file() and name in ("", matched["name"]):
            found.append(path)
    return found


def remove_left(folder: Path, name: str = "") -> None:
    """Remove parts that killed writers left, of one file or of all; one that grows is another's, and stays."""
    for path in parts(folder, name):
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > _LEFT_AFTER_S:
                path.unlink()
