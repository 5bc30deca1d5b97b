"""The written report: true to the table, whole, escaped, self-contained, equal in both forms and each time."""

from __future__ import annotations

import csv
import html.parser
import json
import os
import re
import shlex
import shutil
import statistics
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

from reports import write_report
from reports.content.provenance import command_lines, rerun_command
from reports.figures.labels import short_names, spread
from reports.render.markdown import escape
from suite.errors import UsageError


class Page(html.parser.HTMLParser):
    """A page as its elements; fails on tags that do not close in order, and on ids that come twice."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.tables: dict[str, list[list[str]]] = {}
        self.headings: list[str] = []
        self.text = ""
        self._table = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = {key: value or "" for key, value in attrs}
        self.elements.append((tag, attributes))
        if tag in ("meta", "br", "hr", "img", "input", "link"):
            return
        self.open.append(tag)
        if tag == "table":
            self._table = attributes["id"]
            self.tables[self._table] = []
        elif tag == "tr":
            self.tables[self._table].append([])
        elif tag in ("td", "th"):
            self.tables[self._table][-1].append("")
        elif tag in ("h1", "h2", "h3", "h4"):
            self.headings.append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {key: value or "" for key, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag, f"</{tag}> closes another element"

    def handle_data(self, data: str) -> None:
        if "script" in self.open or "style" in self.open:
            return
        self.text += data
        if ("td" in self.open or "th" in self.open) and "sup" not in self.open:
            self.tables[self._table][-1][-1] += data
        elif any(heading in self.open for heading in ("h1", "h2", "h3", "h4")):
            self.headings[-1] += data


def parse(path: Path) -> Page:
    """Parse a page that must be well formed."""
    page = Page()
    page.feed(path.read_text(encoding="utf-8"))
    page.close()
    assert page.open == []
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    return page


@pytest.fixture(scope="module")
def page(full_folder: Path) -> Page:
    """The page of the full folder."""
    return parse(full_folder / "report.html")


def table(page: Page, ending: str) -> dict[str, dict[str, str]]:
    """Rows of the first table whose id ends so: method -> head -> text; a head is its words joined."""
    rows = next(rows for name, rows in page.tables.items() if name.endswith(ending))
    heads = [" ".join(head.split()) for head in rows[0]]
    return {row[0].strip(): dict(zip(heads, row, strict=True)) for row in rows[1:]}


def by_head(row: dict[str, str], *words: str) -> str:
    """The one cell whose head has all the words."""
    (text,) = [text for head, text in row.items() if all(word in head for word in words)]
    return text


def test_the_table_agrees_with_results_csv(full_folder: Path, page: Page) -> None:
    with (full_folder / "results.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["status"] == "done"]
    found = table(page, "-trade")
    assert list(found) == ["dense", "prunetrain[ratio=0.2]", "sdgp[n=2,m=4]", "oneshot"]
    dense = {row["seed"]: row for row in rows if row["method"] == "dense"}
    for label, cells in found.items():
        own = [row for row in rows if row["method"] == label.partition("[")[0]]
        mean = statistics.mean(100 * float(row["test_accuracy"]) for row in own)
        written = by_head(cells, "Test accuracy", "measured")
        assert float(written.split(" ± ")[0]) == pytest.approx(mean, abs=0.051)
        ratio = statistics.mean(float(row["train_time_s"]) / float(dense[row["seed"]]["train_time_s"]) for row in own)
        assert float(by_head(cells, "Training time", "× dense").split(" ± ")[0]) == pytest.approx(ratio, abs=0.0051)
        for head, column, base in (
            ("executed", "train_flops_executed", "train_flops_dense"),
            ("effective", "train_flops_effective", "train_flops_dense"),
            ("Inference FLOPs", "inference_flops", "inference_flops_dense"),
            ("Parameters", "params", "params_dense"),
        ):
            share = statistics.mean(float(row[column]) / float(row[base]) for row in own)
            assert float(by_head(cells, head)) == pytest.approx(share, abs=0.0051)
        if label != "dense":
            realised = by_head(cells, "Realised").replace("−", "-").split(" ± ")[0]
            assert float(realised) == pytest.approx(100 * (1 - ratio), abs=0.51)
            theoretical = 100 * (1 - float(by_head(cells, "effective")))
            assert float(by_head(cells, "Theoretical")) == pytest.approx(theoretical, abs=1.01)
    assert by_head(found["dense"], "Training time measured") == "6 min 12 s ± 17 s"
    assert by_head(found["dense"], "Peak memory") == "302 MiB"
    assert by_head(found["dense"], "Seeds") == "3"
    assert by_head(found["sdgp[n=2,m=4]"], "Seeds") == "3 of 4"


def test_every_number_has_its_kind(page: Page) -> None:
    for name, rows in page.tables.items():
        if name.endswith(("-trade", "-flops")):
            for head in rows[0]:
                kinds = [kind for kind in ("measured", "counted", "modelled", "published") if kind in head]
                assert kinds or "Method" in head or "Seeds" in head
    heads = next(rows for name, rows in page.tables.items() if name.endswith("-trade"))[0]
    assert "counted, assumes hardware that skips" in next(head for head in heads if "Theoretical" in head)
    assert "hardware that skips" in next(head for head in heads if "effective" in head)


def test_the_four_columns_of_flops(page: Page) -> None:
    found = table(page, "-flops")["sdgp[n=2,m=4]"]
    written = {kind: by_head(found, "Training FLOPs", kind) for kind in ("dense", "current", "effective", "executed")}
    assert written == {
        "dense": "1.80 TFLOPs",
        "current": "1.80 TFLOPs",
        "effective": "1.50 TFLOPs",
        "executed": "1.80 TFLOPs",
    }


def test_what_was_not_measured_is_a_dash_with_its_reason_and_never_zero(page: Page) -> None:
    assert by_head(table(page, "-trade")["oneshot"], "Peak memory") == "–"
    dashes = [attributes for tag, attributes in page.elements if tag == "td" and attributes.get("title")]
    assert any("peak_memory_bytes is empty" in attributes["title"] for attributes in dashes)
    assert "Not measured: peak_memory_bytes is empty." in page.text


def test_the_page_asks_for_nothing(full_folder: Path, page: Page) -> None:
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


def test_the_policy_allows_the_one_script_that_is_there(full_folder: Path) -> None:
    import base64
    import hashlib

    text = (full_folder / "report.html").read_text(encoding="utf-8")
    (script,) = re.findall(r"<script>(.*?)</script>", text, re.S)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in text


def test_figures_have_units_names_and_both_schemes(full_folder: Path, page: Page) -> None:
    text = (full_folder / "report.html").read_text(encoding="utf-8")
    drawn = re.findall(r"<svg.*?</svg>", text, re.S)
    assert len(drawn) == 7
    for svg in drawn:
        assert 'role="img"' in svg
        assert re.search(r"<title[^>]*>[^<]{10,}</title><desc[^>]*>[^<]{20,}</desc>", svg)
        assert "var(--ink)" in svg
        # Sentinels, and matplotlib's own black for what nobody coloured, would be illegible in one scheme or wrong.
        assert not re.search(r"#0(10101|20202|30303|40404|50505)", svg)
        labels = " ".join(re.findall(r"<text[^>]*>([^<]*)</text>", svg))
        assert "(%)" in labels or "(nats)" in labels or "FLOPs)" in labels or "Share of original" in labels
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
    assert len(titles) == len(figures) == 7
    assert sorted(figures) == sorted(path.name for path in (full_folder / "figures").iterdir())
    pipes = [line for line in text.splitlines() if line.startswith("|") and not line.startswith("| :")]
    assert len(pipes) == sum(len(rows) for rows in page.tables.values())
    for rows in page.tables.values():
        for row in rows[1:]:
            for cell in row:
                assert cell.strip() in unescaped


def test_sections_come_in_the_order_of_the_readers_questions(page: Page) -> None:
    wanted = [
        "What should I use?", "How sure, and at what cost?", "The trade, as a picture", "How it went",
        "What went wrong", "Can I trust it?",
    ]  # fmt: skip
    assert [heading for heading in page.headings if heading in wanted] == wanted


def test_a_smoke_test_gives_no_advice(suite: Any, without_figures: None) -> None:
    for method in ("dense", "sdgp"):
        suite.add(method, 0, accuracy=40.0, time=9.0, preset="smoke")
    text = (write_report(suite.write())[1]).read_text(encoding="utf-8")
    assert "What should I use?" not in text
    assert "### What came out" in text
    assert "nothing here says which method to use" in text


def test_one_seed_says_so_where_the_numbers_stand(suite: Any, without_figures: None) -> None:
    for method in ("dense", "sdgp"):
        suite.add(method, 0, accuracy=80.0, time=9.0)
    once = (write_report(suite.write())[1]).read_text(encoding="utf-8")
    assert "1 − training time × dense. From one seed: no interval" in once
    assert "95 % t-interval over seeds." not in once.partition("## Can I trust it?")[0]
    for method in ("dense", "sdgp"):
        suite.add(method, 1, accuracy=81.0, time=9.5)
    assert "From one seed" not in (write_report(suite.write())[1]).read_text(encoding="utf-8")


def test_what_went_wrong_names_the_command_that_runs_it_again(full_folder: Path, page: Page) -> None:
    rows = table(page, "problems")
    assert [(row["Status"], row["Message"]) for row in rows.values()] == [
        ("error", "killed by signal 9"),
        ("diverged", "loss is NaN at epoch 2"),
    ]
    command = next(line for line in page.text.splitlines() if "--only failed" in line)
    assert shlex.split(command) == [
        "python", "run_suite.py", "--methods", "dense,sdgp[n=2,m=4]", "--seeds", "3", "--out", str(full_folder),
        "--only", "failed",
    ]  # fmt: skip


def test_a_suite_without_problems_has_no_such_section(suite: Any) -> None:
    suite.add_all(("dense",), seeds=1)
    folder = suite.write()
    write_report(folder)
    assert "What went wrong" not in (folder / "report.html").read_text()
    assert "What went wrong" not in (folder / "report.md").read_text()
    parse(folder / "report.html")


def test_trust_shows_hardware_versions_data_git_command_and_hashes(full_folder: Path, page: Page) -> None:
    for fact in (
        "Synthetic CPU @ 2.0 GHz", "2.15.0", "0123456789abcdef", "2,000 images; not the real job.", "670a1fa",
        "--out elsewhere --seeds 3", "A paper, 2022", "n=2", "One multiply-add is 2 FLOPs", "padding", "first layer",
    ):  # fmt: skip
        assert fact in page.text
    for folder in (full_folder / "trials").iterdir():
        assert folder.name in page.text
        assert folder.name.rsplit("-", 1)[1] in page.text


def test_the_same_folder_gives_the_same_bytes(full_folder: Path, tmp_path: Path) -> None:
    before = {path: path.read_bytes() for path in (full_folder / "figures").iterdir()}
    before |= {full_folder / name: (full_folder / name).read_bytes() for name in ("report.html", "report.md")}
    # In another process with another hash seed: no set's order and no counter may show.
    code = "import sys, pathlib, reports; reports.write_report(pathlib.Path(sys.argv[1]))"
    root = str(Path(__file__).parents[2])
    environment = {**os.environ, "PYTHONHASHSEED": "7", "PYTHONPATH": root}
    subprocess.run([sys.executable, "-c", code, str(full_folder)], check=True, env=environment, cwd=tmp_path)
    for path, content in before.items():
        assert path.read_bytes() == content, path.name
    assert not list(full_folder.glob(".*"))


EVIL = "<script>alert('x')</script>"


def test_text_of_records_is_escaped(suite: Any) -> None:
    suite.add_all(("dense",), seeds=1)
    suite.add(f"{EVIL}`a|b`$x_1$", 0, accuracy=70.0, time=300.0, variant='k="><img src=x>', trial_id="evil-1")
    message = f"{EVIL} | `tick` **bold**\n# heading\x00 [link](http://example.org)"
    suite.add("sdgp", 0, accuracy=None, time=None, status="error", message=message)
    folder = suite.write(command=f"run_suite.py --methods '{EVIL}```'")
    write_report(folder)
    page = parse(folder / "report.html")
    assert [tag for tag, _ in page.elements].count("script") == 1
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


def test_what_no_flops_count_is_named_and_escaped(suite: Any, without_figures: None) -> None:
    suite.add_all(("dense",), seeds=1)
    folder = suite.write()
    record = next(folder.glob("trials/*/trial.json"))
    held = json.loads(record.read_text(encoding="utf-8"))
    held["provenance"]["not_counted"] = ["mm in 'attn' (3,072 multiply-adds an image)", EVIL, 7]
    record.write_text(json.dumps(held), encoding="utf-8")
    write_report(folder)
    line = f"Not counted in any FLOPs of resnet9[width=0.25]: mm in 'attn' (3,072 multiply-adds an image); {EVIL}; 7."
    page = parse(folder / "report.html")
    assert line in page.text
    assert [tag for tag, _ in page.elements].count("script") == 1
    assert (
        "<script"
        not in (folder / "report.md").read_text(encoding="utf-8").partition("Not counted")[2].partition("\n")[0]
    )


def test_markdown_renders_escaped_text_as_it_was() -> None:
    markdown_it = pytest.importorskip("markdown_it")
    text = "a|b `c` <script>x</script> **d** _e_ [f](g) &amp; $h$"
    rendered = markdown_it.MarkdownIt("commonmark").enable("table").render(f"| h |\n| --- |\n| {escape(text)} |\n")
    page = Page()
    page.feed(rendered.replace("<table>", '<table id="t">'))
    assert page.tables["t"][1] == [text]


def test_a_folder_without_results_is_the_users_error(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(UsageError) as caught:
            write_report(folder)
        assert str(folder) in str(caught.value)
        assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", ["", "trial_id,method\n"])
def test_a_table_that_cannot_be_read_is_the_users_error(tmp_path: Path, content: str) -> None:
    (tmp_path / "results.csv").write_text(content)
    with pytest.raises(UsageError) as caught:
        write_report(tmp_path)
    assert "\n" not in str(caught.value)


def test_without_the_table_the_trials_records_give_the_same_numbers(
    full_folder: Path, tmp_path: Path, page: Page
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(full_folder, copy)
    (copy / "results.csv").unlink()
    write_report(copy)
    other = parse(copy / "report.html")
    for ending in ("-trade", "-flops"):
        assert table(other, ending) == table(page, ending)
    assert "results.csv is absent" in other.text


def test_damaged_files_are_named_and_hide_nothing(suite: Any) -> None:
    suite.add_all(("dense",), seeds=2)
    folder = suite.write()
    first, second = sorted((folder / "trials").iterdir())
    (first / "trial.json").write_text('{"spec": ')
    with (second / "epochs.jsonl").open("a") as file:
        file.write('{"epoch": 6, "test_acc')
    write_report(folder)
    page = parse(folder / "report.html")
    assert "trial.json is damaged" in page.text
    assert "epochs.jsonl, line 6 is damaged" in page.text
    assert by_head(table(page, "-trade")["dense"], "Seeds") in ("1", "2")


def test_only_failures_still_make_a_report(suite: Any) -> None:
    suite.add("sdgp", 0, accuracy=None, time=None, status="error", message="no")
    folder = suite.write()
    assert [path.name for path in write_report(folder)] == ["report.html", "report.md"]
    page = parse(folder / "report.html")
    assert "no trial is done (1 error of 1 trials)" in page.text


def test_trials_without_epochs_or_layers_still_make_a_report(suite: Any) -> None:
    suite.add_all(("dense", "prunetrain"), seeds=1)
    folder = suite.write()
    shutil.rmtree(folder / "trials")
    write_report(folder)
    page = parse(folder / "report.html")
    assert "no trial that is done has an epochs.jsonl" in page.text
    assert "The trade, as a picture" in page.headings


def test_many_methods_get_a_legend_and_a_changing_density_a_map(suite: Any) -> None:
    for index in range(6):
        suite.add(f"method{index}", 0, accuracy=60.0 + index, time=300.0 + index)
    folder = suite.write()
    for path in folder.glob("trials/*/epochs.jsonl"):
        text = path.read_text()
        for epoch, density in ((2, 0.9), (3, 0.7), (4, 0.5)):
            lines = text.splitlines()
            lines[epoch] = lines[epoch].replace('"weight_density": 1.0', f'"weight_density": {density}')
            text = "\n".join(lines)
        path.write_text(text)
    names = [path.name for path in write_report(folder)]
    assert sum("-shape-" in name for name in names) == 6
    assert "Density of weights by layer over epochs: method0" in parse(folder / "report.html").text


def test_commands_of_a_folder_are_all_given_and_homes_are_hidden(
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
    assert [short[name] for name in variants] == ["prunetrain[ratio=0.1]", "prunetrain[ratio=0.2]"]
    assert len(set(short.values())) == 5
    shared = short_names(["clicktrain[compression=8.0]", "clicktrain[compression=8.0,pool=4]"])
    assert [*shared.values()] == ["clicktrain[…]", "clicktrain[pool=4]"]  # the first is not the method's default
    assert [*short_names(["clicktrain", "clicktrain[pool=4]"]).values()] == ["clicktrain", "clicktrain[pool=4]"]
    assert max(len(name) for name in short.values()) <= 34


def test_labels_of_lines_do_not_overlap() -> None:
    heights = spread([0.99, 0.98, 0.5, 0.97], 0.1)
    assert heights == pytest.approx([1.0, 0.9, 0.5, 0.8])
    assert spread([], 0.1) == []


def test_figures_of_an_earlier_report_are_removed_and_nothing_else(suite: Any) -> None:
    suite.add_all(("dense",), seeds=1)
    folder = suite.write()
    (folder / "figures").mkdir()
    old, own = folder / "figures" / "g-cifar10-shape-7.svg", folder / "figures" / "mine.svg"
    for path in (old, own):
        path.write_text("<svg/>")
    written = write_report(folder)
    assert not old.exists()
    assert own.exists()
    assert all(path.is_file() for path in written)


def test_axes_end_where_accuracies_and_times_do(suite: Any) -> None:
    """Two seeds far apart have an interval that reaches past 100 % and below 0 s."""
    for seed, (accuracy, time) in enumerate(((60.0, 1.0), (95.0, 9.0))):
        suite.add("dense", seed, accuracy=accuracy, time=time)
    figure = next(path for path in write_report(suite.write()) if path.name.endswith("accuracy-time.svg"))
    ticks = re.findall(r">([−\d.]+)</text>", figure.read_text(encoding="utf-8"))
    assert ticks
    assert not any(text.startswith("−") for text in ticks)
    assert max(map(float, ticks)) <= 100
