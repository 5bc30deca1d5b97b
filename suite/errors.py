"""Errors that are the user's to mend: one line at the terminal, exit status 2, no traceback."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UsageError(Exception):
    """Something the user typed, or a file they named, cannot be used. Its text is the one line they see."""


class MissingData(UsageError):
    """A data set is neither on disk nor to be fetched."""


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
