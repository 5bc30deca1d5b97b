"""Write the results of the README from the committed reports, or check that they are up to date.

    python tools/readme_tables.py [--write]

A block of the README begins with `<!-- results of FOLDER -->` and ends with `<!-- end of results -->`. It repeats
columns of the first table of the folder's report for dense and each method with an outcome, which are the rows of the
figure of gains, and the report's price list with the cheapest way to each accuracy. Short names tell the methods apart,
and notes give their names as typed. Ways without pruning are in italics. The exit status is 1 if a block is out of
date.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Mapping, Sequence
from itertools import takewhile
from pathlib import Path

from reports.figures.svg import short_names

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
# Columns of the first table of a report, by the beginning of their heads. Costs are times or FLOPs.
COLUMNS = ("Method", "Accuracy", ("Training time", "Executed"), "Gain over dense", "At equal", "Inference FLOPs")
BLOCK = re.compile(r"(<!-- results of (\S+) -->\n)(.*?)(<!-- end of results -->)", re.DOTALL)
NO_PRUNING = " (no pruning)"


def block(report: str) -> str:
    """Return the table and the price list of a report as the README has them.

    Args:
        report: Text of a `report.md`.
    """
    lines = report.splitlines()
    table = rows_of(lines, "| Method |")
    chosen = [next(index for index, head in enumerate(table[0]) if head.startswith(name)) for name in COLUMNS]
    outcome = chosen[COLUMNS.index("At equal")]
    methods = [row for row in table if row[0] == "`dense`" or (row[0].startswith("`") and row[outcome] != "–")]
    labels = [row[0].split("`")[1] for row in methods]
    names = short_names(labels, most=sys.maxsize)
    noted = [label for label, name in names.items() if name != label]
    for row, label in zip(methods, labels, strict=True):
        number = f"<sup>{noted.index(label) + 1}</sup>" if label in noted else ""
        row[0] = row[0].replace(f"`{label}`", f"`{names[label]}`{number}")
    cells = [[row[index] for index in chosen] for row in (*table[:2], *methods)]
    shown = [
        [f"*{cell.removesuffix(NO_PRUNING)}*" for cell in row] if row[0].endswith(NO_PRUNING) else row for row in cells
    ]
    key = [] if shown == cells else ["In italics: ways without pruning, which reports mark with `(no pruning)`."]
    text = "\n\n".join([as_table(shown), *key, *prices(lines, names)]) + "\n"
    if noted:
        typed = ", ".join(f"<sup>{number}</sup>&nbsp;`{label}`" for number, label in enumerate(noted, 1))
        text += f"\n<details><summary>Names as typed</summary>\n\n{typed}\n\n</details>\n"
    equal = table[0][outcome]  # "At equal time" or "At equal FLOPs"
    heads = {
        "Training time": "Time",
        "Executed training FLOPs": "FLOPs",
        "Gain over dense for this cost": f"Gain a{equal[1:]}",
        f"| {equal}": "| Verdict",
    }
    for long, short in heads.items():
        text = text.replace(long, short, 1)
    return text


def prices(lines: Sequence[str], names: Mapping[str, str]) -> list[str]:
    """Return a sentence and the table of a price list, if there is one.

    A row names the cheapest way, and the cheapest dense training, which any other way has to beat.

    Args:
        lines: Lines of a report.
        names: Short names of the methods.
    """
    if not any(line.startswith("**What an accuracy costs.**") for line in lines):
        return []
    head, rule, *rows = rows_of(lines, "| Accuracy of at least")
    shown = [[*head[:2], "Cheapest way"], [*rule[:2], rule[3]]]
    for accuracy, cost, _, ways in rows:
        short = re.sub(r"`([^`]+)`", lambda found: f"`{names.get(found[1], found[1])}`", ways)
        first, *others = re.sub(rf"(`[^`]+`){re.escape(NO_PRUNING)}", r"*\1*", short).split("; ")
        dense = [] if first.startswith("`dense`, ") else [way for way in others if way.startswith("`dense`, ")][:1]
        shown.append([accuracy, cost, "; ".join([first.replace(f": {cost}", "", 1), *dense])])
    compared = rows[0][2].partition(" of ")[2]
    lead = f"**What an accuracy costs**: the cheapest of {compared}, rows above with a cost and shorter dense trainings"
    return [f"{lead} ([how to read it](docs/verdict.md#what-an-accuracy-costs)).", as_table(shown)]


def rows_of(lines: Sequence[str], head: str) -> list[list[str]]:
    """Return the cells of the first table whose first line begins with `head`, without the numbers of its notes."""
    first = next(index for index, line in enumerate(lines) if line.startswith(head))
    rows = takewhile(lambda line: line.startswith("|"), lines[first:])
    return [re.sub(r"<sup>.*?</sup>", "", row).strip("| ").split(" | ") for row in rows]


def as_table(rows: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown, without line breaks within a unit or an interval."""
    lines = ("| " + " | ".join(row) + " |" for row in rows)
    return "\n".join(re.sub(r"(?<=\d,|.×) (?=[−\w])", "&nbsp;", line) for line in lines)


def updated(readme: str) -> str:
    """Return the README with all blocks as the committed reports have them."""
    return BLOCK.sub(
        lambda found: found[1] + block((ROOT / found[2] / "report.md").read_text("utf-8")) + found[4], readme
    )


def main() -> int:
    """Compare or write the blocks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="update the README")
    readme = README.read_text("utf-8")
    new = updated(readme)
    if parser.parse_args().write:
        README.write_text(new, "utf-8")
    elif new != readme:
        print("README.md: its results are not those of the committed reports; use --write", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
