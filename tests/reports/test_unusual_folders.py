"""Reports of folders with unusual content: markup in records, damaged or missing files, many methods."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest
from page_parser import Page, parse

from reports import write_report
from reports.content.provenance import command_lines, rerun_command
from reports.figures.svg import short_names
from reports.render.markdown import escape

EVIL = "<script>alert('x')</script> & \"\u200fא\u200e"


def test_text_of_records_is_escaped(suite: Any) -> None:
    suite.add_all(("dense",), seeds=1)
    suite.add(f"{EVIL}`a|b`$x_1$", 0, accuracy=70.0, time=300.0, variant='k="><img src=x>', trial_id="evil-1")
    message = f"{EVIL} | `tick` **bold**\n# heading\x00 [link](http://example.org)"
    suite.add("sdgp", 0, accuracy=None, time=None, status="error", message=message)
    folder = suite.write(command=f"run_suite.py --methods '{EVIL}```'")
    write_report(folder)
    page = parse(folder / "report.html")
    assert [attributes.get("type") for tag, attributes in page.elements if tag == "script"].count(None) == 1
    assert not [tag for tag, _ in page.elements if tag == "img"]
    assert EVIL in page.text
    assert "\x00" not in page.text
    text = (folder / "report.md").read_text(encoding="utf-8")
    outside_code = re.sub(r"(?m)^(`{3,})\n.*?\n\1$|(?<!`)(`+)(?!`).*?(?<!`)\2(?!`)", "", text, flags=re.S)
    assert "<script" not in outside_code
    assert "<img" not in outside_code
    assert not re.search(r"(?m)^# heading", text)
    for block in re.findall(r"(?m)(?:^\|.*\n)+", text):
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}) == 1
    for path in (folder / "figures").iterdir():
        ElementTree.fromstring(path.read_text(encoding="utf-8"))
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+", path.name) for path in (folder / "figures").iterdir())


def test_operations_that_no_flops_include_are_named_and_escaped(suite: Any, without_figures: None) -> None:
    suite.add_all(("dense",), seeds=1)
    suite.change(provenance={"not_counted": ["mm in 'attn' (3,072 multiply-adds per image)", EVIL]})
    folder = suite.write()
    write_report(folder)
    line = f"Not included in any FLOPs of resnet9[width=0.25]: mm in 'attn' (3,072 multiply-adds per image); {EVIL}."
    assert line in parse(folder / "report.html").text


def test_markdown_renders_escaped_text_as_it_was() -> None:
    markdown_it = pytest.importorskip("markdown_it")
    text = "a|b `c` <script>x</script> **d** _e_ [f](g) &amp; $h$"
    rendered = markdown_it.MarkdownIt("commonmark").enable("table").render(f"| h |\n| --- |\n| {escape(text)} |\n")
    page = Page()
    page.feed(rendered.replace("<table>", '<table id="t">'))
    assert page.tables["t"][1] == [text]


def test_only_failures_still_make_a_report(suite: Any, without_figures: None) -> None:
    suite.add("sdgp", 0, accuracy=None, time=None, status="error", message="no")
    folder = suite.write()
    assert [path.name for path in write_report(folder).paths] == ["report.html", "report.md"]
    page = parse(folder / "report.html")
    assert "No trial is done, so there are no numbers." in page.text


def test_trials_without_epochs_or_layers_still_make_a_report(suite: Any) -> None:
    suite.add_all(("dense", "prunetrain"), seeds=1)
    folder = suite.write()
    for path in (*folder.glob("trials/*/epochs.jsonl"), *folder.glob("trials/*/layers.csv")):
        path.unlink()
    write_report(folder)
    page = parse(folder / "report.html")
    assert "no finished trial has an epochs.jsonl" in page.text
    assert "Accuracy against cost" in page.headings


def test_all_commands_of_a_folder_are_listed_without_the_home_folder(
    suite: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path.parent))
    lines = ["/x/bin/pdt --methods dense --data-root ~/my data", "run_suite.py run --methods=sdgp --only=all --out=x"]
    found = [rerun_command(line, suite.folder) for line in lines]
    assert found == [
        f"python run_suite.py --methods dense --data-root ~/my data --out ~/{tmp_path.name} --only failed",
        f"python run_suite.py run --methods=sdgp --out ~/{tmp_path.name} --only failed",
    ]
    entries = [{"command_line": line} for line in (*lines, lines[0])]
    assert command_lines({"command_line": lines[0], "commands": entries}) == lines


def test_names_in_figures_are_short_and_stay_different() -> None:
    variants = [f"prunetrain[ratio=0.{index},interval=25,threshold=0.0001]" for index in (1, 2)]
    long = ["m" * 40, "m" * 41]
    short = short_names(["dense", *variants, *long])
    assert short["dense"] == "dense"
    assert [short[name] for name in variants] == ["prunetrain ratio=0.1", "prunetrain ratio=0.2"]
    assert len(set(short.values())) == 5
    labels = ["a[n=2,m=4,x=1]", "a[n=1,m=8,x=1,recipe.ema=1]", "b[n=2]", "c[n=1]", "c", "d[x=f(1,2)]", "d"]
    names = ["a n=2 m=4", "a n=1 m=8 ema=1", "b", "c n=1", "c", "d x=f(1,2)", "d"]
    assert [*short_names(labels).values()] == names
    assert max(len(name) for name in short.values()) <= 34


def test_figures_of_an_earlier_report_are_removed_and_nothing_else(suite: Any, without_figures: None) -> None:
    suite.add_all(("dense",), seeds=1)
    folder = suite.write()
    (folder / "figures").mkdir()
    old, own = folder / "figures" / "g-cifar10-shape-7.svg", folder / "figures" / "mine.svg"
    for path in (old, own):
        path.write_text("<svg/>")
    written = write_report(folder)
    assert not old.exists()
    assert own.exists()
    assert all(path.is_file() for path in written.paths)
