"""Read the docstrings of methods, tasks and models."""

from __future__ import annotations

import inspect
from typing import Any

from docstring_parser import DocstringStyle, parse


def first_line(thing: Any) -> str:
    """Return the first line of a docstring."""
    return (thing.__doc__ or "").strip().partition("\n")[0]


def parameter_texts(definition: Any) -> dict[str, str]:
    """Return the description of each parameter of a class or function, in one line, from a docstring in Google style.

    The descriptions are in the sections `Attributes:` and `Args:`. An entry `n, m: ...` describes both parameters. A
    class that does not describe an inherited parameter takes its parent's text.
    """
    texts: dict[str, str] = {}
    for thing in reversed(inspect.getmro(definition)) if inspect.isclass(definition) else (definition,):
        for entry in parse(thing.__doc__ or "", style=DocstringStyle.GOOGLE).params:
            text = " ".join((entry.description or "").split())
            texts |= dict.fromkeys(entry.arg_name.split(", "), text)
    return texts
