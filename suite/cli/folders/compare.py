"""The verb `compare`: what differs between the trials of two folders."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from suite import files
from suite.cli.parser import LINE_WIDTH, Parser, program_name
from suite.trials.folder.reader import read


def compare(arguments: Sequence[str]) -> int:
    """Compare two folders, print or write the result, and return the exit status."""
    parser = Parser(
        prog=f"{program_name()} compare",
        description="Compare the finished trials of two folders by method, paired by seed: accuracy, time, FLOPs, and "
        "what differs in settings and provenance. Neither folder changes.",
    )
    parser.add_argument("first", metavar="A", help="output folder of a command, or an exported copy")
    parser.add_argument("second", metavar="B", help="the folder that is compared with it")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("-o", "--out", metavar="FILE.md", help="write the tables as Markdown")
    typed = parser.read(arguments)
    paths = [files.read_path(text, "compare") for text in (typed.first, typed.second)]
    page = files.read_path(typed.out, "--out") if typed.out is not None else None

    from reports import comparison  # imports numpy and pandas, which take time that wrong options should not cost

    difference = comparison.compare(*map(read, paths))
    tables = comparison.tables(difference)
    if page is not None:
        with files.errors_of(page.parent):
            files.write(page, comparison.as_markdown(tables, *paths))
    if typed.json:
        print(json.dumps(comparison.as_json(difference), indent=2, ensure_ascii=False, allow_nan=False))
        return 0
    console = Console(width=None if sys.stdout.isatty() else LINE_WIDTH)
    for table in tables:
        shown = Table(title=table.caption)
        for column in table.columns:
            head = f"{column.title} ({column.unit})" if column.unit else column.title
            shown.add_column(head, justify="right" if column.numeric else "left", overflow="fold")
        for row in table.rows:
            shown.add_row(*(cell.text.replace("[", r"\[") for cell in row))  # rich reads a bracket as a style
        console.print(shown)
    if page is not None:
        print(f"compare: {page}")
    return 0
