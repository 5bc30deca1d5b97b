"""Tables for a paper: the same numbers as on the page, and text that LaTeX shows unchanged."""

from __future__ import annotations

import pytest

from reports.content.build import build
from reports.data.records import read
from reports.render import latex
from suite.cli.main import main

pytestmark = pytest.mark.usefixtures("without_figures")


def test_the_table_has_the_cells_of_the_page_with_escaped_text(suite) -> None:
    suite.add("dense", 0, accuracy=90.0, time=10.0)
    suite.add(r"a_b\input{x}", 0, accuracy=80.0, time=9.0, variant="")
    report = build(read(suite.write()))
    text = latex.render(report)
    (group,) = report.groups
    assert text.count(r"\begin{tabular}{lrrrrllr}") == 1
    assert r"Method & Accuracy (\%)" in text
    assert r"a\_b\textbackslash \{\}input\{x\}" in text.replace(r"\textbackslash input", r"\textbackslash \{\}input")
    for row in group.summary.rows:
        assert all(cell.text in text for cell in row[1:])


def test_the_option_writes_the_file(suite, capsys) -> None:
    suite.add("dense", 0, accuracy=90.0, time=10.0)
    folder = suite.write()
    assert main(["report", str(folder)]) == 0
    assert not (folder / "report.tex").exists()
    assert main(["report", str(folder), "--latex"]) == 0
    assert f"tables: {folder / 'report.tex'}" in capsys.readouterr().out
    assert (folder / "report.tex").read_text(encoding="utf-8").startswith("% The first table")
    # An existing file is never older than the report.
    (folder / "report.tex").write_text("old")
    assert main(["report", str(folder)]) == 0
    assert (folder / "report.tex").read_text(encoding="utf-8").startswith("% The first table")
