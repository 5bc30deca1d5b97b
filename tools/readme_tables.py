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
from pathlib import Path

from suite.brackets import split

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
# Columns of the first table of a report: the beginnings of their heads, and what the README says instead.
COLUMNS = {
    "Method": "Method",
    "Accuracy": "Accuracy",
    "Training time": "Time",
    "Gain over dense for this cost": "Gain",
    "At equal time": "At equal time",
    "Inference FLOPs": "Inference FLOPs",
}
BLOCK = re.compile(r"(<!-- results of (\S+) -->\n)(.*?)(<!-- end of results -->)", re.DOTALL)


def block(report: str) -> str:
    """Return the table of a report as the README has it.

    Args:
        report: Text of a `report.md`.
    """
    lines = report.splitlines()
    first = next(index for index, line in enumerate(lines) if line.startswith("| Method |"))
    table = [re.sub(r"<sup>.*?</sup>", "", line).strip("| ").split(" | ") for line in _table(lines[first:])]
    chosen = {next(index for index, head in enumerate(table[0]) if head.startswith(name)): name for name in COLUMNS}
    heads = [table[0][index].replace(name, COLUMNS[name]) for index, name in chosen.items()]
    methods = [row for row in table[2:] if row[0].startswith("`")]  # the others are dense for a method's cost
    rule, *rows = ([row[index] for index in chosen] for row in (table[1], *methods))
    rows = [row for row in rows if row[0] == "`dense`" or row[4] != "–"]
    labels = [row[0].split("`")[1] for row in rows]
    notes: list[str] = []
    for row, label, short in zip(rows, labels, short_names(labels), strict=True):
        if short != label:
            notes.append(f"{len(notes) + 1}. `{label}`")
            row[0] = row[0].replace(f"`{label}`", f"`{short}`<sup>{len(notes)}</sup>")
    lines = ["| " + " | ".join(row) + " |" for row in (heads, rule, *rows)]
    lines = [
        re.sub(r"(?<=\d,|.×) (?=[−\w])", "&nbsp;", line) for line in lines
    ]  # no break within an interval or a unit
    return "\n".join([*lines, "", "Names as typed:", "", *notes, ""])


def short_names(labels: Sequence[str]) -> list[str]:
    """Return a name for each method that tells it from the others: `sdgp 2:8` for `sdgp[n=2,m=8,mode=magnitude]`.

    It has the values of the parameters in which methods of one name differ, or `name=value` where values do not tell
    them apart. Fields of the recipe always have their names.
    """
    fields = [dict(part.split("=", 1) for part in split(label.partition("[")[2][:-1]) if part) for label in labels]
    names = [label.partition("[")[0] for label in labels]

    def short(index: int, form: str) -> str:
        twins = [other for name, other in zip(names, fields, strict=True) if name == names[index]]
        kept = [(key, text) for key, text in fields[index].items() if any(one.get(key) != text for one in twins)]
        own = ":".join(form.format(key, text) for key, text in kept if not key.startswith("recipe."))
        recipe = [f"{key.removeprefix('recipe.')}={text}" for key, text in kept if key.startswith("recipe.")]
        return " ".join(filter(None, (names[index], own, *recipe)))

    values = [short(index, "{1}") for index in range(len(labels))]
    return [short(index, "{0}={1}") if values.count(text) > 1 else text for index, text in enumerate(values)]


def _table(lines: list[str]) -> list[str]:
    """Return the lines of the table that begins with the first line."""
    end = next((index for index, line in enumerate(lines) if not line.startswith("|")), len(lines))
    return lines[:end]


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
