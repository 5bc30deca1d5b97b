"""Ours beside the published numbers, from made-up results whose answers were worked out by hand."""

from __future__ import annotations

import csv
import dataclasses
import io
import xml.etree.ElementTree as ElementTree

import pytest

from reports.data.estimates import Estimate, Missing
from reports.data.records import read
from reproductions import page as reproduced
from reproductions import published
from reproductions.comparison import Compared, accuracy, compare, doubts_about_times, published_alone
from reproductions.figures import differences_figure, gradient_figure, grid_figure
from reproductions.page import _our_cell, to_csv

NUMBERS = """
[sources.paper]
title = "A <b>paper</b> | with *stars*"
where = "nowhere"

[[groups]]
name = "t"
source = "paper"
place = "Table 1"
quantity = "accuracy"
unit = "%"
of = "measured"
notes = ["a <script>note</script>"]
conditions = { task = "cifar10", data_copy = "sample", model = "resnet9[width=0.25]", epochs = 5, batch_size = 128, dtype = "float32", execution = "eager", selection = "final epoch" }
values = { dense = 95.3, sdgp = 95.2 }

[[groups]]
name = "p"
source = "paper"
place = "Sec. 2"
quantity = "time saved"
unit = "%"
of = "modelled"
conditions = { hardware = "Synthetic" }
values = { sdgp = 16.6 }
"""  # noqa: E501
SDGP = "sdgp[n=2,m=4]"
COMPARED = (
    *accuracy("dense", "dense", "t/dense"),
    *accuracy("pruned", SDGP, "t/sdgp", "t/dense"),
    Compared("time saved", SDGP, column="train_time_s", against="saving", published="p/sdgp"),
    Compared("training time", SDGP, column="train_time_s", against="ratio", unit="×", scale=1.0),
    Compared("FLOPs left", SDGP, column="train_flops_effective", over="train_flops_dense", kind="counted"),
)


@pytest.fixture
def numbers(tmp_path_factory):
    path = tmp_path_factory.mktemp("numbers") / "numbers.toml"
    path.write_text(NUMBERS, encoding="utf-8")
    return published.read(path)


def by_label(records):
    found = {}
    for trial in records.trials:
        label = "dense" if trial.text("method") == "dense" else SDGP
        found.setdefault(label, []).append(trial)
    return found


@pytest.fixture
def trials(suite):
    suite.add_all(("dense", "sdgp"))
    return by_label(read(suite.write()))


def lines(trials, numbers):
    return {one.quantity: one for one in compare(COMPARED, "a", trials, numbers)}


def test_numbers_and_intervals(trials, numbers):
    found = lines(trials, numbers)
    # dense 71.2 71.9 70.8, pruned 71.0 71.3 71.1: differences -0.2 -0.6 +0.3, deviation 0.45092, t(2) 4.30265.
    difference = found["pruned minus dense"]
    assert difference.ours.mean == pytest.approx(-0.5 / 3)
    assert difference.ours.half_width == pytest.approx(4.30265 * 0.450925 / 3**0.5, rel=1e-4)
    assert (difference.published, difference.unit) == (-0.1, "points")
    assert difference.difference == pytest.approx(-0.5 / 3 + 0.1)
    assert difference.covered
    assert difference.source.endswith("Table 1, minus dense of Table 1")
    absolute = found["accuracy, pruned"]
    assert absolute.ours.mean == pytest.approx((71.0 + 71.3 + 71.1) / 3)
    assert absolute.difference == pytest.approx(absolute.ours.mean - 95.2)
    assert absolute.covered is False
    saving = found["time saved"]
    assert saving.published == 16.6
    assert (saving.difference, saving.covered) == (None, None)  # theirs is a projection
    assert [name for name, line in found.items() if line.is_difference] == ["pruned minus dense"]
    ratio = (391 / 372 + 388 / 365 + 395 / 379) / 3
    assert found["time saved"].ours.mean == pytest.approx(100 * (1 - ratio))
    assert found["training time"].ours.mean == pytest.approx(ratio)
    assert found["FLOPs left"].ours.mean == pytest.approx(100 * 5 / 6)
    assert "dense minus dense" not in found


