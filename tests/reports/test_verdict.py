"""What a page says about its methods: evidence from records, sentences, advice; the rule itself has its own tests."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from small_trials import recorded
from time_passes import one_pass, stage

from reports import write_report
from reports.content.build import build
from reports.content.verdict import Setting, smoke_verdict
from reports.data.estimates import Estimate, Missing, paired, ratio_estimate
from reports.data.method_rows import by_seed, method_rows, time_ratios
from reports.data.records import looks, page_groups, read
from reports.data.rule import holm
from reports.data.verdict import evidence, judged_groups, margins
from reports.figures.forest import gain_figure
from suite.measure.times import MethodTime

pytestmark = pytest.mark.usefixtures("without_figures")

DENSE = (88.8, 88.6, 88.7)
EPOCHS = 20


def lost(cost: float) -> float:
    """Return what dense training loses for a cost, in points."""
    return 7.0 * (cost**-0.7 - 1)


def add_dense(suite: Any, epochs: int = EPOCHS, seeds: int = 3, steepness: float = 1.0, **changed: Any) -> None:
    """Add dense trainings for some of 20 epochs."""
    share = epochs / EPOCHS
    flops = {f"train_flops_{kind}": 3.6e12 * share for kind in ("dense", "current", "effective", "executed")}
    for seed in range(seeds):
        # The spread must differ between lengths, or their means would lie on a curve without any.
        accuracy = DENSE[(seed + epochs) % 3] - steepness * lost(share)
        recipe = {"epochs": epochs}
        suite.add("dense", seed, accuracy=accuracy, time=18.0 * epochs, epochs=epochs, recipe=recipe, **flops | changed)


def add_budgets(suite: Any) -> None:
    for epochs in (11, 14, 16, 18, 20):
        add_dense(suite, epochs)


def add_method(suite: Any, name: str, accuracies: tuple[float, ...], executed: float = 1.0, **changed: Any) -> None:
    """Add a method with these accuracies."""
    flops = {f"train_flops_{kind}": executed * 3.6e12 for kind in ("current", "effective", "executed")}
    flops |= {"train_flops_dense": 3.6e12}
    for seed, accuracy in enumerate(accuracies):
        suite.add(
            name, seed, accuracy=accuracy, time=300.0, epochs=EPOCHS, recipe={"epochs": EPOCHS}, **flops | changed
        )


def near(accuracy: float) -> tuple[float, ...]:
    return tuple(accuracy + value for value in (-0.1, 0.1, 0.0, 0.1, -0.1))


def write_time_passes(suite: Any, label: str, ratios: tuple[float, ...], load: float = 0.1, **changed: Any) -> None:
    """Add time passes of one method to those of the suite's group, and dense against itself."""
    groups = page_groups(read(suite.write()).trials)[0]
    group = next(one for one in groups if one.key["epochs"] == str(EPOCHS))
    file = suite.folder / "time.json"
    known = json.loads(file.read_text()) if file.exists() else {"version": 1, "groups": [{"key": {}, "methods": {}}]}

    fields = {"trial": f"{label}-trial", "load": load, "threads": 2, **changed}
    passes = [one_pass(ratio, number=number, **fields) for number, ratio in enumerate(ratios)]
    known["groups"][0]["key"] = dict(group.key)
    known["groups"][0]["methods"][label] = {"passes": passes}
    file.write_text(json.dumps(known))


def groups_of(suite: Any) -> Any:
    return build(read(suite.write())).groups


def group_of(suite: Any) -> Any:
    (group,) = groups_of(suite)
    return group


def cells(table: Any, name: str) -> list[str]:
    return next([cell.text for cell in row[1:]] for row in table.rows if row[0].text == name)


def answers_of(suite: Any) -> Any:
    """Return what the rule says about the whole dense training's group, for each cost."""
    ((_, _, answers),) = judged_groups(read(suite.write()))
    return answers


def note(group: Any, name: str) -> str:
    """Return the note on the outcome of a method."""
    return str(next(row[5].note for row in group.summary.rows if row[0].text == name))


def flops_table(group: Any) -> Any:
    return group.summary if group.summary.name.endswith("-flops") else group.tables[0]


def out(suite: Any) -> str:
    """Return the option that names the folder of the report."""
    return f"--out {suite.folder}"


def test_the_first_screen_answers_by_the_time_passes(suite: Any) -> None:
    add_budgets(suite)
    add_method(suite, "quick", near(88.7), executed=0.9)
    add_method(suite, "same", near(88.7), executed=1.0)
    add_method(suite, "bad", near(84.0), executed=0.9)
    for label, ratios in (("quick", (0.86, 0.87, 0.86)), ("same", (1.0, 1.01, 0.99)), ("bad", (0.9, 0.91, 0.9))):
        write_time_passes(suite, label, ratios)
    group = group_of(suite)
    assert [row[0].text for row in group.summary.rows] == [
        "dense", "quick", "· dense for this cost", "same", "· dense for this cost", "bad", "· dense for this cost",
    ]  # fmt: skip
    assert cells(group.summary, "dense") == ["88.70 ± 0.13", "0.10", "1.00", "–", "–", "–", "1.00"]
    quick = cells(group.summary, "quick")
    assert quick[2].startswith("0.863 [0.8")
    assert quick[4:] == ["better", "yes", "1.00"]
    assert cells(group.summary, "same")[4:6] == ["same within 0.5", "undecided"]
    assert cells(group.summary, "bad")[4:6] == ["worse", "no"]
    assert group.summary.rows[2][1].text.startswith("87.9")  # of dense for 0.863 of the time
    verdict = group.verdict
    first, second, third = verdict.purposes
    assert first.startswith("Most accurate for its time: `quick`, +0.7")
    assert first.endswith("points above dense training for 0.863 of dense's time.")
    assert second == ("Fastest within 0.5 points of dense: `quick`, 0.863 of dense's time; the next is dense.")
    assert third == "Fewest inference FLOPs: dense; no method here needs fewer."
    assert verdict.basis.startswith("Each method has 5 seeds. Dense trains in 6 min 00 s on 2 threads. A gain of 0.")
    assert "Dense against dense, time passes differ by 0." in verdict.basis
    assert "for its 3 methods together" in verdict.certainty


