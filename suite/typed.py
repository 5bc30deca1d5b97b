"""Paths and files that a user names: what cannot be one is a `UsageError` before anything is done with it."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from suite.errors import UsageError

LONGEST_NAME = 255  # bytes of a file's name, on every file system that is in use
LONGEST_PATH = 3500  # bytes; Linux takes 4,095, and the suite's own folders and files have to fit behind it
MOST_BYTES = 1 << 20  # of a file of options or a plugin


def read_path(text: str, option: str) -> Path:
    """The absolute path that a text names; `~` is the home folder. A file or folder may be there or not.

    Args:
        text: as typed.
        option: names it in errors, like `--out`.

    Raises:
        UsageError: if there can be no such path, or whether something is there cannot be asked.
    """
    if not text:
        raise UsageError(f"{option} is empty; name a file or a folder")
    try:
        path = Path(text).expanduser().absolute()
    except RuntimeError:  # what pathlib raises for ~NAME where there is no such user
        user = Path(text).parts[0]
        hint = (
            f"no user is called '{user[1:]}'; ./{user} is a folder of that name" if user != "~" else "HOME is not set"
        )
        raise UsageError(f"{option} '{text}': {hint}") from None
    except OSError as error:
        raise UsageError(f"{option} '{text}': {error.strerror or error}") from error
    try:
        if any(len(os.fsencode(part)) > LONGEST_NAME for part in path.parts):
            raise UsageError(f"{option} '{text}': a name in it is longer than {LONGEST_NAME} bytes")
        if len(os.fsencode(path)) > LONGEST_PATH:
            raise UsageError(f"{option} '{text}': the path is longer than {LONGEST_PATH} bytes")
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        pass  # what is missing, and what is a file in place of a folder, the caller says in its own words
    except (OSError, ValueError) as error:  # a loop of links, a folder that may not be entered; a null byte
        raise UsageError(f"{option} '{text}': {getattr(error, 'strerror', None) or error}") from error
    return path


def read_bytes(path: Path, option: str, most: int = MOST_BYTES) -> bytes:
    """The content of a regular file; a device or a pipe, which may never end, is refused, and so is a larger file.

    Raises:
        UsageError: if it is not there, cannot be read, is no regular file, or has more than `most` bytes.
    """
    try:
        # Without O_NONBLOCK, opening a pipe would wait for a writer.
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            if not stat.S_ISREG(mode):
                raise UsageError(f"{option} {path}: is {_kind(mode)}, not a regular file")
            content = file.read(most + 1)
    except FileNotFoundError:
        raise UsageError(f"{option} {path}: no such file") from None
    except (OSError, ValueError) as error:
        if isinstance(error, IsADirectoryError):
            raise UsageError(f"{option} {path}: is a folder, not a regular file") from None
        raise UsageError(f"{option} {path}: {getattr(error, 'strerror', None) or error}") from error
    if len(content) > most:
        raise UsageError(f"{option} {path}: is larger than {most:,} bytes, which no such file is")
    return content


def _kind(mode: int) -> str:
    if stat.S_ISDIR(mode):
        return "a folder"
    return "a pipe or socket" if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) else "a device"
