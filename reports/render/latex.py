"""Render the tables of a report for a paper, with the packages `array`, `booktabs` and `graphicx`.

The numbers are the texts of the page: this module computes and rounds nothing. It breaks texts into several lines, so
that a table fits a page of 345 pt in a readable size. A table that is still wider than the line is scaled down.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

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
    "`": r"\textasciigrave{}",
    "−": "$-$",
    "×": r"$\times$",
    "±": r"$\pm$",
    "≤": r"$\leq$",
    "≥": r"$\geq$",
    "·": r"$\cdot$",
    "÷": r"$\div$",
    "–": "--",
    "—": "---",
    "…": r"\dots{}",
    "’": "'",
    "\u00a0": "~",
    "\u00ad": "",
}
_DOUBLED = re.compile("-(?=-)|'(?=')|,(?=,)|!(?=`)|\\?(?=`)")  # LaTeX would join such a pair to another character
_BREAKS = re.compile(r"(?<=[\[,=/_.])(?=.)")  # in names of methods, where there are no spaces
_LONGEST_PART = 24  # characters of a part of a name that are kept on one line
_LINE = 78  # characters of a row in \footnotesize that fit on a line of 345 pt, with `_GAP` for each space
_GAP = 2  # characters of the space between two columns
_EM = 0.5  # width of a character, about
_EM_CODE = 0.53
_HEAD = r"""% Tables of a report, for \input. Preamble: \usepackage{array,booktabs,graphicx}
% With pdfLaTeX also \usepackage[T1]{fontenc} and \usepackage{lmodern}
% pdfLaTeX has no fonts for all characters: it shows the number of others, which LuaLaTeX and XeLaTeX print.
\DeclareRobustCommand{\pdtcharacter}[2]{\ifdefined\Umathcode#2\else\textless{}U+#1\textgreater{}\fi}"""


def escape(text: str) -> str:
    """Escape text, so that LaTeX shows it unchanged on one line, without characters that have no shape."""
    return "".join(map(_escape, _DOUBLED.sub(lambda found: f"{found[0]}\0", _kept_together(text))))


def _kept_together(text: str) -> str:
    """Return a text on one line, with no-break spaces between signs and the numbers or words that they belong to."""
    joined = " ".join(text.split())
    return joined.replace(" ± ", "\u00a0±\u00a0").replace("× ", "×\u00a0")


def _escape(character: str) -> str:
    if character == "\0":
        return "{}"
    if character in _SPECIAL:
        return _SPECIAL[character]
    if " " <= character <= "~" or "\u00a1" <= character <= "\u00ff":
        return character
    if unicodedata.category(character) in ("Cc", "Cf", "Cs"):  # control and format characters, lone surrogates
        return ""
    return rf"\pdtcharacter{{{ord(character):04X}}}{{{character}}}"


def render(report: Report) -> str:
    """Return the tables of all groups, the first table of a group first, as `table` environments.

    Each group begins a new page, because LaTeX stops if more than 52 tables wait for a place.
    """
    groups = []
    for group in report.groups:
        contents = (*((group.summary,) if group.summary else ()), *group.tables)
        captions = (one.caption if group.title in one.caption else f"{group.title}. {one.caption}" for one in contents)
        groups.append("\n".join(map(table, contents, captions)))
    return "\n".join([_HEAD, "\n\\clearpage\n".join(filter(None, groups))]) + "\n"


def table(content: Table, caption: str) -> str:
    """Return a table with its caption above and its numbered notes below."""
    heads = [_head(content, column) for column in content.columns]
    rows = [[_cell(content, cell) for cell in row] for row in content.rows]
    notes = [rf"  \textsuperscript{{{number}}}\,{escape(note)}\par" for number, note in enumerate(content.notes, 1)]
    return "\n".join(
        [
            r"\begin{table}",
            r"  \centering",
            rf"  \caption{{{escape(caption)}}}",
            rf"  \label{{tab:{_label(content.name)}}}",
            r"  \footnotesize\setlength{\tabcolsep}{3pt}",
            r"  \resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%",
            rf"  \begin{{tabular}}{{{_columns(content)}}}",
            r"  \toprule",
            f"  {' & '.join(heads)} \\\\",
            r"  \midrule",
            *(f"  {' & '.join(row)} \\\\\\addlinespace[1pt]" for row in rows),
            r"  \bottomrule",
            r"  \end{tabular}}",
            *([r"  \par\scriptsize\raggedright", *notes] if notes else []),
            r"\end{table}",
        ]
    )


def _columns(content: Table) -> str:
    """Return the column types of the table: paragraphs as wide as their texts need, right-aligned for numbers."""
    texts = [
        [_title(column), *(row[index].text for row in content.rows)] for index, column in enumerate(content.columns)
    ]
    is_code = [any(row[index].code for row in content.rows) for index in range(len(texts))]
    least = [
        max(len(word) for text in several for word in _words(text, code))
        for several, code in zip(texts, is_code, strict=True)
    ]
    # A head may always break between words. Cells break only if the table does not fit otherwise.
    most = [
        max(fewest, *(len(text) for text in several[1:])) if several[1:] else fewest
        for fewest, several in zip(least, texts, strict=True)
    ]
    free = max(0, _LINE - _GAP * (len(least) - 1) - sum(least))
    wanted = sum(most) - sum(least)
    share = min(1.0, free / wanted) if wanted else 0.0
    widths = [fewest + share * (full - fewest) for fewest, full in zip(least, most, strict=True)]
    parts = []
    for column, code, width in zip(content.columns, is_code, widths, strict=True):
        align = "left" if column.numeric else "right"
        ems = (width + 1) * (_EM_CODE if code else _EM)
        parts.append(rf">{{\ragged{align}\arraybackslash}}p{{{ems:.1f}em}}")
    return "".join(parts)


def _words(text: str, code: bool) -> Sequence[str]:
    """Return the parts of a text between which a line may end."""
    if code:
        return [part for word in text.split() for part in _parts(word)] or [""]
    return _kept_together(text).split(" ")


def _parts(name: str) -> Sequence[str]:
    """Return the parts of a name after which a line may end."""
    parts = _BREAKS.split(name)
    return [part[start : start + _LONGEST_PART] for part in parts for start in range(0, len(part), _LONGEST_PART)]


def _title(column: Column) -> str:
    # A unit with brackets of its own follows a comma.
    unit = column.unit if "(" not in column.unit else f", {column.unit}"
    unit = f" ({unit})" if column.unit and unit == column.unit else unit
    return f"{column.title}{unit}" + (f" [{column.kind}]" if column.kind else "")


def _head(content: Table, column: Column) -> str:
    return f"{{{escape(_title(column))}}}{_mark(content, column.note)}"


def _cell(content: Table, cell: Cell) -> str:
    # Without braces, LaTeX would take a bracket at the start of a row for an argument of the row before.
    text = rf"\texttt{{{_breakable(cell.text)}}}" if cell.code else f"{{{escape(cell.text)}}}"
    return text + _mark(content, cell.note)


def _breakable(text: str) -> str:
    return " ".join(r"\allowbreak{}".join(map(escape, _parts(word))) for word in text.split())


def _mark(content: Table, note: str) -> str:
    return rf"\textsuperscript{{{content.mark(note)}}}" if note else ""


def _label(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9-]+", "-", name)
