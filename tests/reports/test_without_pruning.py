"""Ways to train without pruning: what makes one, a family of their own, their costs, marks, and the price list."""

from __future__ import annotations

import json
import math
import shutil
import statistics
from typing import Any

import pytest
from matplotlib.colors import to_hex
from scipy import stats
from small_trials import recorded
from test_verdict import (
    EPOCHS,
    OF_GUESSES,
    add_budgets,
    add_dense,
    add_method,
    answers_of,
    cells,
    flops_table,
    group_of,
    groups_of,
    near,
    write_time_passes,
)

from reports.content.build import build
from reports.data.records import is_without_pruning, read
from reports.data.verdict import judged_groups
from reports.figures import svg
from reports.figures.forest import gain_figure
from reports.figures.tradeoff import tradeoff_figures
from reports.figures.training_curves import curve_figures
from reports.render import html, latex, markdown

pytestmark = pytest.mark.usefixtures("without_figures")

NO_PRUNING = {"prunes": False, "control": False}
LENGTHS = (11, 14, 16, 18, 20)


def add_way(suite: Any, name: str, accuracies: tuple[float, ...], executed: float = 1.0, **changed: Any) -> None:
    add_method(suite, name, accuracies, executed, spec=NO_PRUNING, **changed)


def add_longer(suite: Any, spec: dict[str, Any]) -> None:
    """Add a narrower dense network that is trained for 40 epochs beside others of 20."""
    flops = {f"train_flops_{kind}": 0.56 * 3.6e12 for kind in ("current", "effective", "executed")}
    for seed, accuracy in enumerate(near(87.0)):
        suite.add("dense", seed, accuracy=accuracy, time=300.0, variant="width=0.5,recipe.epochs=40", epochs=40,
                  recipe={"epochs": 40}, spec=NO_PRUNING | spec, train_flops_dense=7.2e12, **flops)  # fmt: skip


@pytest.mark.parametrize(("method", "variant", "spec", "control", "way"), [
    ("dense", "", NO_PRUNING, False, False),
    ("dense", "width=0.5", NO_PRUNING, False, True),
    ("dense", "width=0.5", {"control": False}, False, True),
    ("dense", "repeat=2", {"prunes": False, "control": True}, True, False),
    ("freezeout", "", {"prunes": False}, False, True),
    ("sdgp", "mode=random", {"control": True}, True, False),
    ("sdgp", "n=2", {"prunes": True, "control": False}, False, False),
])  # fmt: skip
def test_records_tell_controls_and_ways_without_pruning_apart(
    method: str, variant: str, spec: Any, control: bool, way: bool
) -> None:
    trial = recorded(method=method, variant=variant, **spec)
    assert (trial.spec.control, is_without_pruning(trial)) == (control, way)


def test_ways_without_pruning_and_methods_do_not_change_what_is_said_of_each_other(suite: Any) -> None:
    add_budgets(suite)
    add_method(suite, "quick", near(88.7), executed=0.9)
    add_method(suite, "open", (88.2, 88.6, 88.3, 88.4, 88.4), executed=0.9)
    write_time_passes(suite, "quick", (0.86, 0.87, 0.86))
    write_time_passes(suite, "open", (0.9, 0.91, 0.9))
    before = answers_of(suite)
    first = [cells(flops_table(group_of(suite)), name) for name in ("quick", "open")]
    for number in range(3):
        add_way(suite, f"way{number}", near(88.6 + number / 10), executed=0.8)
        write_time_passes(suite, f"way{number}", (0.8, 0.81, 0.8), twice=1.0 + number)
    after = answers_of(suite)
    for cost, answer in after.items():
        assert answer.judged == before[cost].judged
        assert [one.claims for one in answer.both] == [2, 2, 3, 3, 3]
    assert [cells(flops_table(group_of(suite)), name) for name in ("quick", "open")] == first
    group = group_of(suite)
    assert "for its 2 methods together, and of at most as much again for its 3 ways without pruning" in (
        group.verdict.certainty
    )
    add_method(suite, "third", near(88.7), executed=0.9)
    assert answers_of(suite)["flops"].without_pruning == after["flops"].without_pruning


