"""Renders the tables of a report for a paper, with the packages `booktabs` and `graphicx`.

The numbers are those of the page, as text: nothing is computed or rounded here.
"""

from __future__ import annotations

import re

from reports.content.model import Cell, Column, Report, Table

_SPECIAL = {
    **{character: f"\\{character}" for character in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "\\": r"\textbackslash{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
    "−": "$-$",
    "×": r"$\times$",
    "±": r"$\pm$",
    "≤": r"$\leq$",
    "≥": r"$\geq$",
    "·": r"$\cdot$",
    "–": "--",
    "—": "---",
    "…": r"\dots{}",
    "’": "'",
    "\u00a0": "~",
}
_TO_ESCAPE = re.compile("|".join(map(re.escape, _SPECIAL)))
_HEAD = r"""% Tables of a report, for \input. Preamble: \usepackage{booktabs,graphicx}
% With pdfLaTeX also \usepackage[T1]{fontenc}"""


def escape(text: str) -> str:
    """Escape text, so that LaTeX shows it unchanged on one line."""
    return _TO_ESCAPE.sub(lambda found: _SPECIAL[found[0]], " ".join(text.split()))


def render(report: Report) -> str:
    """Return the tables of all groups, the first table of a group first, as `table` environments."""
    tables = [
        table(content, content.caption if group.title in content.caption else f"{group.title}. {content.caption}")
        for group in report.groups
        for content in (*((group.summary,) if group.summary else ()), *group.tables)
    ]
    return "\n".join([_HEAD, *tables]) + "\n"


def table(content: Table, caption: str) -> str:
    """Return a table with its caption above and its numbered notes below."""
    columns = "".join("r" if column.numeric else "l" for column in content.columns)
    heads = [_head(content, column) for column in content.columns]
    rows = [[_cell(content, cell) for cell in row] for row in content.rows]
    notes = [rf"  \textsuperscript{{{number}}}\,{escape(note)}\\" for number, note in enumerate(content.notes, 1)]
    return "\n".join(
        [
            r"\begin{table}",
            r"  \centering",
            rf"  \caption{{{escape(caption)}}}",
            rf"  \label{{tab:{_label(content.name)}}}",
            r"  \resizebox{\linewidth}{!}{%",
            rf"  \begin{{tabular}}{{{columns}}}",
            r"  \toprule",
            f"  {' & '.join(heads)} \\\\",
            r"  \midrule",
            *(f"  {' & '.join(row)} \\\\" for row in rows),
            r"  \bottomrule",
            r"  \end{tabular}}",
            *([r"  \par\footnotesize\raggedright", *notes] if notes else []),
            r"\end{table}",
        ]
    )


def _head(content: Table, column: Column) -> str:
    parts = [column.title, f"({column.unit})" if column.unit else "", f"[{column.kind}]" if column.kind else ""]
    return f"{{{escape(' '.join(filter(None, parts)))}}}{_mark(content, column.note)}"


def _cell(content: Table, cell: Cell) -> str:
    # Braces keep a bracket at the start of a row from being the argument of the row before.
    text = escape(cell.text)
    return (rf"\texttt{{{text}}}" if cell.code else f"{{{text}}}") + _mark(content, cell.note)


def _mark(content: Table, note: str) -> str:
    return rf"\textsuperscript{{{content.mark(note)}}}" if note else ""


def _label(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9-]+", "-", name)
