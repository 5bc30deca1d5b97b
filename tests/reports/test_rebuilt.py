"""A rebuilt report has the same numbers as the first one."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pandas as pd
import pytest

from suite.cli.folders import report

ROOT = Path(__file__).parents[2]
SUITES = sorted(path.parent for path in (ROOT / "results").glob("*/*/report.md"))


def numbers(text: str) -> dict[str, list[str]]:
    """Return the numbers and verdicts of tables by method, in reading order.

    References to notes and marks of disturbed times are left out: whether a time was disturbed is in the trials'
    records, which the earliest committed suites do not have. So are target accuracies.
    """
    shown = re.split(r"\n## (?:Can I trust|Failed trials)", text)[0]
    shown = re.sub(r"\n### Cost until a target accuracy\n.*?(?=\n##|$)", "", f"{shown}\n", flags=re.DOTALL)
    found: dict[str, list[str]] = {}
    for line in shown.splitlines():
        line = re.sub(r"<sup>\d+</sup>| \(disturbed[^)]*\)", "", line)
        if row := re.match(r"\| (`[^|]*`[^|]*) \|(.*)\|$", line):
            found.setdefault(row[1].replace("\\|", "|"), []).extend(cell.strip() for cell in row[2].split("|"))
    return found


@pytest.mark.usefixtures("without_figures")
@pytest.mark.parametrize("folder", SUITES, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_rebuilt_reports_of_committed_suites_have_the_same_numbers(folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    assert report([str(copy)]) == 0
    before, after = (pd.read_csv(path / "results.csv", dtype=str, keep_default_na=False) for path in (folder, copy))
    filled = [column for column in before if (before[column] != "").any()]
    assert set(before.columns) - set(after.columns) <= set(before.columns) - set(filled)
    before, after = (table.set_index("trial_id").sort_index()[filled[1:]] for table in (before, after))
    assert before.equals(after)
    texts = [(path / "report.md").read_text(encoding="utf-8") for path in (folder, copy)]
    old, new = map(numbers, texts)
    assert len(old) >= after["method"].nunique()
    assert all(len(values) >= 4 for values in old.values())
    assert old == new
    shown = re.findall(r"\]\((figures/[^)]+\.svg)\)", texts[0])
    assert all((folder / name.replace("\\", "")).is_file() for name in shown)
    once = (copy / "results.csv").read_bytes()
    assert report([str(copy)]) == 0
    assert (copy / "results.csv").read_bytes() == once