def test_time_passes_of_ways_without_pruning_alone_leave_methods_with_flops(suite: Any) -> None:
    add_budgets(suite)
    add_way(suite, "freezeout", near(88.7), executed=0.85)
    write_time_passes(suite, "freezeout", (0.86, 0.87, 0.86))
    group = group_of(suite)
    assert group.summary.name.endswith("-time")
    assert cells(group.summary, "freezeout")[4:6] == ["better", "yes"]
    assert group.verdict.purposes == ("No method that prunes was trained here.",)
    add_method(suite, "quick", near(88.7), executed=0.85)
    assert group_of(suite).summary.name.endswith("-flops")


def test_a_way_without_pruning_is_never_the_best_method(suite: Any) -> None:
    add_budgets(suite)
    add_method(suite, "quick", near(88.7), executed=0.85)
    add_way(suite, "dense", near(90.0), 0.8, variant="width=0.5", inference_flops=2e7, inference_flops_effective=2e7)
    add_way(suite, "few", near(90.0)[:3], 0.8)
    most, cheapest, without, smallest = group_of(suite).verdict.purposes
    assert most.startswith("Most accurate method for its executed FLOPs: `quick`, +")
    assert cheapest.startswith("Cheapest method within 0.5 points of dense: `quick`, 0.85 of dense's FLOPs; dense as ")
    assert without == "Without pruning, `dense[width=0.5]` is better than dense for its executed FLOPs."
    assert smallest == "Fewest inference FLOPs by pruning: none here needs fewer than dense."
    for path in suite.folder.glob("trials/quick-*"):
        shutil.rmtree(path)
    add_method(suite, "bad", near(84.0), executed=0.9)
    most, cheapest, *_ = group_of(suite).verdict.purposes
    assert most == "Most accurate method for its executed FLOPs: none is shown to be better than dense."
    assert cheapest.endswith(": none is shown to be cheaper than dense.")


def test_a_page_says_that_no_way_without_pruning_is_better(suite: Any) -> None:
    add_budgets(suite)
    add_method(suite, "quick", near(88.7), executed=0.85)
    add_way(suite, "freezeout", near(84.0), executed=0.9)
    assert group_of(suite).verdict.purposes[2] == (
        "Without pruning, no way is shown to be better than dense for its executed FLOPs."
    )


def test_ways_without_pruning_do_not_change_the_order_of_methods(suite: Any) -> None:
    add_dense(suite)
    for name, accuracy, ratio in (("accurate", 88.5, 0.9), ("fast", 88.0, 0.7)):
        add_method(suite, name, near(accuracy))
        write_time_passes(suite, name, (ratio,))
    add_way(suite, "freezeout", near(88.6))  # both more accurate and faster than the first
    write_time_passes(suite, "freezeout", (0.85,))
    assert [row[0].text for row in group_of(suite).summary.rows] == ["dense", "accurate", "fast", "freezeout"]


def test_lost_seeds_and_missing_seeds_of_ways_without_pruning_are_said(suite: Any) -> None:
    add_budgets(suite)
    add_method(suite, "quick", near(88.7), executed=0.85)
    add_way(suite, "freezeout", near(88.7)[:3], executed=0.85)
    suite.add("freezeout", 3, accuracy=None, time=None, status="diverged", epochs=EPOCHS, recipe={"epochs": EPOCHS},
              spec=NO_PRUNING)  # fmt: skip
    verdict = group_of(suite).verdict
    assert verdict.warnings == ("`freezeout` (no pruning): 1 of 4 seeds diverged or learned nothing.",)
    assert "--seeds 6" in verdict.advice
    assert "`freezeout`" not in " ".join(verdict.purposes)


def rows_of(suite: Any) -> dict[str, Any]:
    ((_, rows, _),) = judged_groups(read(suite.write()))
    return {row.label: row for row in rows}