def test_without_a_time_pass_flops_decide_and_the_time_pass_is_next(suite: Any) -> None:
    add_budgets(suite)
    add_method(suite, "quick", near(88.7), executed=0.85)
    group = group_of(suite)
    assert group.summary.name.endswith("-flops")
    assert cells(group.summary, "quick")[2] == "0.85"
    assert cells(group.summary, "quick")[4:6] == ["better", "yes"]
    assert group.verdict.purposes[0].startswith("Most accurate for its executed FLOPs: `quick`")
    assert group.verdict.purposes[1].startswith("Cheapest within 0.5 points of dense: `quick`")
    assert f"For a verdict about time, run `python run_suite.py time {suite.folder}`." in group.verdict.advice


def test_gains_are_drawn_in_the_order_of_the_table(suite: Any, drawn: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reports.content.build.gain_figure", gain_figure)
    add_budgets(suite)
    add_method(suite, "quick", near(88.7), executed=0.85)
    add_method(suite, "slow", near(89.5), executed=1.1)
    add_method(suite, "bad", near(84.0), executed=0.9)
    group = group_of(suite)
    (figure,) = (one for one in group.figures if "-gain-" in one.name)
    gain = cells(group.summary, "quick")[3]
    assert figure.name.endswith("-gain-flops")
    assert f"quick: {gain} points: better; " in figure.alt
    (axes,) = drawn[0].axes
    assert [text.get_text() for text in axes.texts] == [
        cells(group.summary, name)[4] for name in ("slow", "quick", "bad")
    ]
    assert "Grey band: less than the margin of 0.5 points" in figure.caption


@pytest.mark.parametrize("timed", [True, False])
def test_a_sentence_has_the_numbers_of_the_tables_to_the_digit(suite: Any, timed: bool) -> None:
    add_budgets(suite)
    for seed, share in enumerate((0.3, 0.5, 0.9, 0.4, 0.8)):
        flops = {f"train_flops_{kind}": share * 3.6e12 for kind in ("current", "effective", "executed")}
        counts = {"inference_flops": 8e7 * share, "inference_flops_effective": 8e7 * share, "train_flops_dense": 3.6e12}
        suite.add("vary", seed, accuracy=near(89.3)[seed], time=90.0 + 60 * seed, epochs=EPOCHS,
                  recipe={"epochs": EPOCHS}, **flops, **counts)  # fmt: skip
    add_method(suite, "skips", near(88.7), executed=0.846, train_flops_effective=0.7849 * 3.6e12)
    add_method(suite, "few", near(88.4)[:1], executed=0.744)
    add_method(suite, "dear", near(85.0), executed=1.106)
    add_method(suite, "open", (87.7, 88.3, 88.0), executed=0.896, train_flops_effective=0.6049 * 3.6e12)
    if timed:
        write_time_passes(suite, "skips", (0.846, 0.863, 0.8512))
        write_time_passes(suite, "dear", (1.1, 1.11, 1.1))
    (group,) = build(read(suite.write()), (0.87,)).groups

    def numbers(text: str) -> set[str]:
        return {*re.findall(r"\d+\.\d+|\d+(?= ±)|(?<=± )\d+", text)}

    shown: dict[str, set[str]] = {}
    name = ""
    for row in (row for table in (group.summary, *group.tables[:-1]) for row in table.rows):
        name = row[0].text if row[0].colour is not None else name  # dense for a cost belongs to the row above
        shown.setdefault(name, set()).update(*(numbers(cell.text) for cell in row[1:]))
    said = [found for row in group.prices.rows for found in re.findall(r"`(\w+)`: ([^;]+)", row[3].text)]
    said += re.findall(r": `(\w+)`, ([^;]+)", " ".join(group.verdict.purposes).replace(". ", "; "))
    said += re.findall(r"`(\w+)` [^ ]+ points (\(at [^)]+)", group.verdict.advice)
    assert len(said) > 3
    for name, text in said:
        assert numbers(text) <= shown[name], text


def test_the_best_of_several_is_named(suite: Any) -> None:
    add_budgets(suite)
    add_method(suite, "quick", near(88.7), executed=0.9)
    add_method(suite, "best", near(89.3), executed=0.9)
    add_method(suite, "open", (88.2, 88.6, 88.3, 88.4, 88.4), executed=0.9)
    write_time_passes(suite, "quick", (0.86, 0.87, 0.86))
    write_time_passes(suite, "best", (0.896, 0.9, 0.902))
    write_time_passes(suite, "open", (0.9, 0.91, 0.9))
    group = group_of(suite)
    most, fastest, _ = group.verdict.purposes
    assert most.startswith("Most accurate for its time: `best`, +")
    assert most.endswith("; `quick` is better, too.")
    assert fastest.startswith("Fastest within 0.5 points of dense: `quick`, 0.863")
    assert "`open` is undecided" not in most


def test_fastest_must_be_faster_than_the_shortest_dense_training_with_its_whole_interval(suite: Any) -> None:
    for epochs in (11, 14, 16, 18, 20):
        add_dense(suite, epochs, steepness=0.2)
    add_method(suite, "close", near(88.9), executed=0.9)
    write_time_passes(suite, "close", (0.784, 0.8, 0.805))
    assert cells(group_of(suite).summary, "close")[5] == "yes"
    shortest = answers_of(suite)["time"].shortest
    (judged,) = answers_of(suite)["time"].judged
    assert judged.cost.share < shortest < judged.cost.high
    assert "dense for 0.80 of dense's time; no method is shown" in group_of(suite).verdict.purposes[1]


def test_answers_from_few_seeds_are_preliminary(suite: Any) -> None:
    add_budgets(suite)
    add_method(suite, "quick", near(89.3)[:3], executed=0.85)
    group = group_of(suite)
    assert cells(group.summary, "quick")[4:6] == ["better, preliminary", "yes, preliminary"]
    assert group.verdict.purposes[0] == "All answers are preliminary: a verdict needs 5 seeds of a method."
    assert len(group.verdict.purposes) == 2
    assert f'`--methods "dense,quick" --seeds 5 {out(suite)}` can give a verdict' in group.verdict.advice
    add_method(suite, "slow", near(88.7), executed=1.0)
    assert '--methods "dense,quick"' in group_of(suite).verdict.advice
    first, most, fastest, _ = group_of(suite).verdict.purposes
    assert first == "What is said of `quick` is preliminary: a verdict needs 5 seeds of a method."
    assert most == "Most accurate for its executed FLOPs: dense; no method is shown to be better."
    assert "quick" not in fastest


def test_a_cost_that_is_too_uncertain_needs_more_passes_than_there_are(suite: Any) -> None:
    add_budgets(suite)
    add_method(suite, "vague", near(88.3), executed=0.85)
    write_time_passes(suite, "vague", (0.7, 0.86, 0.99))
    (judged,) = answers_of(suite)["time"].judged
    assert (judged.at_equal_cost, judged.need) == ("undecided", "passes")
    assert f"`python run_suite.py time {suite.folder} --passes 6`" in group_of(suite).verdict.advice


def test_few_passes_that_differ_are_named(suite: Any) -> None:
    add_budgets(suite)
    add_method(suite, "quick", near(88.7), executed=0.85)
    for ratios, named in (((0.83, 0.86, 0.9), True), ((0.86, 0.87, 0.86), False), ((0.83, 0.86, 0.9) * 2, False)):
        write_time_passes(suite, "quick", ratios)
        assert ("The few time passes of `quick` differ by more than 3 %" in group_of(suite).verdict.basis) == named


def of_seeds(suite: Any, ratios: dict[int, tuple[float, ...]], **changed: Any) -> Any:
    """Write time passes of each seed of `quick`, and return what the rule says about it."""
    names = {one.spec.seed: one.name for one in read(suite.folder).trials if one.spec.method == "quick"}
    write_time_passes(suite, "quick", tuple(one for several in ratios.values() for one in several), **changed)
    content = json.loads((suite.folder / "time.json").read_text())
    passes = content["groups"][0]["methods"]["quick"]["passes"]
    for one, seed in zip(passes, [seed for seed, several in ratios.items() for _ in several], strict=True):
        one["trial"] = names[seed]
    (suite.folder / "time.json").write_text(json.dumps(content))
    (judged,) = answers_of(suite)["time"].judged
    return judged


def test_equally_many_passes_of_each_seed_give_each_its_own_gain(suite: Any) -> None:
    add_budgets(suite)
    add_method(suite, "quick", (86.0, 87.0, 88.0, 88.5, 89.0), executed=0.85)
    each = {4: (1.0, 1.0), 2: (0.9, 0.9), 0: (0.8, 0.8), 1: (0.85, 0.85), 3: (0.95, 0.95)}
    judged = of_seeds(suite, each)
    assert judged.candidate.ratios == pytest.approx((0.8, 0.85, 0.9, 0.95, 1.0))
    assert (judged.candidate.by_seed, judged.candidate.passes) == (True, 2)
    uneven = of_seeds(suite, {**each, 4: (1.0,)})
    assert (uneven.candidate.by_seed, len(uneven.candidate.ratios)) == (False, 9)
    assert uneven.gain.error > judged.gain.error
    few = of_seeds(suite, {0: (0.8,) * 3, 1: (0.85,) * 3})
    assert not few.candidate.by_seed


OF_GUESSES = {"data": {"classes": 10, "test_images": 1000, "largest_test_class": 100}}
"""Facts about the test images, by which an accuracy of 10 % is a guess."""


def test_passes_and_accuracies_of_seeds_that_learned_nothing_do_not_count(suite: Any) -> None:
    add_budgets(suite)
    add_method(suite, "quick", near(89.5), executed=0.85)
    before = cells(group_of(suite).summary, "quick")[:2]
    suite.add("quick", 5, accuracy=10.0, time=1.0, epochs=EPOCHS, recipe={"epochs": EPOCHS})
    suite.add("dense", 3, accuracy=10.0, time=1.0, epochs=11, recipe={"epochs": 11})
    suite.write()
    suite.change(provenance=OF_GUESSES)
    ((group, ranked, _),) = judged_groups(read(suite.folder))
    rows = {row.label: row for row in ranked}
    assert [f"{100 * rows['quick'].accuracy.mean:.2f} ± {100 * rows['quick'].accuracy.half_width:.2f}"] == before[:1]
    assert rows["dense"].spread.mean == pytest.approx(0.001)
    timed = MethodTime(passes=[one_pass(0.3 if trial.spec.seed == 5 else 0.9, trial=trial.name)
                               for trial in rows["quick"].trials])  # fmt: skip
    assert time_ratios(timed, rows["quick"].trials).values == pytest.approx((0.9,) * 5)
    rows = method_rows(replace(group, times={"quick": timed}), looks(["quick"]))
    assert [row.time.share.mean for row in rows if row.timed] == pytest.approx([0.9])


@pytest.mark.parametrize(("here", "costs"), [((0,), 0), ((0, 1, 2), 3), ((0, 1, 2, 3, 4), 5)])
def test_executed_flops_count_from_three_seeds_of_this_machine_on(
    suite: Any, here: tuple[int, ...], costs: int
) -> None:
    add_budgets(suite)
    for seed, accuracy in enumerate(near(88.7)):
        flops = {f"train_flops_{kind}": (0.9 + seed / 100) * 3.6e12 for kind in ("current", "effective", "executed")}
        machine = {} if seed in here else {"hardware_id": "99999999"}
        suite.add("quick", seed, accuracy=accuracy, time=300.0, epochs=EPOCHS, recipe={"epochs": EPOCHS},
                  train_flops_dense=3.6e12, **flops, **machine)  # fmt: skip
    (judged,) = (one for one in answers_of(suite)["flops"].judged)
    assert (judged.cost is not None) == (costs > 0)
    assert judged.candidate.by_seed == (costs == 5)
    if not costs:
        assert judged.reason == "its executed FLOPs are known for 1 of at least 3 seeds"


def test_what_dense_costs_whatever_its_length_counts_in_all_costs(suite: Any) -> None:
    fixed = 0.05
    for epochs in (11, 14, 16, 18, 20):
        share = epochs / EPOCHS
        flops = {f"train_flops_{kind}": 3.6e12 * (share + fixed) for kind in ("current", "effective", "executed")}
        add_dense(suite, epochs, train_flops_dense=3.6e12 * share, **flops)
    add_method(suite, "quick", near(88.7), executed=0.9 + fixed)
    write_time_passes(suite, "quick", (0.9,) * 5, dense_reconfigure_s=fixed * 20.0, reconfigure_s=fixed * 20.0)
    for answered in answers_of(suite).values():
        shares = [one.share for one in answered.curve.budgets]
        assert shares == pytest.approx([(epochs / 20 + fixed) / (1 + fixed) for epochs in (11, 14, 16, 18, 20)])
    assert answers_of(suite)["time"].judged[0].cost.share == pytest.approx((0.9 + fixed) / (1 + fixed))
    assert answers_of(suite)["flops"].judged[0].cost.share == pytest.approx((0.9 + fixed) / (1 + fixed))
    assert cells(flops_table(group_of(suite)), "quick")[2] == "0.90"


def test_where_nothing_could_be_compared_the_page_says_so(suite: Any) -> None:
    add_budgets(suite)
    add_method(suite, "quick", near(88.7), train_flops_executed=None)
    most, cheapest, _ = group_of(suite).verdict.purposes
    assert most == "Most accurate for its executed FLOPs: no method could be compared with dense."
    assert cheapest == "Cheapest within 0.5 points of dense: no method could be compared with dense."


def test_a_gap_between_lengths_is_filled_by_a_command(suite: Any) -> None:
    for epochs in (6, 11, 14, 16, 18, 20):
        add_dense(suite, epochs)
    add_method(suite, "quick", near(88.7), executed=0.85)
    verdict = group_of(suite).verdict
    assert verdict.purposes == (
        "No verdict: two lengths of dense training differ by 0.25 of the whole, more than 0.2.",
    )
    assert f"`--methods dense --epochs 7 --seeds 5 {out(suite)}`." in verdict.advice
    assert "--controls" not in verdict.advice


def test_a_disturbed_pass_beside_enough_others_changes_nothing(suite: Any) -> None:
    add_budgets(suite)
    add_method(suite, "quick", near(88.7), executed=0.85)
    write_time_passes(suite, "quick", (0.86, 0.87, 0.86))
    before = answers_of(suite)["time"]
    file = suite.folder / "time.json"
    content = json.loads(file.read_text())
    passes = content["groups"][0]["methods"]["quick"]["passes"]
    passes.append(one_pass(0.99, load=5.0, twice=2.0, threads=2))
    file.write_text(json.dumps(content))
    group = group_of(suite)
    assert answers_of(suite)["time"].judged[0].cost == before.judged[0].cost
    assert cells(group.summary, "quick")[2].startswith("0.863 [")
    assert "disturbed" not in group.verdict.advice


def test_a_control_alone_that_was_timed_decides_nothing(suite: Any) -> None:
    add_budgets(suite)
    add_method(suite, "quick", near(88.7), executed=0.85)
    add_method(suite, "dense", near(88.7), variant="repeat=2")
    write_time_passes(suite, "dense[repeat=2]", (1.0, 1.0, 1.0))
    assert group_of(suite).summary.name.endswith("-flops")


def test_dense_without_errors_leaves_no_room_for_a_gain(suite: Any) -> None:
    for epochs in (11, 14, 16, 18, 20):
        for seed, more in enumerate((0.0, 0.1, 0.05)):
            flops = {f"train_flops_{kind}": 1.8e11 * epochs for kind in ("dense", "current", "effective", "executed")}
            accuracy = 99.8 - lost(epochs / 20) / 50 + (more if epochs % 2 else -more)
            suite.add("dense", seed, accuracy=accuracy, time=9.0, epochs=epochs, recipe={"epochs": epochs}, **flops)
    add_method(suite, "quick", near(99.8), executed=0.85)
    group = group_of(suite)
    reached = cells(group.summary, "dense")[0]
    assert group.verdict.warnings == (f"Dense reaches {reached} %, so that no method can be 0.5 points better here.",)


def test_a_page_at_a_ceiling_says_so_without_a_curve_of_dense_too(suite: Any) -> None:
    for method, accuracy in (("dense", 99.8), ("quick", 99.04)):
        suite.add(method, 0, accuracy=accuracy, time=9.0)
    said = "The lowest accuracy is 99.04 %: this task is too easy to tell methods apart."
    assert group_of(suite).verdict.warnings[-1] == said
    suite.add("other", 0, accuracy=98.9, time=9.0)
    assert said not in group_of(suite).verdict.warnings


def test_one_image_of_exactly_the_margin_is_not_too_coarse() -> None:
    assert not Setting(20, (0.005,), 200).is_coarse
    assert Setting(20, (0.005,), 199).is_coarse


def test_answers_that_a_command_calls_exploratory_are_called_so_before_anything_else(suite: Any) -> None:
    add_budgets(suite)
    add_method(suite, "quick", near(88.7), executed=0.85)
    folder = suite.write()
    reasons = ("", "settings were chosen late", "settings were chosen late", "see `notes.md`.")
    commands = [{"command_line": "run_suite.py", "spec": {"exploratory": reason}} for reason in reasons]
    (folder / "suite.json").write_text(json.dumps({"commands": commands}))
    (group,) = build(read(folder)).groups
    said = ["All answers are exploratory: settings were chosen late.", "All answers are exploratory: see `notes.md`."]
    assert list(group.verdict.warnings)[:2] == said
    smoke = smoke_verdict(Setting(1, (0.005,), exploratory=("a first look",)))
    assert smoke.warnings[0] == "All answers are exploratory: a first look."


def test_one_or_two_passes_give_no_verdict_but_a_command(suite: Any) -> None:
    add_budgets(suite)
    add_method(suite, "quick", near(88.7), executed=0.85)
    write_time_passes(suite, "quick", (0.86, 0.87))
    group = group_of(suite)
    assert cells(group.summary, "quick")[2:6] == ["0.865", "–", "too few time passes", "too few time passes"]
    assert "2 of at least 3 time passes" in note(group, "quick")
    assert f"about `quick`: `python run_suite.py time {suite.folder} --passes 5`" in group.verdict.advice
    add_method(suite, "timeless", near(88.7), executed=0.85)
    add_method(suite, "few", near(88.7)[:2], executed=0.85)
    write_time_passes(suite, "quick", (0.86, 0.87, 0.86))
    group = group_of(suite)
    assert [cells(group.summary, name)[4] for name in ("timeless", "few")] == ["no time pass", "too few seeds"]
    assert "can give a verdict about `timeless`: `" in group.verdict.advice
    assert '--methods "dense,few"' in group.verdict.advice


def test_disturbed_passes_do_not_count_and_are_not_advised(suite: Any) -> None:
    """As with `time --busy`; half of the cores are the limit."""
    add_budgets(suite)
    add_method(suite, "quick", near(88.7), executed=0.85)
    write_time_passes(suite, "quick", (0.86, 0.87, 0.86), load=0.9)
    assert cells(group_of(suite).summary, "quick")[4] == "better"
    write_time_passes(suite, "quick", (0.86, 0.87, 0.86), load=1.0)
    group = group_of(suite)
    assert group.summary.name.endswith("-flops")
    assert cells(group.summary, "quick")[4] == "better"
    assert f"For a verdict about time, run `python run_suite.py time {suite.folder}`." in group.verdict.advice
    assert any("sorted by accuracy alone, because times are disturbed" in table.caption for table in group.tables)
    assert any(
        text.startswith("Some time passes were disturbed: other programs used up to 1.0") for text in group.remarks
    )
    times = next(table for table in group.tables if table.name.endswith("-results"))
    ratio = next(row[5] for row in times.rows if row[0].text == "quick")
    assert (ratio.text, ratio.note) == ("–", "Other programs disturbed all of its time passes.")


@pytest.mark.parametrize(("epochs", "command"), [(20, "--controls"), (4, "")])
def test_too_few_lengths_of_dense_ask_for_controls_where_they_can_give_them(
    suite: Any, epochs: int, command: str
) -> None:
    for method in ("dense", "quick"):
        for seed in range(5):
            suite.add(method, seed, accuracy=DENSE[seed % 3], time=300.0, epochs=epochs, recipe={"epochs": epochs})
    verdict = group_of(suite).verdict
    assert verdict.purposes == ("No verdict: dense was trained for 1 length, and at least 4 are needed.",)
    assert verdict.certainty == ""
    if command:
        assert f'`--methods "dense,quick" {command} {out(suite)}` can give' in verdict.advice
    else:
        assert "4 epochs allow no 4 lengths of dense training: train for 5 or more (`--epochs 5`)." in verdict.advice


def test_too_few_seeds_ask_for_seeds_and_failed_ones_for_more(suite: Any) -> None:
    add_budgets(suite)
    add_method(suite, "quick", (88.0, 88.1), executed=0.9)
    assert f'" --seeds 5 {out(suite)}` can give a verdict about' in group_of(suite).verdict.advice
    suite.add("quick", 2, accuracy=None, time=None, status="oom", epochs=EPOCHS, recipe={"epochs": EPOCHS})
    group = group_of(suite)
    assert f'" --seeds 6 {out(suite)}` can give a verdict about' in group.verdict.advice


def test_diverged_seeds_are_counted_and_named_first(suite: Any) -> None:
    add_budgets(suite)
    add_method(suite, "wild", near(89.5), executed=0.9)
    for seed in (5, 6, 7, 8):
        suite.add("wild", seed, accuracy=None, time=None, status="diverged", epochs=EPOCHS, recipe={"epochs": EPOCHS})
    group = group_of(suite)
    assert group.verdict.warnings == ("`wild`: 4 of 9 seeds diverged or learned nothing.",)
    assert cells(flops_table(group), "wild")[4:6] == ["unstable", "undecided"]
    assert "`wild`" in group.verdict.purposes[0]
    assert "dense; no method is shown to be better" in group.verdict.purposes[0]


def test_a_seed_at_the_accuracy_of_a_guess_has_diverged(suite: Any) -> None:
    add_budgets(suite)
    add_method(suite, "wild", near(89.5), executed=0.9)
    suite.add("wild", 5, accuracy=11.9, time=300.0, epochs=EPOCHS, recipe={"epochs": EPOCHS})
    suite.change("wild-*", provenance=OF_GUESSES)
    assert group_of(suite).verdict.warnings == ("`wild`: 1 of 6 seeds diverged or learned nothing.",)


def test_a_method_that_pruned_nothing_is_named_first(suite: Any) -> None:
    add_budgets(suite)
    whole = {"params": 400_000, "params_dense": 400_000, "inference_flops_effective": 8e7, "nonzero_params": 400_000}
    add_method(suite, "idle", near(88.7), executed=1.0, **whole)
    add_method(suite, "busy", near(88.7), executed=0.9, **whole)
    assert group_of(suite).verdict.warnings == ("`idle` pruned nothing: its network and FLOPs are those of dense.",)
    add_method(suite, "still", near(88.7), executed=1.0, **whole)
    (warning,) = group_of(suite).verdict.warnings
    assert warning == "`idle` and `still` pruned nothing: their networks and FLOPs are those of dense."


def test_too_few_test_images_are_said_and_seeds_are_not_advised(suite: Any) -> None:
    add_budgets(suite)
    add_method(suite, "unclear", (88.0, 88.6, 88.2), executed=0.9)
    add_method(suite, "vague", (88.1, 88.5, 88.25), executed=0.9)
    add_method(suite, "few", (88.0,), executed=0.9)
    needed = {one.candidate.label: one.seeds_needed for one in answers_of(suite)["flops"].judged}
    assert needed.pop("few") is None
    assert needed["unclear"] > needed["vague"] > 5
    group = group_of(suite)
    assert f'with `--methods "dense,few" --seeds 5 {out(suite)}` can' in group.verdict.advice
    for name, seeds in needed.items():
        assert f"`{name}` needs {seeds} seeds" in group.verdict.advice
    suite.change(provenance={"data": {"classes": 3, "test_images": 45, "largest_test_class": 15}})
    group = group_of(suite)
    verdict = group.verdict
    assert verdict.warnings == ("45 test images cannot show a difference of 0.5 points: one image is 2.2 points.",)
    assert "seeds" not in verdict.advice


def test_controls_are_no_methods(suite: Any) -> None:
    add_budgets(suite)
    add_method(suite, "quick", near(88.7), executed=0.85)
    add_method(suite, "twin", near(88.7), executed=0.85, spec={"control": True})
    add_method(suite, "dense", near(88.7), executed=0.85, variant="repeat=2", spec={"control": True})
    report = build(read(suite.write()))
    (group,) = report.groups
    assert "for its 1 method together" in group.verdict.certainty
    assert [row[0].text for row in group.summary.rows] == [
        "dense", "quick", "· dense for this cost", "dense[repeat=2]", "twin",
    ]  # fmt: skip
    assert cells(group.summary, "twin")[3:6] == ["–", "–", "–"]
    assert "10 of them are controls of methods" in report.summary


def test_what_costs_more_than_dense_has_no_dense_as_long_and_names_the_longer_training(suite: Any) -> None:
    add_budgets(suite)
    add_method(suite, "slow", near(89.5), executed=0.9)
    add_method(suite, "worse", near(85.0), executed=0.9)
    add_method(suite, "same", near(89.5))
    for name in ("slow", "worse", "same"):
        write_time_passes(suite, name, (1.1, 1.11, 1.1))
    group = group_of(suite)
    assert cells(group.summary, "slow")[3:6] == ["–", "no dense as long", "no"]
    assert cells(group.summary, "worse")[4:6] == ["worse", "no"]
    assert "`slow` would have to be compared with dense for 23 epochs" in group.verdict.advice
    assert "`same`" not in group.verdict.advice  # it pruned nothing


def test_a_cost_below_the_shortest_dense_training_has_a_command(suite: Any) -> None:
    add_budgets(suite)
    add_method(suite, "tiny", near(80.0), executed=0.33)
    group = group_of(suite)
    assert f"`--methods dense --epochs 6 --seeds 5 {out(suite)}`, and for 7 epochs." in group.verdict.advice
    assert cells(group.summary, "tiny")[4] == "no dense as short"
    assert note(group, "tiny") == "It costs less than the shortest dense training."
    assert "can give a verdict about `tiny`: the same" in group.verdict.advice


def test_all_groups_of_a_page_are_corrected_together(suite: Any) -> None:
    for model in ("resnet9[width=0.25]", "resnet9[width=0.5]"):
        for epochs in (11, 14, 16, 18, 20):
            add_dense(suite, epochs, model=model)
        add_method(suite, "quick", near(88.7), executed=0.85, model=model)
    first, second = groups_of(suite)
    assert "for its 2 methods together" in first.verdict.certainty
    assert first.verdict.certainty == second.verdict.certainty


def test_what_faster_kernels_would_change_is_at_effective_flops(suite: Any) -> None:
    add_budgets(suite)
    add_method(suite, "skips", near(88.2), executed=1.0, train_flops_effective=0.8 * 3.6e12)
    expected = 88.2 - (88.7 - lost(0.8))
    assert f"`skips` +{expected:.1f} points (at 0.80 of dense's cost)" in group_of(suite).verdict.advice


def test_the_smallest_network_names_its_accuracy(suite: Any) -> None:
    add_budgets(suite)
    add_method(suite, "shrinks", near(87.0), executed=0.9, inference_flops=4e7, inference_flops_effective=4e7)
    last = group_of(suite).verdict.purposes[-1]
    assert last.startswith("Fewest inference FLOPs: `shrinks`, 0.50 of dense's, −1.70 ± 0.")


def test_inference_flops_are_effective_where_kernels_skip(suite: Any) -> None:
    add_budgets(suite)
    add_method(suite, "masks", near(87.0), executed=0.9, inference_flops_effective=2e7)
    assert cells(group_of(suite).summary, "masks")[-1] == "1.00"
    for path in suite.folder.glob("trials/masks-*/epochs.jsonl"):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        lines[-1]["backends"] = {"stem": "torch", "head": "skipping"}
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert cells(group_of(suite).summary, "masks")[-1] == "0.25"


def test_seeds_that_agree_by_chance_get_the_spread_of_dense(suite: Any) -> None:
    add_budgets(suite)
    add_method(suite, "agree", (87.0, 87.001, 86.999), executed=0.9)
    add_method(suite, "differ", (87.0, 87.4, 86.6), executed=0.9)
    group = group_of(suite)
    widths = {name: cells(group.summary, name)[:2] for name in ("agree", "differ")}
    assert widths == {"agree": ["87.0 ± 0.2", "0.00"], "differ": ["87.0 ± 1.0", "0.40"]}
    notes = {row[0].text: row[2].note for row in group.summary.rows}
    assert "the larger spread of dense" in notes["agree"]
    assert not notes["differ"]


def test_the_table_of_shorter_dense_trainings(suite: Any) -> None:
    add_budgets(suite)
    add_method(suite, "quick", near(88.7), executed=0.9)
    budgets = group_of(suite).tables[-1]
    assert [[cell.text for cell in row[:3]] for row in budgets.rows] == [
        ["11", "0.55", "3"], ["14", "0.70", "3"], ["16", "0.80", "3"], ["18", "0.90", "3"], ["20", "1.00", "3"],
    ]  # fmt: skip
    assert budgets.rows[-1][4].text == "0"
    # Dense with another learning rate is not the same training for fewer epochs.
    for seed in range(3):
        recipe = {"epochs": 4, "learning_rate": 0.1}
        suite.add("dense", seed, accuracy=60.0, time=1.0, epochs=4, recipe=recipe)
    (other,) = (group for group in groups_of(suite) if group.verdict is None)
    assert "4 epochs" in other.subtitle


def test_growing_images_make_early_epochs_cheaper(suite: Any) -> None:
    """The cost of a shorter training follows from the FLOPs, or the measured times, of its steps."""
    growing = {"train_sizes": [16, 32], "size_milestones": [0.6]}
    for epochs, flops in ((20, 3.6e12), (16, 2.7e12)):
        for seed in range(3):
            suite.add("dense", seed, accuracy=88.0, time=1.0, epochs=epochs, recipe={"epochs": epochs} | growing,
                      train_flops_dense=flops)  # fmt: skip
    for seed in range(3):
        suite.add("quick", seed, accuracy=88.0, time=1.0, epochs=20, recipe={"epochs": 20} | growing)
    stages = [stage(0.9, 1, 12, 0.5, 16), stage(0.9, 13, 8, 1.5, 32)]
    sizes = [{"image_size": 16, "steps": 12}, {"image_size": 32, "steps": 8}]
    write_time_passes(suite, "quick", (0.9, 0.9, 0.9), stages=stages, dense=sizes)
    ((group, rows, _),) = judged_groups(read(suite.folder))
    assert [one.share for one in evidence(group, rows, "flops").budgets] == [0.75, 1.0]
    shares = [one.share for one in evidence(group, rows, "time").budgets]
    assert shares == pytest.approx([(10 * 0.5 + 6 * 1.5) / (12 * 0.5 + 8 * 1.5), 1.0])


def test_a_seed_that_was_run_twice_counts_once_with_its_mean(suite: Any) -> None:
    trials = [recorded({"test_accuracy": value}, seed=seed) for seed, value in ((0, 0.5), (1, 0.6), (0, 0.7))]
    assert by_seed(trials, "test_accuracy") == pytest.approx({0: 0.6, 1: 0.6})
    add_budgets(suite)
    recipe = {"epochs": 11}
    suite.add("dense", 0, accuracy=70.0, time=1.0, epochs=11, recipe=recipe, trial_id="again")
    suite.add("dense", 1, accuracy=10.0, time=1.0, epochs=11, recipe=recipe, trial_id="bad", status="diverged")
    add_method(suite, "quick", near(88.7), executed=0.9)
    rows = group_of(suite).tables[-1].rows
    assert [row[2].text for row in rows] == ["3", "3", "3", "3", "3"]


def test_the_last_declared_margin_applies_and_a_change_is_named(suite: Any) -> None:
    add_budgets(suite)
    add_method(suite, "quick", near(88.7), executed=1.0)
    folder = suite.write()

    def group_with(*declared: float) -> Any:
        commands = [{"command_line": "run_suite.py", "spec": {"margin": margin}} for margin in declared]
        (folder / "suite.json").write_text(json.dumps({"commands": commands}))
        (group,) = build(read(folder)).groups
        return group

    assert cells(group_with(0.005).summary, "quick")[4] == "same within 0.5"
    assert cells(group_with(0.01).summary, "quick")[4] == "same within 1"
    assert cells(group_with(0.0005).summary, "quick")[4] == "undecided"
    assert "changed later" not in group_with(0.005, 0.005).verdict.advice
    assert group_with(0.005, 0.01).verdict.advice.endswith(
        "The margin was 0.5 points in the first command and was changed later."
    )


def test_the_margin_of_commands_that_declared_none_is_the_default() -> None:
    for suite in ({}, {"commands": [{"spec": {}}]}):
        assert margins(suite) == (0.005,)


def test_the_folder_of_a_command_is_quoted_without_the_home_folder(
    suites: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    suite = suites("my runs")
    add_method(suite, "quick", near(88.0))
    assert " --controls --out ~/'my runs'` can give" in group_of(suite).verdict.advice


def test_the_commands_of_a_report_name_the_place_that_its_folder_will_have(suite: Any) -> None:
    add_method(suite, "quick", near(88.0))
    write_report(suite.write(), place=Path("/somewhere/else"))
    text = (suite.folder / "report.md").read_text()
    assert "--out /somewhere/else" in text
    assert str(suite.folder) not in text


def test_dense_alone_has_no_verdict_and_is_not_folded(suite: Any) -> None:
    add_dense(suite)
    assert group_of(suite).verdict is None
    add_dense(suite, 16)
    assert len(groups_of(suite)) == 2


def test_a_smoke_test_says_that_it_has_no_verdict_and_how_to_get_one(suite: Any) -> None:
    suite.add_all(("dense", "sdgp"), preset="smoke")
    found = group_of(suite).verdict
    assert found.purposes == ("A smoke test shows that everything runs; its numbers do not show which method to use.",)
    assert "--preset quick --seeds 5 --controls" in found.advice


def test_a_damaged_time_pass_is_named_and_not_used(suite: Any) -> None:
    add_budgets(suite)
    add_method(suite, "quick", near(88.7), executed=0.9)
    (suite.write() / "time.json").write_text("{")
    report = build(read(suite.folder))
    assert report.groups[0].summary.name.endswith("-flops")
    assert report.problems is not None
    assert any("time.json is damaged" in cell.text for row in report.problems.table.rows for cell in row)


def test_methods_are_sorted_by_the_times_of_the_time_pass(suite: Any) -> None:
    add_dense(suite)
    for name, accuracy in (("first", 88.5), ("second", 88.4), ("third", 88.3)):
        add_method(suite, name, near(accuracy))
    for name, ratio in (("first", 0.8), ("second", 0.6), ("third", 0.7)):
        write_time_passes(suite, name, (ratio,))
    assert [row[0].text for row in group_of(suite).summary.rows] == ["dense", "first", "second", "third"]


def test_holm_correction() -> None:
    # The example of R's p.adjust(c(0.01, 0.04, 0.03, 0.005), "holm").
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.7]) == [1.0, 1.0]
    assert holm([]) == []


def test_a_saving_has_its_ends_in_order() -> None:
    ratio = ratio_estimate([0.7, 0.8, 0.95], "")
    assert isinstance(ratio, Estimate)
    saving = ratio.complement()
    assert saving.low < saving.mean < saving.high
    assert (saving.low, saving.high) == (1 - ratio.high, 1 - ratio.low)
    assert math.log(ratio.mean) == pytest.approx(sum(map(math.log, (0.7, 0.8, 0.95))) / 3)


def test_a_baseline_of_zero_has_no_ratio() -> None:
    assert paired({0: 1.0}, {0: 0.0}, "ratio") == Missing("the value of dense is 0")
    assert paired({0: 1.0, 1: 3.0}, {0: 0.0, 1: 2.0}, "ratio") == ratio_estimate([1.5], "")
    assert paired({0: 0.0, 1: 3.0}, {0: 1.0, 1: 2.0}, "ratio") == Missing(
        "a value is 0, so that ratios have no geometric mean"
    )
