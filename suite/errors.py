"""Errors that are the user's to mend: one line at the terminal, exit status 2, no traceback."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable


class UsageError(Exception):
    """Something the user typed, or a file they named, cannot be used. Its text is the one line they see."""


class MissingData(UsageError):
    """A data set is neither on disk nor to be fetched."""


def in_words(error: OSError) -> str:
    """An error of a file in one line, without Python's names: `No space left on device: /runs/x/model.pt`."""
    text = error.strerror or str(error) or type(error).__name__
    return f"{text}: {os.fsdecode(error.filename)}" if isinstance(error.filename, (str, bytes)) else text


def nearest(name: str, known: Iterable[str]) -> str:
    """Return `"; did you mean 'x'?"` for the known name nearest to `name`, else the list of the known ones."""
    known = sorted(known)
    lowered = {candidate.lower(): candidate for candidate in reversed(known)}
    close = difflib.get_close_matches(name.lower(), lowered, n=1, cutoff=0.5)
    if not close and len(name) > 2:  # a name without its prefix
        close = [candidate for candidate in lowered if candidate.endswith(name.lower())]
    if close:
        return f"; did you mean '{lowered[close[0]]}'?"
    return f"; known: {', '.join(known)}" if known else ""