def test_flops_are_relative_to_dense_training_of_the_group(suite: Any) -> None:
    for seed, dense in enumerate((0.7, 0.8, 1.0, 1.0, 1.0)):  # each seed counts its own images
        flops = {"train_flops_dense": dense * 3.6e12, "train_flops_executed": 0.6 * 3.6e12}
        suite.add("freezeout", seed, accuracy=88.0, time=300.0, epochs=EPOCHS, recipe={"epochs": EPOCHS},
                  spec=NO_PRUNING, **flops)  # fmt: skip
    add_method(suite, "quick", near(88.0), executed=0.9, train_flops_dense=4.0e12)
    (row,) = (row for label, row in rows_of(suite).items() if label == "freezeout")
    assert row.flops_ratio["executed"].mean == pytest.approx(0.6 / (0.7 * 0.8) ** 0.2)  # without dense: their own
    add_budgets(suite)
    rows = rows_of(suite)
    assert rows["freezeout"].flops_ratio["executed"].mean == pytest.approx(0.6)
    (judged,) = answers_of(suite)["flops"].without_pruning
    assert judged.candidate.ratios == pytest.approx((0.6,) * 5)
    assert rows["quick"].flops_ratio["executed"].mean == pytest.approx(0.81)  # of a method: its own
    for seed, accuracy in enumerate(near(88.0)):  # unless it has epochs of its own
        suite.add("longer", seed, accuracy=accuracy, time=300.0, epochs=40, recipe={"epochs": 40},
                  spec={"replaced": {"epochs": EPOCHS}}, train_flops_dense=7.2e12,
                  train_flops_executed=1.5 * 3.6e12)  # fmt: skip
    assert rows_of(suite)["longer"].flops_ratio["executed"].mean == pytest.approx(1.5)


def test_a_row_with_its_own_epochs_is_in_the_group_and_keeps_them(suite: Any, drawn: Any) -> None:
    add_budgets(suite)
    add_longer(suite, {"replaced": {"epochs": EPOCHS}})
    (group,) = groups_of(suite)
    name = "dense[width=0.5,recipe.epochs=40]"
    assert cells(group.summary, name)[2] == "0.56"
    assert len(group.tables[-1].rows) == len(LENGTHS)
    (only,) = build(read(suite.folder), (0.99,)).groups
    (table,) = only.sections[0].tables
    assert cells(table, name)[0] == "not reached within 40 epochs (0 of 5 seeds)"
    assert cells(table, "dense")[0] == "not reached within 20 epochs (0 of 3 seeds)"
    for path in suite.folder.glob("trials/*/epochs.jsonl"):
        if json.loads((path.parent / "trial.json").read_text())["spec"]["variant"]:
            record = json.loads(path.read_text().splitlines()[-1])
            path.write_text(path.read_text() + json.dumps({**record, "epoch": 10}) + "\n")
    figures, missing = curve_figures([*rows_of(suite).values()], "slug")
    assert not missing
    assert f"{name} (no pruning) 87" in figures[0].alt
    ends = sorted(max(curve.get_xdata()) for curve in drawn[0].axes[0].lines if len(curve.get_xdata()))
    assert (ends, drawn[0].axes[0].get_xlim()[1] > 10) == ([5.0, 10.0], True)
    assert any(text.get_text().endswith("(no pruning)") for text in drawn[0].legends[0].texts)


def test_a_longer_training_that_was_not_typed_for_one_method_is_another_group(suite: Any) -> None:
    add_budgets(suite)
    add_method(suite, "quick", near(88.7), executed=0.9)
    add_longer(suite, {})
    assert len(groups_of(suite)) == 2


def test_the_mark_is_wherever_a_way_without_pruning_has_numbers(suite: Any) -> None:
    add_budgets(suite)
    add_method(suite, "quick", near(88.7), executed=0.85)
    add_way(suite, "freezeout", near(88.7), executed=0.85)
    write_time_passes(suite, "quick", (0.86, 0.87, 0.86))
    write_time_passes(suite, "freezeout", (0.86, 0.87, 0.86))
    add_method(suite, "twin", near(86.0), spec={"control": True})
    report = build(read(suite.write()), (0.8,))
    (group,) = report.groups
    for table in (group.summary, *group.tables[:4], *group.sections[0].tables):
        names = [row[0].text for row in table.rows if row[0].colour is not None]
        assert names.index("quick") < names.index("freezeout")
        assert {row[0].text for row in table.rows if row[0].mark == "(no pruning)"} == {"freezeout"}
    assert [row[0].text for row in group.summary.rows][-1] == "twin"
    assert "freezeout (no pruning) 0.860" in " ".join(group.remarks)
    text = markdown.render(report)
    assert text.count("| `freezeout` (no pruning) |") == 11  # in six tables, and five trials in another
    assert "`freezeout` (no pruning): 0.863; " in text
    assert "</span><span><code>freezeout</code> (no pruning)</span></span>" in html.render(report)
    assert "freezeout (no pruning) & " in latex.render(report)
    assert "5 of them are other training without pruning; 5 of them are controls of methods" in report.summary


