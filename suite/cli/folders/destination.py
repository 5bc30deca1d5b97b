"""New folders: a command writes into a temporary folder next to the destination, and renames it when it is complete.

A killed command therefore leaves no half-written destination, and the same command can be started again. What it leaves
is a hidden folder next to the destination.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from suite import files
from suite.errors import UsageError


def check_destination(verb: str, destination: Path, sources: Sequence[Path]) -> Path:
    """Check that a new folder can be written, before anything is read.

    Args:
        verb: Verb of the command, for messages and for the name of the temporary folder.
        destination: Path of the new folder, or of an empty one.
        sources: Folders that are read.

    Returns:
        The path without symbolic links.

    Raises:
        UsageError: The destination is not empty or inside a source, or cannot be created.
    """
    if destination.is_symlink() and not destination.exists():
        raise UsageError(f"{verb}: {destination} is a symbolic link to nothing")
    if destination.exists() and (not destination.is_dir() or any(destination.iterdir())):
        raise UsageError(f"{verb}: {destination} is not an empty folder")
    resolved = destination.resolve()
    for path in sources:
        if resolved.is_relative_to(path.resolve()):
            raise UsageError(f"{verb}: {destination} is inside {path}; choose another destination")
    above = _existing(resolved.parent)
    if not above.is_dir():
        raise UsageError(f"{verb}: {above} is a file, not a folder")
    if not os.access(above, os.W_OK | os.X_OK):
        raise UsageError(f"{verb}: {above} is not writable")
    return resolved


def _existing(path: Path) -> Path:
    """Return a path, or the nearest folder above it that exists."""
    return next(folder for folder in (path, *path.parents) if os.path.lexists(folder))


@contextmanager
def new_folder(verb: str, destination: Path) -> Iterator[Path]:
    """Yield an empty folder, which gets the name of the destination if the block ends without an error.

    Args:
        verb: See `check_destination`.
        destination: The path that `check_destination` returned.

    Raises:
        UsageError: A file cannot be written, or something else has created the destination.
    """
    with files.errors_of(_existing(destination.parent)):
        destination.parent.mkdir(parents=True, exist_ok=True)
        temporary = destination.with_name(f".{verb}-{secrets.token_hex(8)}")
        temporary.mkdir()
        try:
            yield temporary
            temporary.rename(destination)
        finally:
            if temporary.exists():
                files.remove_folder(temporary)
