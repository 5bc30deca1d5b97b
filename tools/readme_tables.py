"""Write the results of the README from the committed reports, or check that they are up to date.

    python tools/readme_tables.py [--write]

A block of the README begins with `<!-- results of FOLDER -->` and ends with `<!-- end of results -->`. It repeats
columns of the first table of the folder's report for dense and each method with an outcome, which are the rows of the
figure of gains. Short names tell the methods apart, and notes give their names as typed. The exit status is 1 if a
block is out of date.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path

from suite.parameters import split

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
# Columns of the first table of a report, by the beginning of their heads.
COLUMNS = ("Method", "Accuracy", "Training time", "Gain over dense", "At equal time", "Inference FLOPs")
BLOCK = re.compile(r"(<!-- results of (\S+) -->\n)(.*?)(<!-- end of results -->)", re.DOTALL)


def block(report: str) -> str:
    """Return the table of a report as the README has it.

    Args:
        report: Text of a `report.md`.
    """
    lines = report.splitlines()
    first = next(index for index, line in enumerate(lines) if line.startswith("| Method |"))
    table = [
        re.sub(r"<sup>.*?</sup>", "", line).strip("| ").split(" | ")
        for line in takewhile(lambda line: line.startswith("|"), lines[first:])
    ]
    chosen = [next(index for index, head in enumerate(table[0]) if head.startswith(name)) for name in COLUMNS]
    outcome = chosen[COLUMNS.index("At equal time")]
    methods = [row for row in table if row[0] == "`dense`" or (row[0].startswith("`") and row[outcome] != "–")]
    labels = [row[0].split("`")[1] for row in methods]
    notes: list[str] = []
    for row, label, short in zip(methods, labels, short_names(labels), strict=True):
        if short != label:
            notes.append(f"<sup>{len(notes) + 1}</sup>&nbsp;`{label}`")
            row[0] = row[0].replace(f"`{label}`", f"`{short}`<sup>{len(notes)}</sup>")
    rows = ["| " + " | ".join(row[index] for index in chosen) + " |" for row in (*table[:2], *methods)]
    rows[0] = rows[0].replace("Training time", "Time").replace("Gain over dense for this cost", "Gain")
    # No line breaks within a unit or an interval.
    rows = [re.sub(r"(?<=\d,|.×) (?=[−\w])", "&nbsp;", row) for row in rows]
    return "\n".join([*rows, "", f"Names as typed: {', '.join(notes)}.", ""])


def short_names(labels: Sequence[str]) -> list[str]:
    """Return for each method what tells it from the others: `sdgp 2:8` for `sdgp[n=2,m=8,recipe.learning_rate=1.5]`.

    This is the name, and the values of parameters in which methods of this name differ; fields of a recipe have their
    names. A method that this does not tell apart keeps its label.
    """
    fields = [dict(part.split("=", 1) for part in split(label.partition("[")[2][:-1]) if part) for label in labels]
    names = [label.partition("[")[0] for label in labels]
    short = []
    for name, own in zip(names, fields, strict=True):
        twins = [other for known, other in zip(names, fields, strict=True) if known == name]
        differing = {key: text for key, text in own.items() if any(other.get(key) != text for other in twins)}
        values = ":".join(text for key, text in differing.items() if not key.startswith("recipe."))
        recipe = [f"{key[7:]}={text}" for key, text in differing.items() if key.startswith("recipe.")]
        short.append(" ".join(filter(None, (name, values, *recipe))))
    return [label if short.count(name) > 1 else name for label, name in zip(labels, short, strict=True)]


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