def test_one_seed_has_no_interval_and_covers_nothing(suite, numbers):
    suite.add_all(("dense", "sdgp"), seeds=1)
    one = lines(by_label(read(suite.write())), numbers)["pruned minus dense"]
    assert (one.ours.half_width, one.covered) == (None, None)


def test_times_of_a_busy_machine_are_doubted_where_a_quantity_is_a_time(trials):
    several = [trial for found in trials.values() for trial in found]
    assert doubts_about_times(COMPARED, several) == []
    busy = dataclasses.replace(several[0], provenance={"hardware": {"threads": 2}, "busy_cores": 1.5})
    (line,) = doubts_about_times(COMPARED, [busy, *several[1:]])
    assert "do not rely on the times of these trials" in line
    assert doubts_about_times(COMPARED[:3], [busy]) == []


def test_why_there_is_no_number(suite, numbers):
    suite.add("sdgp", 0, accuracy=None, time=None, status="diverged")
    found = lines(by_label(read(suite.write())), numbers)
    assert found["accuracy, dense"].ours == Missing("not run")
    assert found["accuracy, pruned"].ours == Missing("no trial is done: diverged")
    assert found["accuracy, pruned"].difference is None
    suite.add("sdgp", 1, accuracy=71.0, time=1.0)
    found = lines(by_label(read(suite.write())), numbers)
    assert found["pruned minus dense"].ours == Missing("no dense trial is done to compare with")


@pytest.mark.parametrize(
    ("mean", "covered"),
    # The interval reaches 0.3 further, and what was printed as -0.1, of two numbers, lay within 0.1 of it.
    [(0.29, True), (0.31, False), (-0.49, True), (-0.51, False)],
)
def test_the_interval_meets_what_was_rounded_for_print(numbers, mean, covered):
    group = numbers.group("t")
    assert group.decimals == {"dense": 1, "sdgp": 1}
    (line,) = [one for one in compare(COMPARED, "a", {}, numbers) if one.quantity == "pruned minus dense"]
    assert line.rounding == pytest.approx(0.1)
    assert dataclasses.replace(line, ours=Estimate(mean, 0.3, 3)).covered is covered
    (line,) = [one for one in compare(COMPARED, "a", {}, numbers) if one.quantity == "accuracy, pruned"]
    assert line.rounding == pytest.approx(0.05)
    assert line.published == 95.2
    assert dataclasses.replace(line, ours=Estimate(95.2 + mean, 0.3, 3)).covered is (abs(mean) < 0.35)


def test_times_of_different_machines_are_not_compared(suite, numbers):
    suite.add_all(("dense",), hardware_id="one")
    suite.add_all(("sdgp",), hardware_id="other")
    found = lines(by_label(read(suite.write())), numbers)
    assert found["time saved"].ours == Missing("dense ran on other hardware")
    assert found["training time"].ours == Missing("dense ran on other hardware")
    assert found["pruned minus dense"].ours.count == 3
    # One seed of one machine is left to pair; its mean over both machines would be of none.
    suite.add("sdgp", 4, accuracy=71.0, time=400.0, hardware_id="one")
    suite.add("dense", 4, accuracy=71.0, time=200.0, hardware_id="one")
    trials = by_label(read(suite.write()))
    ratio = lines(trials, numbers)["training time"].ours
    assert (ratio.mean, ratio.count) == (2.0, 1)
    (seconds,) = compare([Compared("s", SDGP, column="train_time_s", scale=1.0, unit="s")], "a", trials, numbers)
    assert seconds.ours == Missing("trials ran on several machines or in several formats, so their times have no mean")


@pytest.mark.parametrize("column", ["threads", "torch"])
def test_times_of_other_threads_or_versions_are_not_compared(suite, numbers, column):
    suite.add_all(("dense",), **{column: "1"})
    suite.add_all(("sdgp",), **{column: "2"})
    found = lines(by_label(read(suite.write())), numbers)
    assert found["time saved"].ours == Missing("dense ran with another number of threads or version of torch")
    assert found["pruned minus dense"].ours.count == 3


