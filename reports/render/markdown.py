"""The report as Markdown, for a README or a paper; its figures lie beside it."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import jinja2

from reports.content.model import Cell, Column, Report, Table

_SPECIAL = re.compile(r"([\\`*_\[\]|~$])")


class Ready(str):
    """Text that is Markdown already and is not escaped again."""


def escape(text: str) -> str:
    """Text as Markdown that reads as it is: one line, no markup, no HTML."""
    line = " ".join(text.split())
    line = line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _SPECIAL.sub(r"\\\1", line)


def code(text: str) -> Ready:
    """Text as a code span; pipes are escaped as a table needs, which outside tables would show the backslash."""
    return Ready(_code(text))


def _code(text: str) -> str:
    line = " ".join(text.split())
    if not line:
        return ""
    # A fence longer than any run of backticks inside; a blank keeps the text's own backticks off it.
    fence = "`" * (1 + max((len(run) for run in re.findall(r"`+", line)), default=0))
    blank = " " if line.startswith("`") or line.endswith("`") else ""
    return f"{fence}{blank}{line}{blank}{fence}"


def table(content: Table) -> Ready:
    """A pipe table with its notes numbered below it."""
    heads = [_head(content, column) for column in content.columns]
    rules = ["---:" if column.numeric else ":---" for column in content.columns]
    lines = [heads, rules, *([_cell(content, cell) for cell in row] for row in content.rows)]
    text = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    notes = "\n".join(f"{number}. {escape(note)}" for number, note in enumerate(content.notes, 1))
    return Ready(f"{text}\n\n{notes}\n" if notes else f"{text}\n")


def _head(content: Table, column: Column) -> str:
    parts = [column.title, f"({column.unit})" if column.unit else "", f"[{column.kind}]" if column.kind else ""]
    return escape(" ".join(filter(None, parts))) + _mark(content, column.note)


def _cell(content: Table, cell: Cell) -> str:
    # Inside a table a pipe ends the cell even in a code span, unless it is escaped.
    text = _code(cell.text).replace("|", r"\|") if cell.code else escape(cell.text)
    return text + _mark(content, cell.note)


def _mark(content: Table, note: str) -> str:
    return f"<sup>{content.mark(note)}</sup>" if note else ""


def fenced(text: str) -> Ready:
    """A block of code."""
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall(r"`+", text)), default=0))
    return Ready(f"{fence}\n{text}\n{fence}")


def _escape_unless_ready(value: Any) -> str:
    return value if isinstance(value, Ready) else escape(str(value))


@cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("reports.render", "templates"),
        # HTML's escapes are not Markdown's: `finalize` escapes every expression instead, as autoescape would.
        autoescape=False,
        finalize=_escape_unless_ready,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"code": code, "table": table, "fenced": fenced}
    return environment


def render(report: Report) -> str:
    """The Markdown text; figures are referred to as `figures/NAME.svg`."""
    return render_template("report.md.j2", report=report)


def render_template(name: str, **content: Any) -> str:
    """A template of this room as Markdown; every expression in it is escaped."""
    text = _environment().get_template(name).render(**content)
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"
