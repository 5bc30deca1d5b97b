"""Render a report as Markdown, for a README or a paper. It refers to the figures in `figures/`."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import jinja2

from reports.content.model import Cell, Column, Report, Table
from reports.sentences import templates

_SPECIAL = re.compile(r"([\\`*_\[\]|~$])")


class Markdown(str):
    """Text that is already Markdown, and so needs no escape."""


def escape(text: str) -> str:
    """Escape text, so that Markdown shows it unchanged on one line, without markup or HTML."""
    return _escape(" ".join(text.split()))


def _escape(line: str) -> str:
    line = line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _SPECIAL.sub(r"\\\1", line)


def code(text: str) -> Markdown:
    """Return text as a code span."""
    return Markdown(_code(text))


def spans(text: str) -> Markdown:
    """Return text with a code span for each part between backticks."""
    parts = " ".join(text.split()).split("`")
    return Markdown("".join(_code(part) if index % 2 else _escape(part) for index, part in enumerate(parts)))


def _code(text: str) -> str:
    line = " ".join(text.split())
    if not line:
        return ""
    # The fence must be longer than any run of backticks in the text, and apart from backticks at the text's ends.
    fence = "`" * (1 + max((len(run) for run in re.findall(r"`+", line)), default=0))
    blank = " " if line.startswith("`") or line.endswith("`") else ""
    return f"{fence}{blank}{line}{blank}{fence}"


def table(content: Table) -> Markdown:
    """Return a pipe table, with its numbered notes below."""
    return Markdown(f"{rows(content)}\n{notes(content)}")


def rows(content: Table) -> Markdown:
    """Return a pipe table."""
    heads = [_head(content, column) for column in content.columns]
    rules = ["---:" if column.numeric else ":---" for column in content.columns]
    lines = [heads, rules, *([_cell(content, cell) for cell in row] for row in content.rows)]
    return Markdown("".join(f"| {' | '.join(line)} |\n" for line in lines))


def notes(content: Table) -> Markdown:
    """Return the numbered notes of a table."""
    return Markdown("".join(f"{number}. {escape(note)}\n" for number, note in enumerate(content.notes, 1)))


def _head(content: Table, column: Column) -> str:
    parts = [column.title, f"({column.unit})" if column.unit else "", f"[{column.kind}]" if column.kind else ""]
    return escape(" ".join(filter(None, parts))) + _mark(content, column.note)


def _cell(content: Table, cell: Cell) -> str:
    # In a table an unescaped pipe ends the cell, even inside a code span.
    if cell.spans:
        text = re.sub(r"(?<!\\)\|", r"\\|", spans(cell.text))
    else:
        text = _code(cell.text).replace("|", r"\|") if cell.code else escape(cell.text)
    return text + (f" {escape(cell.mark)}" if cell.mark else "") + _mark(content, cell.note)


def _mark(content: Table, note: str) -> str:
    return f"<sup>{content.mark(note)}</sup>" if note else ""


def fenced(text: str) -> Markdown:
    """Return text as a block of code."""
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall(r"`+", text)), default=0))
    return Markdown(f"{fence}\n{text}\n{fence}")


def _escape_unless_markdown(value: Any) -> str:
    return value if isinstance(value, Markdown) else escape(str(value))


@cache
def _environment() -> jinja2.Environment:
    # Autoescape would escape for HTML. `finalize` escapes every expression for Markdown instead.
    environment = templates("reports.render", "templates", autoescape=False, finalize=_escape_unless_markdown)
    environment.filters |= {
        "code": code,
        "spans": spans,
        "table": table,
        "rows": rows,
        "notes": notes,
        "fenced": fenced,
    }
    return environment


def render(report: Report) -> str:
    """Return the report as Markdown text that refers to figures as `figures/NAME.svg`."""
    return render_template("report.md.j2", report=report)


def render_template(name: str, **content: Any) -> str:
    """Render a Markdown template of this package. Every expression in it is escaped."""
    text = _environment().get_template(name).render(**content)
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"
