"""`name[key=value,...]` and grids as they are typed: the syntax alone, without any type.

    dense,sdgp[n=2,m=4]            a comma list; commas inside brackets separate parameters
    sdgp[mode=random|magnitude]    a grid: one choice for each alternative, in declaration order
    net[milestones=(0.5,0.75)]     parentheses (or brackets) around a value protect its commas

Types come from the signature of the registered class or function: `suite.choices`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from suite.errors import UsageError

OPENING, CLOSING = "[(", "])"


@dataclass(frozen=True)
class Request:
    """One item of a list as it was typed: a name, and for each key its alternatives, not yet of any type."""

    text: str
    name: str
    alternatives: dict[str, list[str]] = field(default_factory=dict)


def split(text: str, separator: str = ",") -> list[str]:
    """Split at the separators that stand in no bracket, and strip the parts.

    Raises:
        UsageError: if brackets do not pair.
    """
    parts, start, opened = [], 0, ""
    for position, character in enumerate(text):
        if character in OPENING:
            opened += character
        elif character in CLOSING:
            if not opened or OPENING.index(opened[-1]) != CLOSING.index(character):
                raise UsageError(f"'{text}': the '{character}' at character {position + 1} closes nothing")
            opened = opened[:-1]
        elif character == separator and not opened:
            parts.append(text[start:position].strip())
            start = position + 1
    if opened:
        raise UsageError(f"'{text}': a '{opened[-1]}' is never closed")
    return [*parts, text[start:].strip()]


def read_list(text: str, option: str) -> list[Request]:
    """Read a comma list of `name` or `name[key=value,...]`; `option` names it in errors."""
    try:
        return [_read_item(item) for item in split(text)]
    except UsageError as error:
        raise UsageError(f"{option} {error}") from None


def _read_item(item: str) -> Request:
    matched = re.fullmatch(r"(\w+)(?:\[(.*)\])?", item, flags=re.DOTALL)
    if matched is None:
        raise UsageError(f"'{item}': expected name or name[key=value,...]")
    name, inside = matched.groups()
    if inside is None:
        return Request(item, name)
    alternatives: dict[str, list[str]] = {}
    for assignment in split(inside):
        key, equals, value = (part.strip() for part in assignment.partition("="))
        values = split(value, "|")
        if not key or not equals or not all(values):
            raise UsageError(f"'{item}': '{assignment}' is not key=value")
        if key in alternatives:
            raise UsageError(f"'{item}': {key} is given twice")
        alternatives[key] = values
    return Request(item, name, alternatives)
