"""Tables for a paper: the same numbers as on the page, and text that LaTeX shows unchanged."""

from __future__ import annotations

import re

import pytest

from reports.content.build import build
from reports.content.model import Cell, Column, Table
from reports.data.records import read
from reports.render import latex, markdown
from suite.command.cli import main


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a_b & 5 % of $3 {x} #1", r"a\_b \& 5 \% of \$3 \{x\} \#1"),
        ("~^\\", r"\textasciitilde{}\textasciicircum{}\textbackslash{}"),
        ("−1.9 ± 0.4 × dense", r"$-$1.9 $\pm$ 0.4 $\times$ dense"),
        ("<script>|\n</script>", r"\textless{}script\textgreater{}\textbar{} \textless{}/script\textgreater{}"),
        (r"\input{/etc/passwd}", r"\textbackslash{}input\{/etc/passwd\}"),
    ],
)
def test_text_is_shown_unchanged(text: str, expected: str) -> None:
    assert latex.escape(text) == expected


def test_a_table_has_its_heads_notes_and_rows() -> None:
    columns = (Column("Method", numeric=False), Column("Accuracy", "%", "measured", "Over seeds."))
    content = Table("g-results", "caption", columns, ((Cell("a_b[n=2]", code=True), Cell("[1]", "Over seeds.")),))
    lines = [line.strip() for line in latex.table(content, "On cifar10").splitlines()]
    assert r"\caption{On cifar10}" in lines
    assert r"\begin{tabular}{lr}" in lines
    assert r"{Method} & {Accuracy (\%) [measured]}\textsuperscript{1} \\" in lines
    assert r"\texttt{a\_b[n=2]} & {[1]}\textsuperscript{1} \\" in lines
    assert r"\textsuperscript{1}\,Over seeds.\\" in lines


def test_numbers_are_those_of_the_markdown_report(suite) -> None:
    suite.add("dense", 0, accuracy=90.0, time=10.0)
    suite.add("a_b", 0, accuracy=80.0, time=9.0)
    report = build(read(suite.write()))
    tex, text = latex.render(report), markdown.render(report)
    tables = [content for group in report.groups for content in (group.summary, *group.tables) if content]
    assert tex.count(r"\begin{tabular}") == len(tables) >= 2
    for content in tables:
        for row in content.rows:
            for cell in row:
                assert latex.escape(cell.text) in tex
                assert markdown.escape(cell.text) in text or cell.code
    # Every environment is closed, and braces are balanced.
    assert sorted(re.findall(r"\\begin\{(\w+)\}", tex)) == sorted(re.findall(r"\\end\{(\w+)\}", tex))
    plain = re.sub(r"\\[{}\\]", "", tex)
    assert plain.count("{") == plain.count("}")


def test_the_option_writes_the_file(suite, capsys) -> None:
    suite.add("dense", 0, accuracy=90.0, time=10.0)
    folder = suite.write()
    assert main(["report", str(folder)]) == 0
    assert not (folder / "report.tex").exists()
    assert main(["report", str(folder), "--latex"]) == 0
    assert f"tables: {folder / 'report.tex'}" in capsys.readouterr().out
    assert (folder / "report.tex").read_text(encoding="utf-8").startswith("% Tables")
