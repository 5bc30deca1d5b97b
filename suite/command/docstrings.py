"""What a docstring says of each parameter: its sections `Attributes:` and `Args:`, in the style of this project."""

from __future__ import annotations

import inspect
import re
from typing import Any

_SECTION = re.compile(r"^(?:Attributes|Args):\n((?:[ ]{4,}.*\n|\n)*)", re.MULTILINE)
_ENTRY = re.compile(r"^[ ]{4}(\w+(?:, \w+)*): (.*(?:\n[ ]{5,}.*)*)", re.MULTILINE)


def parameter_texts(thing: Any) -> dict[str, str]:
    """The text of each parameter of a class or function, in one line; an entry `n, m: ...` is that of both.

    A class that says nothing of an inherited parameter has its parent's text.
    """
    found: dict[str, str] = {}
    for one in reversed(inspect.getmro(thing)) if inspect.isclass(thing) else (thing,):
        for section in _SECTION.findall(inspect.cleandoc(one.__doc__ or "") + "\n"):
            for names, text in _ENTRY.findall(section):
                found |= dict.fromkeys(names.split(", "), " ".join(text.split()))
    return found
