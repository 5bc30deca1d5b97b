"""Content of a report: it agrees with results.csv, loads nothing from the network, and is equal in both formats."""

from __future__ import annotations

import base64
import csv
import hashlib
import os
import re
import shlex
import statistics
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from page_parser import Page, by_head, table


def test_the_table_agrees_with_results_csv(full_folder: Path, page: Page) -> None:
    with (full_folder / "results.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["status"] == "done"]
    found, relative = table(page, "-results"), table(page, "-relative")
    assert list(relative) == list(found)
    assert list(found) == ["dense", "prunetrain[ratio=0.2]", "sdgp[n=2,m=4]", "oneshot"]
    dense = {row["seed"]: row for row in rows if row["method"] == "dense"}
    for label, cells in found.items():
        own = [row for row in rows if row["method"] == label.partition("[")[0]]
        mean = statistics.mean(100 * float(row["test_accuracy"]) for row in own)
        written = by_head(cells, "Test accuracy", "measured")
        assert float(written.split(" ± ")[0]) == pytest.approx(mean, abs=0.051)
        ratio = statistics.geometric_mean(
            float(row["train_time_s"]) / float(dense[row["seed"]]["train_time_s"]) for row in own
        )
        assert float(by_head(cells, "Training time", "× dense").split(" [")[0]) == pytest.approx(ratio, abs=0.0051)
        for head, column, base in (
            ("executed", "train_flops_executed", "train_flops_dense"),
            ("effective", "train_flops_effective", "train_flops_dense"),
            ("Inference FLOPs", "inference_flops", "inference_flops_dense"),
            ("without zero weights", "inference_flops_effective", "inference_flops_dense"),
            ("Parameters", "params", "params_dense"),
        ):
            share = statistics.mean(float(row[column]) / float(row[base]) for row in own)
            assert float(by_head(relative[label], head)) == pytest.approx(share, abs=0.0051)
    assert by_head(found["dense"], "Training time measured") == "6 min 12 s ± 17 s"
    assert by_head(relative["dense"], "Peak memory") == "302 MiB"
    assert by_head(found["dense"], "Seeds") == "3"
    assert by_head(found["sdgp[n=2,m=4]"], "Seeds") == "3 of 4"


def test_the_first_table_has_the_verdicts_and_the_numbers_of_the_others(full_folder: Path, page: Page) -> None:
    name, *_ = page.tables
    assert name.endswith("-flops")  # there is no time pass
    first = table(page, "-flops")
    assert all(len(row) <= 8 for row in first.values())
    results, relative = table(page, "-results"), table(page, "-relative")
    assert list(first) == list(results)
    for label, cells in first.items():
        assert by_head(cells, "Accuracy") == by_head(results[label], "Test accuracy", "measured")
        assert by_head(cells, "Executed") == by_head(relative[label], "executed")
        assert by_head(cells, "Inference") == by_head(relative[label], "Inference FLOPs")
    verdicts = {label: by_head(cells, "At equal") for label, cells in first.items()}
    assert verdicts["dense"] == "–"
    assert verdicts["oneshot"] == "too few seeds"
    assert verdicts["sdgp[n=2,m=4]"] == "no dense curve"
    text = (full_folder / "report.md").read_text(encoding="utf-8")
    assert text.index("- No verdict: dense was trained for 1 length") < text.index("| Method | Accuracy (%)")
    assert text.index("| Method | Accuracy (%)") < text.index("\n### ")


def test_missing_values_are_dashes_with_a_reason_and_never_zero(page: Page) -> None:
    assert by_head(table(page, "-relative")["oneshot"], "Peak memory") == "–"
    dashes = [attributes for tag, attributes in page.elements if tag == "td" and attributes.get("title")]
    assert any("peak_memory_bytes is empty" in attributes["title"] for attributes in dashes)
    assert "Not measured: peak_memory_bytes is empty." in page.text


def test_the_page_loads_nothing(full_folder: Path, page: Page) -> None:
    for tag, attributes in page.elements:
        assert tag not in ("link", "iframe", "object", "embed", "img", "base", "form")
        for name in ("src", "href", "xlink:href", "srcset", "action", "data", "poster"):
            assert attributes.get(name, "#").startswith(("#", "data:")), (tag, attributes)
        if "http-equiv" in attributes:
            assert attributes["http-equiv"] == "Content-Security-Policy"
            assert "default-src 'none'" in attributes["content"]
    text = (full_folder / "report.html").read_text(encoding="utf-8")
    assert "@import" not in text
    assert "http://" not in text
    assert "https://" not in text
    assert all(target.startswith("#") for target in re.findall(r"url\(['\"]?([^)'\"]*)", text))
    ids = {attributes["id"] for _, attributes in page.elements if "id" in attributes}
    for target in re.findall(r"url\(#([^)]*)\)", text) + re.findall(r'href="#([^"]+)"', text):
        assert target in ids


def test_the_content_policy_allows_only_the_script_of_the_page(full_folder: Path) -> None:
    text = (full_folder / "report.html").read_text(encoding="utf-8")
    scripts = re.findall(r"<script>(.*?)</script>", text, re.S)
    assert len(scripts) == 1
    digests = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    policy = " ".join(f"'sha256-{digest}'" for digest in digests)
    assert f'script-src {policy}">' in text


def test_figures_have_units_names_and_both_schemes(full_folder: Path, page: Page) -> None:
    text = (full_folder / "report.html").read_text(encoding="utf-8")
    drawn = re.findall(r"<svg.*?</svg>", text, re.S)
    assert len(drawn) == 6
    for svg in drawn:
        assert 'role="img"' in svg
        assert re.search(r"<title[^>]*>[^<]{10,}</title><desc[^>]*>[^<]{20,}</desc>", svg)
        assert "var(--ink)" in svg
        # Sentinel colours that were not replaced, and matplotlib's black, would be illegible in one of the schemes.
        assert not re.search(r"#0(10101|20202|30303|40404|50505)", svg)
        labels = " ".join(re.findall(r"<text[^>]*>([^<]*)</text>", svg))
        assert "(%)" in labels or "(nats)" in labels or "FLOPs)" in labels
        assert "Epoch" in labels or "(min)" in labels or "(TFLOPs)" in labels
    assert "var(--dense)" in drawn[0]
    for path in (full_folder / "figures").glob("*.svg"):
        root = ElementTree.fromstring(path.read_text(encoding="utf-8"))
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        assert "var(--" not in path.read_text(encoding="utf-8")


def test_markdown_and_html_have_the_same_sections_and_tables(full_folder: Path, page: Page) -> None:
    text = (full_folder / "report.md").read_text(encoding="utf-8")
    unescaped = re.sub(r"\\([\\`*_\[\]|~$])", r"\1", text)
    headings = [line.lstrip("# ") for line in unescaped.splitlines() if re.match(r"#{1,3} ", line)]
    figures = re.findall(r"!\[[^\n]*\]\(figures/([^)]*)\)\n\n", text)
    titles = [heading for heading in page.headings if heading not in headings]
    assert [heading for heading in page.headings if heading in headings] == headings
    assert len(titles) == len(figures) == 6
    assert sorted(figures) == sorted(path.name for path in (full_folder / "figures").iterdir())
    pipes = [line for line in text.splitlines() if line.startswith("|") and not line.startswith("| :")]
    assert len(pipes) == sum(len(rows) for rows in page.tables.values())
    for rows in page.tables.values():
        for row in rows[1:]:
            for cell in row:
                assert cell.strip() in unescaped


def test_failed_trials_come_with_the_command_that_repeats_them(full_folder: Path, page: Page) -> None:
    rows = table(page, "problems")
    assert [(row["Status"], row["Message"]) for row in rows.values()] == [
        ("diverged", "loss is NaN at epoch 2"),
        ("error", "killed by signal 9"),
    ]
    command = next(line for line in page.text.splitlines() if "--only failed" in line)
    assert shlex.split(command) == [
        "python", "run_suite.py", "--methods", "dense,sdgp[n=2,m=4]", "--seeds", "3", "--out", str(full_folder),
        "--only", "failed",
    ]  # fmt: skip


def test_provenance_has_hardware_versions_data_git_command_and_hashes(full_folder: Path, page: Page) -> None:
    for fact in (
        "Synthetic CPU @ 2.0 GHz", "3.11.7", "01234567", "2,000 images; not the real job.", "670a1fa",
        "--out elsewhere --seeds 3", "A paper, 2022", "n=2", "One multiply-add is 2 FLOPs", "padding", "first layer",
    ):  # fmt: skip
        assert fact in page.text
    for folder in (full_folder / "trials").iterdir():
        assert folder.name in page.text
        assert folder.name.rsplit("-", 1)[1] in page.text


def test_the_same_folder_gives_the_same_bytes(full_folder: Path, tmp_path: Path) -> None:
    before = {path: path.read_bytes() for path in (full_folder / "figures").iterdir()}
    before |= {full_folder / name: (full_folder / name).read_bytes() for name in ("report.html", "report.md")}
    # Another process with another hash seed: the order of sets and counters must not matter.
    code = "import sys, pathlib, reports; reports.write_report(pathlib.Path(sys.argv[1]))"
    root = str(Path(__file__).parents[2])
    environment = {**os.environ, "PYTHONHASHSEED": "7", "PYTHONPATH": root}
    subprocess.run([sys.executable, "-c", code, str(full_folder)], check=True, env=environment, cwd=tmp_path)
    for path, content in before.items():
        assert path.read_bytes() == content, path.name
    assert not list(full_folder.glob(".*"))
