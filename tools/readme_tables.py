"""Write the results of the README from the committed reports, or check that they are up to date.

    python tools/readme_tables.py [--write]

A block of the README begins with `<!-- results of FOLDER -->` and ends with `<!-- end of results -->`. It repeats
columns of the first table of the folder's report, without the rows of dense for a method's cost and those of methods
that have too few seeds or time passes. The exit status is 1 if a block is out of date.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

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
    table = [re.sub(r"<sup>.*?</sup>", "", line).strip("| ").split(" | ") for line in _table(lines[first:])]
    chosen = [next(index for index, head in enumerate(table[0]) if head.startswith(name)) for name in COLUMNS]
    methods = [row for row in table if not row[0].startswith("· dense")]
    rows = ["| " + " | ".join(row[index] for index in chosen) + " |" for row in methods if "not measured" not in row]
    return "\n".join(rows) + "\n"


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