def test_a_disturbed_time_is_marked_beside_the_published_one(suite, numbers):
    suite.add_all(("dense", "sdgp"))
    folder = suite.write()
    found = lines(by_label(read(folder)), numbers)
    assert not any(line.disturbed for line in found.values())
    path = min(folder.glob("trials/dense-*/trial.json"))
    path.write_text(path.read_text().replace('"hardware": {', '"busy_cores": 1.9, "hardware": {'))
    found = lines(by_label(read(folder)), numbers)
    assert {name for name, line in found.items() if line.disturbed} == {"time saved", "training time"}
    assert _our_cell(found["time saved"]).text.endswith("(disturbed)")
    assert "disturbed" not in _our_cell(found["pruned minus dense"]).text
    assert "disturbed" in to_csv([found["time saved"]])


@pytest.mark.parametrize("column", ["execution", "dtype"])
def test_times_of_different_execution_are_not_compared(suite, numbers, column):
    suite.add_all(("dense",), **{column: "a"})
    suite.add_all(("sdgp",), **{column: "b"})
    found = lines(by_label(read(suite.write())), numbers)
    assert found["time saved"].ours == Missing("dense ran in another format or execution")
    assert found["FLOPs left"].ours.count == 3


def test_without_a_seed_in_common_that_is_said_and_not_the_hardware(suite, numbers):
    suite.add("dense", 0, accuracy=71.0, time=1.0, hardware_id="one")
    suite.add("sdgp", 1, accuracy=71.0, time=1.0, hardware_id="other")
    found = lines(by_label(read(suite.write())), numbers)
    assert found["time saved"].ours == Missing("no seed in common with dense, so nothing can be paired")


def make(trials, numbers, **changed):
    content = reproduced.ReproductionPage(
        name="made-up",
        title="Made up",
        summary="A summary.",
        comparisons=(*compare(COMPARED, "a", trials, numbers), *published_alone(numbers.group("p"))),
        figure=None,
        reference=numbers.group("t"),
        trials=tuple(trial for several in trials.values() for trial in several),
        alone=(numbers.group("p"),),
        notes=numbers.group("t").notes,
        provenance=("made up",),
    )
    return dataclasses.replace(content, **changed)


def rows_of(text):
    return list(csv.DictReader(io.StringIO(text)))


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
    reference = numbers.group("t")

    def warning(command=(), networks=(), **changed):
        suite.rows.clear()
        suite.add(
            "dense", 0, accuracy=70.0, time=1.0, trial_id=f"t{len(list(suite.folder.glob('trials/*')))}", **changed
        )
        trials = read(suite.write()).trials
        return reproduced.setting_warning(trials, reference, networks=networks, changed=command)

    assert warning(preset="paper") == ""
    assert warning(("recipe.learning_rate=1",), preset="paper") == "set by the command: recipe.learning_rate=1"
    # A preset's small network stands in, too: nobody's command set it.
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
    assert warning(preset="paper", execution="cuda_graph") == "execution cuda_graph instead of eager"
    assert warning(preset="paper", execution="eager", task="digits") == "task digits instead of cifar10"


@pytest.mark.parametrize(("gpu", "same"), [("NVIDIA A100-SXM4-80GB", "yes"), ("NVIDIA H200", "no")])
def test_hardware_is_compared_by_name(trials, numbers, gpu, same):
    theirs = published.own().group("sdgp-table1-cifar10-resnet9")
    ours = [dataclasses.replace(trial, provenance={"hardware": {"gpu": gpu, "cpu": "x"}}) for trial in trials["dense"]]
    page = reproduced.to_markdown(make({"dense": ours}, numbers, reference=theirs))
    assert f"| hardware | Nvidia A100 | {gpu} | {same} |" in page


