"""Tables for a paper: the same numbers as on the page, and text that LaTeX shows unchanged."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest

from reports.content.build import build
from reports.content.model import Cell, Column, Table
from reports.render import latex, markdown
from suite.cli.main import main
from suite.trials.folder.reader import read


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a_b & 5 % of $3 {x} #1", r"a\_b \& 5 \% of \$3 \{x\} \#1"),
        ("~^\\", r"\textasciitilde{}\textasciicircum{}\textbackslash{}"),
        ("−1.9 ± 0.4 × dense", r"$-$1.9~$\pm$~0.4 $\times$~dense"),
        ("--out ''x'' !`?` a,,b", r"-{}-out '{}'x'{}' !{}\textasciigrave{}?{}\textasciigrave{} a,{},b"),
        ("é 中\u202e\x07", r"é \pdtcharacter{4E2D}{中}"),
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
    (begin,) = (line for line in lines if line.startswith(r"\begin{tabular}"))
    assert re.fullmatch(
        r"\\begin\{tabular\}\{>\{\\raggedright\\arraybackslash\}p\{\S+em\}>\{\\raggedleft\\arraybackslash\}p\{\S+em\}\}",
        begin,
    )
    assert r"{Method} & {Accuracy (\%) [measured]}\textsuperscript{1} \\" in lines
    name = r"a\_\allowbreak{}b[\allowbreak{}n=\allowbreak{}2]"
    assert rf"\texttt{{{name}}} & {{[1]}}\textsuperscript{{1}} \\\addlinespace[1pt]" in lines
    assert r"\textsuperscript{1}\,Over seeds.\par" in lines


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
                assert latex.escape(cell.text) in tex.replace(r"\allowbreak{}", "")
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
    # An existing file is never older than the report.
    (folder / "report.tex").write_text("old")
    assert main(["report", str(folder)]) == 0
    assert (folder / "report.tex").read_text(encoding="utf-8").startswith("% Tables")


HOSTILE = (
    "<script>alert(1)</script>",
    r"a_b%&#{}~^\input{x}$",
    "--``''!`?`,,<<>>|\"",
    "*star",
    "[x]",
    "\\\\",
    "中文 émoji 🙂 Ελλ \u202ertl",
    "prune" + "x" * 80,
)
DOCUMENT = r"""\documentclass{article}
\usepackage[T1]{fontenc}
\usepackage{array,booktabs,graphicx}
\begin{document}
\input{report.tex}
\end{document}
"""


def test_a_wide_table_is_broken_into_lines() -> None:
    """Ten columns of texts get a size in which they can be read, and a long name does not take the page."""
    heads = (Column("Method", numeric=False), *(Column("Training FLOPs, executed", "× dense", "counted"),) * 9)
    row = (Cell("x" * 200, code=True), *(Cell("0.900 [0.893, 0.909]"),) * 9)
    text = latex.table(Table("g-x", "caption", heads, (row,)), "caption")
    widths = [float(width) for width in re.findall(r"p\{([0-9.]+)em\}", text)]
    assert len(widths) == 10
    assert sum(widths) < 70  # a line of 345 pt has 43 em at 8 pt: scaled to 5 pt at worst
    assert max(widths) == widths[0] < 15


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("pdflatex"), reason="pdflatex is not installed")
@pytest.mark.usefixtures("without_figures")
def test_the_tables_compile(suite, tmp_path_factory) -> None:
    """Also with names of any characters, and more tables than LaTeX holds back."""
    suite.add_all(("dense",))
    for place, name in enumerate(HOSTILE):
        for seed in range(3):
            changed = {"trial_id": f"t{place}-{seed}", "variant": "a=[1,2],b=%_&"}
            suite.add(name, seed, accuracy=70.0 + seed, time=300.0, **changed)
    for groups in range(14):
        suite.add("dense", 0, accuracy=70.0, time=300.0, task=f"task{groups}")
    folder = tmp_path_factory.mktemp("latex")
    text = latex.render(build(read(suite.write())))
    assert text.count(r"\begin{table}") > 52
    (folder / "report.tex").write_text(text, encoding="utf-8")
    (folder / "paper.tex").write_text(DOCUMENT, encoding="utf-8")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "-no-shell-escape", "paper.tex"]
    ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, errors="replace")
    assert ended.returncode == 0, ended.stdout[-2000:]
    assert "Overfull" not in ended.stdout
    assert (folder / "paper.pdf").stat().st_size > 10_000
