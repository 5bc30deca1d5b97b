"""What the docstrings of methods, tasks and models say."""

from __future__ import annotations

import inspect
from typing import Any

from docstring_parser import DocstringStyle, parse


def first_line(thing: Any) -> str:
    """Return the first line of a docstring."""
    return (thing.__doc__ or "").strip().partition("\n")[0]


def parameter_texts(definition: Any) -> dict[str, str]:
    """Return the description of each parameter of a class or function, from its docstring in Google style, in one line.

    The sections `Attributes:` and `Args:` count. An entry `n, m: ...` describes both parameters. A class that does not
    describe an inherited parameter takes its parent's text.
    """
    found: dict[str, str] = {}
    for one in reversed(inspect.getmro(definition)) if inspect.isclass(definition) else (definition,):
        for entry in parse(one.__doc__ or "", style=DocstringStyle.GOOGLE).params:
            text = " ".join((entry.description or "").split())
            found |= dict.fromkeys(entry.arg_name.split(", "), text)
    return found