def test_a_projection_is_never_confirmed(trials, numbers):
    page = reproduced.to_markdown(make(trials, numbers))
    (row,) = [line for line in page.splitlines() if line.startswith("| time saved |")]
    assert "| yes |" not in row
    assert "| no |" not in row
    ours_minus_published, covered = row.split(" | ")[3:5]
    assert (ours_minus_published[:1], covered[:1]) == ("–", "–")
    (row,) = [
        row
        for row in rows_of(reproduced.to_csv(make(trials, numbers).comparisons))
        if row["ours"] and row["quantity"] == "time saved"
    ]
    assert (row["published"], row["difference"]) == ("16.6", "")


@pytest.mark.parametrize(("printed", "shown"), [("95", "95 %"), ("95.0", "95.0 %"), ("95.25", "95.25 %")])
def test_published_numbers_have_the_decimals_that_were_printed(trials, tmp_path, printed, shown):
    path = tmp_path / "numbers.toml"
    path.write_text(NUMBERS.replace("sdgp = 95.2", f"sdgp = {printed}"), encoding="utf-8")
    page = reproduced.to_markdown(make(trials, published.read(path)))
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


def test_a_figures_text_is_no_markup(trials, numbers):
    hostile = accuracy("</text><script>x</script> $a$", SDGP, "t/sdgp", "t/dense")
    figure = differences_figure("made-up", "A <title>", compare(hostile, "a", trials, numbers))
    root = ElementTree.fromstring(figure.standalone)
    assert "script" not in {element.tag.rpartition("}")[2] for element in root.iter()}
    assert "</text><script>x</script> $a$" in "".join(root.itertext())


def test_the_files_and_an_earlier_figure(trials, numbers, tmp_path):
    comparisons = compare(COMPARED, "a", trials, numbers)
    figure = differences_figure("made-up", "A title", comparisons)
    written = reproduced.write(tmp_path, make(trials, numbers, figure=figure))
    assert [path.name for path in written] == ["made-up.md", "made-up.csv", "made-up.svg"]
    assert "(made-up.svg)" in written[0].read_text(encoding="utf-8")
    reproduced.write(tmp_path, make(trials, numbers))
    assert not (tmp_path / "reproduce" / "made-up.svg").exists()
    assert ".svg" not in written[0].read_text(encoding="utf-8")


def test_differences_are_drawn_where_there_are_any(trials, numbers):
    figure = differences_figure("f", "T", compare(COMPARED, "a", trials, numbers))
    assert "pruned minus dense: published −0.1, ours −0.2 ± 1.1" in figure.alt
    assert differences_figure("f", "T", compare(COMPARED, "a", {}, numbers)) is None


def test_a_grid_shows_both_and_what_is_not_possible(trials, numbers):
    absolute, difference = compare(accuracy("pruned", SDGP, "t/sdgp", "t/dense"), "a", trials, numbers)
    unrun = compare(accuracy("pruned", SDGP, "t/sdgp", "t/dense"), "a", {}, numbers)
    cells = {("8", "4"): None, ("8", "8"): unrun, ("2", "4"): (absolute, difference), ("2", "8"): unrun}
    figure = grid_figure("grid", "A grid", ("8", "2"), ("4", "8"), cells, ("ratio", "m"))
    assert "ratio 2, m 4: published 95.2 (−0.1), ours 71.1 ± 0.4 (−0.2 ± 1.1)" in figure.alt
    assert "ratio 8, m 8: published 95.2 (−0.1), ours not run" in figure.alt
    assert figure.standalone.count("N/A") == 2
    assert "ratio 8, m 4" not in figure.alt


def test_a_gradient_is_drawn_on_one_scale_and_zeros_apart():
    import numpy as np

    dense = np.arange(1.0, 33.0).reshape(2, 4, 4)
    half = np.where(dense % 2 == 0, dense, 0)
    figure = gradient_figure("g", "A gradient", "Caption.", {"dense": dense, "half": half}, (6, 7))
    assert "dense: 0 % zeros; half: 50 % zeros" in figure.alt
    assert "channel 6" in figure.standalone
    assert figure.standalone.count("<image") >= 4
