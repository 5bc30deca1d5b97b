"""The syntax of methods and models on the command line: `name[key=value,...]`, lists and grids.

    dense,sdgp[n=2,m=4]            a comma list; commas inside brackets separate parameters
    sdgp[mode=random|magnitude]    a grid: one choice per alternative, in the order of declaration
    net[milestones=(0.5,0.75)]     parentheses or brackets around a value protect its commas
    torchvision/vgg11              a member of a collection (`suite.registry.register_collection`)

This module does not know types. `suite.choices` gives the values the types of the declared parameters.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from suite.errors import UsageError

OPENING, CLOSING = "[(", "])"


@dataclass(frozen=True)
class Request:
    """One item of a list, as text.

    Attributes:
        text: Item as typed.
        name: Name of a method, task or model; `COLLECTION/NAME` for a member of a collection.
        alternatives: Typed values by key; several for a grid.
    """

    text: str
    name: str
    alternatives: dict[str, list[str]] = field(default_factory=dict)


def split(text: str, separator: str = ",") -> list[str]:
    """Split text at the separators outside of brackets, and strip the parts.

    Raises:
        UsageError: Brackets are not balanced.
    """
    parts, start, opened = [], 0, ""
    for position, character in enumerate(text):
        if character in OPENING:
            opened += character
        elif character in CLOSING:
            if not opened or OPENING.index(opened[-1]) != CLOSING.index(character):
                raise UsageError(f"'{text}': the '{character}' at position {position + 1} closes nothing")
            opened = opened[:-1]
        elif character == separator and not opened:
            parts.append(text[start:position].strip())
            start = position + 1
    if opened:
        raise UsageError(f"'{text}': a '{opened[-1]}' is never closed")
    return [*parts, text[start:].strip()]


def read_list(text: str, option: str) -> list[Request]:
    """Read a comma-separated list of `name` or `name[key=value,...]`.

    Args:
        text: Text as typed.
        option: Name of the option for error messages.

    Raises:
        UsageError: The text does not have this syntax.
    """
    try:
        return [_read_item(item) for item in split(text)]
    except UsageError as error:
        raise UsageError(f"{option} {error}") from None


def _read_item(item: str) -> Request:
    matched = re.fullmatch(r"((?:\w+/)?[\w-]+)(?:\[(.*)\])?", item, flags=re.DOTALL)
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
            hint = (
                f"; several values need parentheses: {key}=(A,B)" if (key := next(reversed(alternatives), "")) else ""
            )
            raise UsageError(f"'{item}': '{assignment}' is not key=value{hint}")
        if key in alternatives:
            raise UsageError(f"'{item}': {key} is given twice")
        alternatives[key] = values
    return Request(item, name, alternatives)
