"""Errors that the user can correct: one line on the terminal, exit status 2, no traceback."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable
from typing import Any

MOST_FAULTS = 3  # of a file, in a message


class UsageError(Exception):
    """Input that cannot be used: something that was typed, or a file that was named. Its text is one line."""


class MissingData(UsageError):
    """A data set is not on the disk and cannot be downloaded."""


def in_words(error: OSError | UsageError) -> str:
    """Describe an error of a file in one line: `No space left on device: /runs/x/model.pt`."""
    if isinstance(error, UsageError):
        return str(error)
    text = error.strerror or str(error) or type(error).__name__
    return f"{text}: {os.fsdecode(error.filename)}" if isinstance(error.filename, (str, bytes)) else text


def nearest(name: str, known: Iterable[str], prefix: str = "") -> str:
    """Return `"; did you mean 'x'?"` for the known name nearest to `name`, or the list of known names.

    Args:
        name: Name as typed.
        known: Names that it may have been meant as.
        prefix: Text in front of each known name in the answer, which is not compared.
    """
    known = sorted(known)
    lowered = {candidate.lower(): candidate for candidate in reversed(known)}
    close = difflib.get_close_matches(name.lower(), lowered, n=1, cutoff=0.5)
    if not close and len(name) > 2:  # a name without its prefix
        close = [candidate for candidate in lowered if candidate.endswith(name.lower())]
    if close:
        return f"; did you mean '{prefix}{lowered[close[0]]}'?"
    return f"; known: {', '.join(prefix + one for one in known)}" if known else ""


def validate(schema: Any, value: Any, where: str) -> Any:
    """Check data that was read from a file against a pydantic model.

    Args:
        schema: Class derived from `pydantic.BaseModel`.
        value: Data as read, for example a table of a TOML file.
        where: Place for error messages, for example the path of the file; empty if the caller names it.

    Returns:
        An instance of `schema`.

    Raises:
        UsageError: One line with pydantic's messages: `WHERE: place: Field required; palce: Extra inputs are not ...`.
    """
    from pydantic import ValidationError  # not needed to list or describe

    try:
        return schema.model_validate(value)
    except ValidationError as error:
        faults = [": ".join(filter(None, (".".join(map(str, one["loc"])), one["msg"]))) for one in error.errors()]
        raise UsageError(": ".join(filter(None, (where, "; ".join(faults[:MOST_FAULTS]))))) from None
