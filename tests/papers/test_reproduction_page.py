"""Tests of the page, the CSV file and the figures of a reproduction, on invented results."""

from __future__ import annotations

import shutil

import pytest
from invented_numbers import NUMBERS, by_label, lines, make, rows_of

from reports.data.records import read
from reports.papers import page as reproduced
from reports.papers import paper
from reports.papers.charts import differences
from reports.papers.paper import Chart


def chart(title, **fields):
    return Chart(draw="differences", title=title, **fields)


def test_the_table_as_csv(trials, numbers):
    text = reproduced.to_csv(make(trials, numbers).comparisons)
    assert text.startswith("quantity,published,source,ours,interval,difference,kind,")
    rows = {row["quantity"]: row for row in rows_of(text)}
    row = rows["pruned minus dense"]
    assert (row["published"], row["kind"], row["published_kind"], row["seeds"]) == (
        "-0.1",
        "measured",
        "published",
        "3",
    )
    assert float(row["ours"]) == pytest.approx(-0.5 / 3)
    assert float(row["interval"]) == pytest.approx(1.1202, rel=1e-3)
    assert rows["FLOPs left"]["kind"] == "counted"
    assert (rows["FLOPs left"]["published"], rows["FLOPs left"]["difference"]) == ("", "")
    alone = rows["time saved, sdgp (Sec. 2)"]
    assert (alone["ours"], alone["part"], alone["kind"]) == ("", "", "published, of a modelled quantity")


def test_the_page_says_first_that_the_setting_is_not_the_papers(trials, numbers):
    page = reproduced.to_markdown(make(trials, numbers))
    head = page[: page.index("## ")]
    assert "**Not the paper's setting:** preset quick instead of the paper's recipe." in head
    assert "Compare the differences to dense" in head
    assert page.index("## Differences to dense") < page.index("## Absolute numbers")
    assert "| pruned minus dense | −0.1 points<sup>3</sup> | −0.2 ± 1.1 points | −0.1 | yes |" in page
    assert "A no does not refute the paper" in page
    transfers, numbers_themselves = page[page.index("## Differences to dense") :].split("## Absolute numbers")
    assert "time saved" not in transfers
    assert "| time saved |" in numbers_themselves
    assert "| published, of a modelled quantity |" in page
    assert "| epochs | 5 | 5 | yes |" in page


def test_what_differs_from_the_paper(suite, numbers):
    reference = numbers.groups["t"]

    def warning(command=(), networks=(), **changed):
        shutil.rmtree(suite.folder / "trials", ignore_errors=True)
        suite.add("dense", 0, accuracy=70.0, time=1.0, **changed)
        trials = read(suite.write()).trials
        return reproduced.setting_warning(trials, reference, networks=networks, changed=command)

    assert warning(preset="paper") == ""
    assert warning(("recipe.learning_rate=1",), preset="paper") == "set by the command: recipe.learning_rate=1"
    # A preset's small network is a substitute too, although no command set it.
    small = "the network small in place of big"
    assert warning(("recipe.learning_rate=1",), (small,), preset="paper") == (
        f"{small}; set by the command: recipe.learning_rate=1"
    )
    assert warning(preset="paper", epochs=7) == "epochs 7 instead of 5"
    assert warning(preset="paper", model="resnet9[width=0.5]") == (
        "model resnet9[width=0.5] instead of resnet9[width=0.25]"
    )
    assert warning(preset="paper", data_copy="jpeg-01234567") == "data copy jpeg instead of sample"
    assert warning(preset="paper", batch_size=64) == "batch size 64 instead of 128"
    assert warning(preset="paper", dtype="bfloat16") == "dtype bfloat16 instead of float32"
    assert warning(preset="paper", recipe={"execution": "cuda_graph"}) == "execution cuda_graph instead of eager"
    assert warning(preset="paper", recipe={"execution": "eager"}, task="digits") == "task digits instead of cifar10"


@pytest.mark.parametrize(("gpu", "same"), [("NVIDIA A100-SXM4-80GB", "yes"), ("NVIDIA H200", "no")])
def test_hardware_is_compared_by_name(trials, numbers, gpu, same):
    theirs = paper.read(paper.OWN[-1]).groups["sdgp-table1-cifar10-resnet9"]
    provenance = {"hardware": {"gpu": gpu, "cpu": "x"}}
    ours = [trial.model_copy(update={"provenance": provenance}) for trial in trials["dense"]]
    page = reproduced.to_markdown(make({"dense": ours}, numbers, reference=theirs))
    assert f"| hardware | Nvidia A100 | {gpu} | {same} |" in page


@pytest.mark.parametrize(("printed", "shown"), [("95", "95 %"), ("95.0", "95.0 %"), ("95.25", "95.25 %")])
def test_published_numbers_have_the_decimals_that_were_printed(trials, tmp_path, printed, shown):
    path = tmp_path / "numbers.toml"
    path.write_text(NUMBERS.replace("sdgp = 95.2", f"sdgp = {printed}"), encoding="utf-8")
    page = reproduced.to_markdown(make(trials, paper.read(path)))
    assert f"| accuracy, pruned | {shown}<sup>" in page


def test_a_part_that_nobody_asked_for_is_a_command_and_no_rows(trials, numbers):
    without = {"dense": trials["dense"]}
    unrun = (reproduced.PartNotRun("a", "the first part", "pdt reproduce made-up --parts a"),)
    page = reproduced.to_markdown(make(without, numbers, unrun=unrun))
    assert "pdt reproduce made-up --parts a" in page
    assert "pruned minus dense" not in page
    assert "accuracy, dense" in page  # another command left it here
    assert "pruned minus dense" in reproduced.to_csv(make(without, numbers).comparisons)
    assert "Their published numbers are in `made-up.csv`" in page
    others = (reproduced.PartNotRun("b", "a part that nothing was published of", "pdt reproduce made-up --parts b"),)
    assert "Their published numbers" not in reproduced.to_markdown(make(trials, numbers, unrun=others))


def test_text_from_outside_is_no_markup(suite, numbers):
    suite.add("sdgp", 0, accuracy=None, time=None, status="error", message="<img src=x> | `tick` *star*")
    suite.add_all(("dense",))
    trials = by_label(read(suite.write()))
    page = reproduced.to_markdown(make(trials, numbers, title="A # title <i>", remarks=("[x](javascript:1)",)))
    for markup in ("<script>", "<b>", "<img", "<i>", "[x](", "*star*"):
        assert markup not in page
    assert r"A &lt;b&gt;paper&lt;/b&gt; \| with \*stars\*" in page
    assert "error: &lt;img src=x&gt;" in page


def test_the_files_and_an_earlier_figure(trials, numbers, tmp_path):
    figure = differences("made-up", chart("A title"), [*lines(trials, numbers).values()], None)
    written = reproduced.write(tmp_path, make(trials, numbers, figure=figure))
    assert {path.name for path in written.parent.iterdir()} == {"made-up.md", "made-up.csv", "made-up.svg"}
    assert "(made-up.svg)" in written.read_text(encoding="utf-8")
    reproduced.write(tmp_path, make(trials, numbers))
    assert not (tmp_path / "reproduce" / "made-up.svg").exists()
    assert ".svg" not in written.read_text(encoding="utf-8")