def test_figures_draw_ways_without_pruning_in_grey_below_the_methods(
    suite: Any, drawn: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reports.content.build.gain_figure", gain_figure)
    add_budgets(suite)
    add_method(suite, "quick", near(88.7), executed=0.85)
    add_way(suite, "freezeout", near(89.5), executed=0.8)
    group = group_of(suite)
    (figure,) = (one for one in group.figures if "-gain-" in one.name)
    (axes,) = drawn[0].axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["quick", "freezeout (no pruning)"]
    assert [text.get_text() for text in axes.texts] == ["better", "better"]
    assert any([*one.get_ydata()] == [0.5, 0.5] for one in axes.lines)
    intervals = next(one for one in axes.collections if hasattr(one, "get_segments") and len(one.get_colors()) == 2)
    assert to_hex(intervals.get_colors()[1]) == svg.MUTED
    assert "Below the line: ways without pruning" in figure.caption
    tradeoff_figures([*rows_of(suite).values()], "slug", {"time": (), "flops": ()})
    (mark,) = (text for text in drawn[-1].legends[0].texts if "freezeout" in text.get_text())
    assert mark.get_text() == "freezeout (no pruning)"


def test_an_interval_that_would_hide_the_others_goes_on_as_an_arrow(
    suite: Any, drawn: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reports.content.build.gain_figure", gain_figure)
    add_budgets(suite)
    add_method(suite, "quick", near(88.7), executed=0.85)
    add_method(suite, "wild", (78.0, 88.0, 98.0), executed=0.85)
    assert group_of(suite).summary
    (lines, *_) = (one for one in drawn[0].axes[0].collections if hasattr(one, "get_segments"))
    ends = {abs(x) for segment in lines.get_segments() for x, _ in segment}
    heads = {abs(x) for one in drawn[0].axes[0].collections if hasattr(one, "get_sizes") for x, _ in one.get_offsets()}
    assert max(ends) == max(heads) < 10
    assert len(ends) > 2  # the narrow interval is whole


def lower(accuracies: tuple[float, ...], variance: float, freedom: int) -> float:
    width = stats.t.ppf(0.975, freedom) * math.sqrt(variance / len(accuracies))
    return statistics.fmean(accuracies) - width


def priced(suite: Any, *asked: float) -> Any:
    (group,) = build(read(suite.write()), asked).groups
    return group.prices


def test_each_length_of_dense_gives_a_price_and_cheaper_ways_come_first(suite: Any) -> None:
    add_budgets(suite)
    found = [(one.spec.recipe["epochs"], 100 * one.result["test_accuracy"]) for one in read(suite.folder).trials]
    of_dense = {n: tuple(accuracy for epochs, accuracy in found if epochs == n) for n in LENGTHS}
    pool = statistics.fmean(statistics.variance(values) for values in of_dense.values())
    targets = {n: math.floor(10 * lower(values, pool, 10)) / 10 for n, values in of_dense.items()}
    wide = (88.5, 87.7, 88.9, 88.0, 87.9)
    assert statistics.fmean(wide) > targets[18] > lower(wide, statistics.variance(wide), 4) > targets[16]
    add_method(suite, "wide", wide, executed=0.75)
    add_way(suite, "freezeout", near(88.2)[:3], executed=0.65)
    few = lower(near(88.2)[:3], max(pool, statistics.variance(near(88.2)[:3])), 2)
    assert targets[16] < few < targets[18]
    add_method(suite, "dear", near(90.0), executed=1.1)
    add_way(suite, "lost", near(91.0), executed=0.5)
    suite.add("lost", 5, accuracy=None, time=None, status="diverged", epochs=EPOCHS, recipe={"epochs": EPOCHS},
              spec=NO_PRUNING)  # fmt: skip
    add_method(suite, "twin", near(91.0), 0.5, spec={"control": True})
    add_method(suite, "unknown", near(91.0), train_flops_executed=None)
    prices = priced(suite)
    names = {n: f"`dense`, {n} epochs: {n / 20:.2f}" for n in LENGTHS}
    freezeout, dear = "`freezeout` (no pruning): 0.65, preliminary", "`dear`: 1.10"
    assert [[cell.text for cell in row] for row in prices.rows] == [
        [f"{targets[11]:g}", "0.55", "8 of 9 ways", f"{names[11]}; {freezeout}; {names[14]}; `wide`: 0.75; 4 more"],
        [f"{targets[14]:g}", "0.65", "7 of 9 ways", f"{freezeout}; {names[14]}; `wide`: 0.75; {names[16]}; 3 more"],
        [f"{targets[16]:g}", "0.65", "6 of 9 ways", f"{freezeout}; `wide`: 0.75; {names[16]}; {names[18]}; 2 more"],
        [f"{targets[18]:g}", "0.90", "3 of 9 ways", f"{names[18]}; {names[20]}; {dear}"],
        [f"{targets[20]:g}", "1.00", "2 of 9 ways", f"{names[20]}; {dear}"],
    ]  # fmt: skip
    assert prices.lead.startswith("To spend 75 % of dense's FLOPs, take the last row")
    assert "9 were compared. `unknown` could not be, for want of 3 seeds or of a cost." in prices.below


def test_declared_and_asked_targets_replace_those_of_the_lengths(suite: Any) -> None:
    add_dense(suite)
    add_method(suite, "quick", near(88.7), executed=0.85)
    folder = suite.write()
    assert priced(suite) is None  # one length gives no price
    content = json.loads((folder / "suite.json").read_text())
    content["commands"][0]["spec"]["targets"] = [0.95, 0.8]
    (folder / "suite.json").write_text(json.dumps(content))
    (group,) = build(read(folder)).groups
    assert [[cell.text for cell in row] for row in group.prices.rows] == [
        ["80", "0.85", "2 of 2 ways", "`quick`: 0.85; `dense`, 20 epochs: 1.00"],
        ["95", "–", "0 of 2 ways", "none"],
    ]
    assert "The accuracies were declared by the command that trained." in group.prices.below
    assert [row[0].text for row in priced(suite, 0.85).rows] == ["85"]


def test_prices_are_times_of_time_passes_if_there_are_any(suite: Any) -> None:
    add_budgets(suite)
    add_method(suite, "quick", near(88.9), executed=0.85)
    write_time_passes(suite, "quick", (0.95, 0.95, 0.95))
    prices = priced(suite, 0.88)
    assert "75 % of dense's time" in prices.lead
    assert prices.rows[0][3].text == "`dense`, 18 epochs: 0.90; `quick`: 0.950; `dense`, 20 epochs: 1.00"


def test_a_row_names_the_cheapest_dense_training_that_reaches_it_after_the_first_ways(suite: Any) -> None:
    add_budgets(suite)
    for number in range(6):
        add_method(suite, f"m{number}", near(89.0), executed=0.8 + number / 100)
    *first, dense, more = priced(suite, 0.88).rows[0][3].text.split("; ")
    assert [text.partition(":")[0] for text in first] == ["`m0`", "`m1`", "`m2`", "`m3`"]
    assert (dense, more) == ("`dense`, 18 epochs: 0.90", "3 more")


def test_smoke_tests_and_tasks_that_dense_has_not_learned_have_no_prices(suite: Any) -> None:
    add_budgets(suite)
    add_method(suite, "quick", near(88.7), executed=0.85)
    assert priced(suite) is not None
    suite.change(provenance=OF_GUESSES, result={"test_accuracy": 0.1})
    (group,) = build(read(suite.folder), (0.5,)).groups
    assert (bool(group.caution), group.prices) == (True, None)


def test_a_smoke_test_has_no_prices(suite: Any) -> None:
    suite.add_all(("dense", "sdgp"), preset="smoke")
    assert priced(suite, 0.5) is None
