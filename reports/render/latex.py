"""Render the main comparison of each group as a LaTeX table, with the package `booktabs`."""

from __future__ import annotations

import pandas as pd

from reports.content.model import Report, Table

_HEAD = r"% The first table of each group of a report, for \input. Preamble: \usepackage{booktabs}"


def render(report: Report) -> str:
    """Return a `tabular` for each group, with the texts of the page and the title of the group as a comment."""
    tables = [
        f"% {' '.join(group.title.split())}\n{_tabular(group.summary)}" for group in report.groups if group.summary
    ]
    return "\n".join([_HEAD, *tables])


def _tabular(content: Table) -> str:
    heads = [
        f"{column.title}{f' ({column.unit})' if column.unit else ''}{f' [{column.kind}]' if column.kind else ''}"
        for column in content.columns
    ]
    frame = pd.DataFrame([[f"{cell.text} {cell.mark}".strip() for cell in row] for row in content.rows], columns=heads)
    styled = frame.style.hide(axis="index").format(escape="latex").format_index(escape="latex", axis="columns")
    text: str = styled.to_latex(
        hrules=True, column_format="".join("r" if column.numeric else "l" for column in content.columns)
    )
    return text
