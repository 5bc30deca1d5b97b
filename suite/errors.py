"""Errors that the user can correct: one line on the terminal, exit status 2, no traceback."""

from __future__ import annotations

import difflib
import os
import types
import typing
from collections.abc import Iterable, Sequence
from typing import Any


class UsageError(Exception):
    """Input that cannot be used: something that was typed, or a file that was named. Its text is one line."""


class MissingData(UsageError):
    """A data set is not on the disk and cannot be downloaded."""


def in_words(error: OSError) -> str:
    """Describe an error of a file in one line: `No space left on device: /runs/x/model.pt`."""
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
        where: Place for error messages, for example the path of the file.

    Returns:
        An instance of `schema`.

    Raises:
        UsageError: One line with the first error: `WHERE: unknown key 'palce'; did you mean 'place'?`.
    """
    from pydantic import ValidationError  # not needed to list or describe

    try:
        return schema.model_validate(value)
    except ValidationError as error:
        # An unknown key is more likely than a missing one to be the mistake that was made.
        faults = sorted(error.errors(), key=lambda fault: fault["type"] != "extra_forbidden")
        raise UsageError(f"{where}: {_in_one_line(faults[0], schema)}") from None


_EXPECTED = {
    "string_type": "must be text",
    "int_type": "must be an integer",
    "float_type": "must be a number",
    "finite_number": "must be finite",
    "list_type": "must be a list",
    "dict_type": "must be a table",
    "model_type": "must be a table",
    "too_short": "must not be empty",
}
"""What is expected, by pydantic's type of error."""


def _in_one_line(fault: Any, schema: Any) -> str:
    """Describe one item of `pydantic.ValidationError.errors()`."""
    path, kind = fault["loc"], fault["type"]
    inside = f"{'.'.join(map(str, path[:-1]))}: " if len(path) > 1 else ""
    if kind == "extra_forbidden":
        return f"{inside}unknown key '{path[-1]}'{nearest(str(path[-1]), _at(schema, path[:-1]).model_fields)}"
    if kind == "missing":
        return f"{inside}'{path[-1]}' is missing"
    name = ".".join(map(str, path)) or "it"
    if kind == "literal_error":
        known = map(str, filter(None, typing.get_args(_at(schema, path))))
        return f"{name} is '{fault['input']}'{nearest(str(fault['input']), known)}"
    message = _EXPECTED.get(kind) or fault["msg"].removeprefix("Value error, ").replace("Input should", "should")
    if isinstance(fault["input"], (dict, list)):
        return f"{name} {message}"
    shown = repr(fault["input"]) if isinstance(fault["input"], str) else str(fault["input"]).lower()
    return f"{name} is {shown}; it {message}"


def _at(schema: Any, path: Sequence[Any]) -> Any:
    """Return the annotation of the field at a path of names and list indices."""
    for step in path:
        fields = getattr(schema, "model_fields", None)
        # The last argument is the type of a table's values; that of a tuple of any length is an ellipsis.
        schema = fields[step].annotation if fields else [one for one in typing.get_args(schema) if one is not ...][-1]
        if typing.get_origin(schema) in (typing.Union, types.UnionType):
            schema = typing.get_args(schema)[0]
    return schema
