"""The sentences of a report: templates that put findings into words.

A finding is a dataclass or plain values, and its sentence is a macro of a template in this folder:
`say("verdict.basis", ...)` calls the macro `basis` of `verdict.j2`. Names and commands in a sentence are between
backticks, which a page sets as code.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

import jinja2

from reports import formatting


def say(sentence: str, **findings: Any) -> str:
    """Return a sentence on one line.

    Args:
        sentence: Template and macro, `"verdict.basis"`.
        findings: Arguments of the macro.
    """
    file, _, macro = sentence.partition(".")
    return " ".join(str(getattr(_environment().get_template(f"{file}.j2").module, macro)(**findings)).split())


def listed(items: Sequence[str]) -> str:
    """Return `a, b and c`."""
    *others, last = items
    return f"{', '.join(others)} and {last}" if others else last


def code(name: str) -> str:
    """Return a name between backticks."""
    return f"`{name.replace('`', '')}`"


def named(names: Iterable[str]) -> str:
    """Return names between backticks: `a`, `b` and `c`."""
    return listed([*map(code, names)])


def counted(number: float, noun: str, plural: str = "") -> str:
    """Return `1 seed` or `3 seeds`."""
    return f"{number:g} {noun if number == 1 else plural or f'{noun}s'}"


def templates(package: str, folder: str, **options: Any) -> jinja2.Environment:
    """Return the templates in a folder of a package. A name that they do not know is an error."""
    return jinja2.Environment(
        loader=jinja2.PackageLoader(package, folder),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        **options,
    )


@cache
def _environment() -> jinja2.Environment:
    environment = templates("reports.sentences", "", autoescape=False)  # the templates of the pages escape
    environment.filters |= {"listed": listed, "code": code, "named": named, "counted": counted}
    names = ("duration_interval", "percent", "plain", "points", "ratio", "si", "signed")
    environment.filters |= {name: getattr(formatting, name) for name in names}
    return environment
