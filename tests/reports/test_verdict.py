"""Rules of the verdict, its statistics, and the dense trainings for fewer epochs that it compares with."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats

from benchmarks.evidence.simulate_claims import makes_a_false_claim, page
from reports import write_report
from reports.content.build import build
from reports.data.budget import BudgetCurve
from reports.data.estimates import Estimate, Missing, estimate, paired, ratio_estimate
from reports.data.groups import group_trials
from reports.data.method_rows import by_seed
from reports.data.records import Trial, read
from reports.data.significance import holm, p_value, seeds_needed
from reports.data.verdict import margins
from reports.render import html, markdown

pytestmark = pytest.mark.usefixtures("without_figures")

DENSE = (71.2, 71.9, 70.8)


def group_of(suite: Any) -> Any:
    (group,) = build(read(suite.write())).groups
    return group


def out(suite: Any) -> str:
    """Return the option that names the folder of the report."""
    return f"--out {suite.folder}"


def add_dense(suite: Any, epochs: int, loss: float, seeds: int = 3) -> None:
    """Add dense trainings for some epochs, which lose `loss` points."""
    for seed in range(seeds):
        suite.add(
            "dense", seed, accuracy=DENSE[seed] - loss, time=73.0 * epochs, epochs=epochs, recipe={"epochs": epochs}
        )


def add_method(suite: Any, name: str, gains: tuple[float, ...], time: float = 0.8, executed: float = 1.0) -> None:
    """Add a method that gains so many points over dense training for all epochs."""
    flops = {"train_flops_executed": executed * 1.8e12, "train_flops_dense": 1.8e12}
    for seed, gain in enumerate(gains):
        suite.add(name, seed, accuracy=DENSE[seed] + gain, time=365.0 * time, **flops)


@pytest.mark.parametrize(("side", "alternative"), [("above", "greater"), ("below", "less"), ("either", "two-sided")])
def test_p_values_are_those_of_scipy(side: Any, alternative: str) -> None:
    values = np.random.default_rng(0).normal(0.3, 1.0, 5)
    expected = scipy.stats.ttest_1samp(values, 0.1, alternative=alternative).pvalue
    assert p_value(estimate(list(values), ""), 0.1, side) == pytest.approx(expected)


def test_p_values_of_ratios_are_those_of_their_logarithms() -> None:
    ratios = [0.7, 0.8, 0.95, 0.6]
    expected = scipy.stats.ttest_1samp(np.log(ratios), math.log(0.9)).pvalue
    assert p_value(ratio_estimate(ratios, ""), 0.9, "either") == pytest.approx(expected)


def test_a_saving_has_its_ends_in_order() -> None:
    ratio = ratio_estimate([0.7, 0.8, 0.95], "")
    assert isinstance(ratio, Estimate)
    saving = ratio.complement()
    assert saving.low < saving.mean < saving.high
    assert (saving.low, saving.high) == (1 - ratio.high, 1 - ratio.low)


def test_a_baseline_of_zero_has_no_ratio() -> None:
    assert paired({0: 1.0}, {0: 0.0}, "ratio") == Missing("the value of dense is 0")
    assert paired({0: 1.0, 1: 3.0}, {0: 0.0, 1: 2.0}, "ratio") == ratio_estimate([1.5], "")
    assert paired({0: 0.0, 1: 3.0}, {0: 1.0, 1: 2.0}, "ratio") == Missing(
        "a value is 0, so that ratios have no geometric mean"
    )


def test_nothing_is_shown_without_a_spread() -> None:
    assert p_value(Missing("not measured"), 0.0, "above") == 1.0
    assert p_value(estimate([1.0], ""), 0.0, "above") == 1.0
    assert p_value(estimate([1.0, 1.0, 1.0], ""), 0.0, "above") == 1.0


def test_holm_correction() -> None:
    # The example of R's p.adjust(c(0.01, 0.04, 0.03, 0.005), "holm").
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.7]) == [1.0, 1.0]
    assert holm([]) == []


def test_the_number_of_seeds_that_would_decide() -> None:
    known = estimate([0.0, 1.0, 2.0], "")
    assert isinstance(known, Estimate)
    count = seeds_needed(known, 0.0, 0.025)
    assert count is not None
    quantile = {n: scipy.stats.t.ppf(0.975, n - 1) for n in (count - 1, count)}
    assert math.sqrt(count - 1) < quantile[count - 1]
    assert math.sqrt(count) >= quantile[count]
    assert seeds_needed(known, 0.99, 0.025) is None
    # It is asked only where the present seeds do not decide, so that the answer is always a larger number.
    assert seeds_needed(known, -100.0, 0.025) == 4


def test_accuracies_between_two_trainings_are_interpolated() -> None:
    curve = BudgetCurve({0: ((0.4, 0.6), (0.8, 0.8), (1.0, 0.85))})
    assert curve.at(0, 0.5) == pytest.approx(0.65)
    assert curve.at(0, 0.4) == 0.6
    assert curve.at(0, 0.9) == pytest.approx(0.825)
    assert curve.at(0, 1.3) == 0.85
    assert curve.at(0, 0.39) is None
    assert curve.at(1, 0.5) is None
    # At a training that was run, the next longer one decides how accuracy changes; the whole training is the end.
    assert [curve.slope(0, share) for share in (0.4, 0.8, 1.0, 1.3)] == pytest.approx([0.5, 0.25, 0.0, 0.0])


def test_a_seed_that_was_run_twice_counts_once_with_its_mean() -> None:
    trials = [Trial({}, {"seed": seed, "test_accuracy": value}) for seed, value in ((0, 0.5), (1, 0.6), (0, 0.7))]
    assert by_seed(trials, "test_accuracy") == pytest.approx({0: 0.6, 1: 0.6})


def test_a_method_pays_that_beats_dense_for_the_same_time(suite: Any) -> None:
    """It loses 0.3 points after equal epochs, but dense loses 2 points when it trains for as short a time."""
    add_dense(suite, 5, 0.0)
    add_dense(suite, 4, 2.0)
    add_method(suite, "quick", (-0.3, -0.28, -0.32))
    verdict = group_of(suite).verdict
    assert verdict.sentence == (
        "On this CPU, for 5 epochs and 3 seeds, at the same measured training time, quick reaches a higher accuracy "
        "than dense. At the same executed FLOPs, use dense: no method gains 0.5 points over it."
    )
    (line,) = verdict.lines
    assert "pays at the same measured training time (+1.70 ± 0.05 points, at 0.80" in line.text
    assert "does not pay at the same executed FLOPs (−0.30 ± 0.05 points, at 1.00 × dense)" in line.text
    assert verdict.advice == ""


def test_a_method_does_not_pay_if_dense_for_the_same_time_is_as_good(suite: Any) -> None:
    """Interpolated halfway between 4 and 5 epochs, dense loses 0.5 points; the method loses 0.6."""
    add_dense(suite, 5, 0.0)
    add_dense(suite, 4, 1.0)
    add_method(suite, "quick", (-0.6, -0.58, -0.62), time=0.9, executed=0.9)
    verdict = group_of(suite).verdict
    assert verdict.sentence.count("use dense: no method gains 0.5 points over it") == 2
    assert "does not pay at the same executed FLOPs (−0.10 ± 0.05 points, at 0.90 × dense)" in verdict.lines[0].text


def test_a_gain_that_is_smaller_than_the_margin_pays(suite: Any) -> None:
    add_dense(suite, 5, 0.0)
    add_method(suite, "slightly", (0.1, 0.11, 0.09), time=1.0)
    assert group_of(suite).verdict.lines[0].text.startswith("pays at the same measured training time (+0.10 ± 0.02")


def test_seeds_without_dense_at_the_cost_do_not_count(suite: Any) -> None:
    add_dense(suite, 5, 0.0)
    add_dense(suite, 4, 2.0, seeds=2)
    add_method(suite, "quick", (-0.3, -0.28, -0.32))
    text = group_of(suite).verdict.lines[0].text
    assert text.startswith("has no verdict at the same measured training time (2 of at least 3 seeds)")


def test_flops_are_relative_to_the_dense_network_of_the_same_trial(suite: Any) -> None:
    """Dense trials without counts do not hide how much the cost varies over seeds."""
    for epochs, loss in ((5, 0.0), (4, 2.0)):
        for seed, accuracy in enumerate(DENSE):
            known = {"epochs": epochs, "recipe": {"epochs": epochs}, "train_flops_dense": None}
            suite.add("dense", seed, accuracy=accuracy - loss, time=73.0 * epochs, **known)
    for seed, (gain, share) in enumerate([(-1.99, 0.8), (-1.0, 0.9), (-0.01, 1.0)]):
        flops = {"train_flops_executed": share * 1.8e12, "train_flops_dense": 1.8e12}
        suite.add("varied", seed, accuracy=DENSE[seed] + gain, time=365.0, **flops)
    assert "at the same executed FLOPs (0.0" in group_of(suite).verdict.lines[0].text


def test_a_large_spread_is_undecided_and_asks_for_seeds(suite: Any) -> None:
    add_dense(suite, 5, 0.0)
    add_method(suite, "quick", (1.5, -0.5, 0.8), time=1.0)
    verdict = group_of(suite).verdict
    assert "no method is shown to gain over dense: quick is undecided" in verdict.sentence
    assert verdict.advice == (
        "More seeds, as many as the table says and chosen in advance, may decide the undecided methods."
    )
    gains = estimate([0.015, -0.005, 0.008], "")
    assert isinstance(gains, Estimate)
    # Both costs are the same here, so that two claims are corrected together.
    more = [count for bound in (0.0, 0.005) if (count := seeds_needed(gains, bound, 0.025 / 2)) is not None]
    text = (
        f"is undecided at the same measured training time (+1 ± 3 points, at 1.00 × dense; about {min(more) - 3} more"
    )
    assert verdict.lines[0].text.startswith(text)


def test_without_the_budget_or_seeds_there_is_no_verdict_but_a_command(suite: Any) -> None:
    add_dense(suite, 5, 0.0)
    add_method(suite, "quick", (-0.3, -0.28, -0.32), time=0.8)
    verdict = group_of(suite).verdict
    assert "at the same measured training time, there is no verdict (dense was not trained for 0.80" in verdict.sentence
    assert verdict.advice == f"The same command with `--controls {out(suite)}` can give the missing verdicts."


def test_disturbed_times_have_no_verdict_but_flops_have(suite: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    add_dense(suite, 5, 0.0)
    add_method(suite, "quick", (-2.0, -2.1, -2.2), time=0.5, executed=1.1)
    monkeypatch.setattr("reports.data.method_rows.is_disturbed", lambda trial: True)
    verdict = group_of(suite).verdict
    (line,) = verdict.lines
    assert line.text.startswith("has no verdict at the same measured training time (the training times are disturbed)")
    assert "does not pay at the same executed FLOPs" in line.text
    assert "minus 10 % were skipped; training took 0.50 × the time of dense (disturbed);" in line.text
    assert verdict.advice == (
        f"The time pass, `python run_suite.py time {suite.folder}`, can give the missing verdicts. "
        "Times are compared only if they were measured on a quiet machine."
    )


@pytest.mark.parametrize(("gain", "others", "outcome"), [
    (-0.1, 0, "does not pay"), (-0.1, 9, "undecided"), (0.6, 0, "pays"), (0.6, 9, "undecided"),
])  # fmt: skip
def test_both_kinds_of_claims_are_corrected_for_their_number(
    suite: Any, gain: float, others: int, outcome: str
) -> None:
    add_dense(suite, 5, 0.0)
    for name in ["quick", *(f"other{number}" for number in range(others))]:
        add_method(suite, name, (gain - 0.1, gain, gain + 0.1), time=1.0)
    text = group_of(suite).verdict.lines[0].text
    assert f"{outcome} at the same measured training time" in text


def test_a_seed_that_costs_more_is_compared_with_longer_dense_training(suite: Any) -> None:
    add_dense(suite, 5, 0.0)
    add_dense(suite, 4, 2.0)
    for seed, (gain, share) in enumerate([(-1.99, 0.8), (-1.0, 0.9), (-0.01, 1.0)]):
        suite.add("varied", seed, accuracy=DENSE[seed] + gain, time=365.0 * share)
    assert "at the same measured training time (0.00 ± 0.02 points" in group_of(suite).verdict.lines[0].text


def test_dense_alone_is_not_folded(suite: Any) -> None:
    add_dense(suite, 5, 0.0)
    add_dense(suite, 4, 2.0)
    assert len(build(read(suite.write())).groups) == 2


def test_controls_are_no_methods_and_other_machines_no_budget(suite: Any) -> None:
    add_dense(suite, 5, 0.0)
    for seed in range(3):
        suite.add("dense", seed, accuracy=70.0, time=365.0, variant="repeat=2")
    assert group_of(suite).verdict is None
    add_method(suite, "quick", (-0.3, -0.28, -0.32))
    for seed in range(3):
        suite.add("dense", seed, accuracy=60.0, time=1.0, epochs=4, recipe={"epochs": 4}, hardware_id="99999999")
    first, second = build(read(suite.write())).groups
    assert [line.name for line in first.verdict.lines] == ["quick"]
    assert second.verdict is None


def test_a_diverged_or_repeated_dense_training_for_fewer_epochs(suite: Any) -> None:
    add_dense(suite, 5, 0.0)
    add_dense(suite, 4, 1.0)
    suite.add("dense", 0, accuracy=68.2, time=1.0, epochs=4, recipe={"epochs": 4}, trial_id="again")
    suite.add("dense", 1, accuracy=10.0, time=1.0, epochs=4, recipe={"epochs": 4}, trial_id="bad", status="diverged")
    suite.add("dense", 7, accuracy=10.0, time=1.0, epochs=4, recipe={"epochs": 4})  # without a whole training
    add_method(suite, "quick", (0.0, 0.1, 0.2))
    rows = group_of(suite).tables[-1].rows
    assert [row[2].text for row in rows] == ["3", "3"]
    assert rows[0][3].value == pytest.approx((69.2 + 70.9 + 69.8) / 300)  # seed 0: mean of 70.2 and 68.2


def test_two_seeds_give_no_verdict(suite: Any) -> None:
    add_dense(suite, 5, 0.0, seeds=2)
    add_method(suite, "quick", (3.0, 3.1), time=1.0)
    verdict = group_of(suite).verdict
    assert "there is no verdict (2 of at least 3 seeds)" in verdict.sentence
    assert verdict.advice == f"The same command with `--seeds 3 {out(suite)}` can give a verdict."


@pytest.mark.parametrize(("share", "shown"), [(0.9952, "0.995"), (0.99996, "0.99996"), (0.8, "0.80")])
def test_a_cost_below_that_of_dense_is_not_rounded_to_it(suite: Any, share: float, shown: str) -> None:
    """Without an interval, as for counted FLOPs, a small difference is one, also if the times cannot be told apart."""
    add_dense(suite, 5, 0.0)
    add_method(suite, "quick", (-0.3, -0.28, -0.32), time=1.0, executed=share)
    suite.write()
    write_time_pass(suite, "quick", 1.0)
    text = group_of(suite).verdict.lines[0].text
    assert f"has no verdict at the same executed FLOPs (dense was not trained for {shown} × its cost)" in text


@pytest.mark.parametrize(("shares", "same"), [
    ((0.985, 0.995, 1.01), True), ((0.994, 0.995, 0.996), False), ((0.9, 0.95, 1.04), False),
])  # fmt: skip
def test_a_time_that_cannot_be_told_from_that_of_dense_is_the_same(
    suite: Any, shares: tuple[float, ...], same: bool
) -> None:
    add_dense(suite, 5, 0.0)
    for seed, share in enumerate(shares):
        suite.add("quick", seed, accuracy=DENSE[seed] - 1 - seed / 100, time=365.0 * share)
    text = group_of(suite).verdict.lines[0].text
    assert text.startswith(f"{'does not pay' if same else 'has no verdict'} at the same measured training time")


@pytest.mark.parametrize(("ratio", "half", "twice", "same"), [
    (0.985, 0.01, (0.99, 1.01), True),
    (0.979, 0.01, (0.99, 1.01), False),  # differs by more than 2 %
    (0.980, 0.01, (0.99, 1.01), True),
    (0.985, 0.01, (0.996, 1.004), False),  # below the interval of dense against itself
    (0.995, 0.006, (1.002, 1.004), True),  # its interval reaches 1
    (0.995, 0.004, (1.002, 1.004), False),
])  # fmt: skip
def test_a_time_of_the_time_pass_that_dense_timed_against_itself_reaches_is_the_same(
    suite: Any, ratio: float, half: float, twice: tuple[float, float], same: bool
) -> None:
    add_dense(suite, 5, 0.0)
    add_method(suite, "quick", (-1.0, -1.01, -1.02), time=0.5)
    suite.write()
    write_time_pass(suite, "quick", ratio, half=half, twice=twice)
    text = group_of(suite).verdict.lines[0].text
    assert text.startswith("does not pay" if same else "has no verdict")


def test_too_few_seeds_are_a_reason_next_to_others(suite: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each method shows another reason first: no dense training at its cost, or disturbed times."""
    add_dense(suite, 5, 0.0, seeds=1)
    add_method(suite, "quick", (-0.3,), time=0.8, executed=0.8)
    verdict = group_of(suite).verdict
    assert verdict.advice == f"The same command with `--seeds 3 --controls {out(suite)}` can give a verdict."
    monkeypatch.setattr("reports.data.method_rows.is_disturbed", lambda trial: True)
    assert group_of(suite).verdict.advice.startswith(
        f"The same command with `--seeds 3 --controls {out(suite)}`, and then the time pass, "
        f"`python run_suite.py time {suite.folder}`, "
    )


def test_too_few_seeds_are_a_reason_where_dense_was_not_run(suite: Any) -> None:
    add_method(suite, "quick", (-0.3, 0.1))
    advice = group_of(suite).verdict.advice
    assert advice == f"The same command with `--seeds 3 --controls {out(suite)}` can give a verdict."


def test_the_folder_of_a_command_is_quoted_without_the_home_folder(
    suites: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    suite = suites("my runs")
    add_method(suite, "quick", (0.0, 0.1, 0.2))
    assert "with `--controls --out ~/'my runs'` can give" in group_of(suite).verdict.advice


def test_the_commands_of_a_report_name_the_place_that_its_folder_will_have(suite: Any) -> None:
    add_method(suite, "quick", (0.0, 0.1, 0.2))
    write_report(suite.write(), place=Path("/somewhere/else"))
    text = (suite.folder / "report.md").read_text()
    assert "--out /somewhere/else" in text
    assert str(suite.folder) not in text


def test_a_method_that_costs_more_than_dense_is_never_said_to_pay(suite: Any) -> None:
    """Dense training for as long might be better still; that a method is worse than a shorter one is shown anyway."""
    add_dense(suite, 5, 0.0)
    add_dense(suite, 4, 2.0)
    add_method(suite, "slow", (1.0, 1.02, 0.98), time=1.4)
    add_method(suite, "worse", (-1.0, -1.02, -0.98), time=1.4)
    add_method(suite, "equal", (1.0, 1.02, 0.98), time=1.015)
    verdict = group_of(suite).verdict
    lines = {line.name: line.text for line in verdict.lines}
    assert lines["slow"].startswith(
        "has no verdict at the same measured training time (dense was not trained for 1.40 × its cost); "
        "pays at the same executed FLOPs"
    )
    assert lines["worse"].startswith("does not pay at the same measured training time")
    assert lines["equal"].startswith("pays at the same measured training time")
    assert verdict.advice == "A method that costs more than dense cannot be shown to pay here."


def test_equal_gains_are_undecided_without_a_number_of_seeds(suite: Any) -> None:
    add_dense(suite, 5, 0.0)
    add_dense(suite, 4, 1.0)
    # Interpolated, and in binary, these gains are 0 only up to rounding.
    add_method(suite, "same", (-0.5, -0.5, -0.5), time=0.9)
    verdict = group_of(suite).verdict
    assert "all seeds have the same gain, so that it is unknown how many would decide" in verdict.lines[0].text
    assert "same is undecided" in verdict.sentence


def test_outcomes_that_differ_are_told_apart(suite: Any) -> None:
    add_dense(suite, 5, 0.0)
    add_method(suite, "unsteady", (1.5, -0.5, 0.8), time=1.0)
    add_method(suite, "shaky", (1.4, -0.5, 0.7), time=1.0)
    add_method(suite, "bad", (-2.0, -2.1, -2.2), time=1.0)
    add_method(suite, "quick", (-2.0, -2.1, -2.2), time=0.8)
    sentence = group_of(suite).verdict.sentence
    assert sentence.startswith(
        "On this CPU, for 5 epochs and 3 seeds, at the same measured training time, no method is shown to gain over "
        "dense: unsteady and shaky are undecided; quick has no verdict; bad does not gain 0.5 points. "
        "At the same executed FLOPs, "
    )


def test_methods_with_long_names_are_counted_in_the_sentence(suite: Any) -> None:
    add_dense(suite, 5, 0.0)
    for number in range(3):
        add_method(suite, f"a_method_with_a_long_name_{number}", (-2.0, -2.1, -2.2), time=1.0)
    add_method(suite, "another_method_with_a_long_name", (1.5, -0.5, 0.8), time=1.0)
    sentence = group_of(suite).verdict.sentence
    assert "another_method_with_a_long_name is undecided; 3 methods do not gain 0.5 points." in sentence


def test_many_reasons_are_left_to_the_lines(suite: Any) -> None:
    add_dense(suite, 5, 0.0)
    for share in (0.7, 0.8, 0.9):
        add_method(suite, f"takes{share}", (0.0, 0.1, 0.2), time=share, executed=share)
    verdict = group_of(suite).verdict
    assert verdict.sentence.count("there is no verdict (for several reasons, one per method below)") == 2
    assert "dense was not trained for 0.90 × its cost" in verdict.lines[-1].text


def test_seeds_without_a_shorter_training_of_dense_are_left_out(suite: Any) -> None:
    add_dense(suite, 5, 0.0)
    suite.add("dense", 3, accuracy=71.0, time=365.0, recipe={"epochs": 5})
    add_dense(suite, 4, 2.0)  # three seeds
    add_method(suite, "quick", (-0.3, -0.28, -0.32))
    suite.add("quick", 3, accuracy=70.7, time=292.0)
    line = group_of(suite).verdict.lines[0].text
    assert line.startswith("pays at the same measured training time (+1.70 ± 0.05 points, at 0.80")


def test_failed_trials_are_named_and_need_another_seed(suite: Any) -> None:
    add_dense(suite, 5, 0.0)
    add_method(suite, "fragile", (3.0, 3.1), time=1.0)
    suite.add("fragile", 2, accuracy=None, time=None, status="diverged")
    verdict = group_of(suite).verdict
    assert "1 diverged of 3 trials, which are not included" in verdict.lines[0].text
    assert verdict.advice == f"The same command with `--seeds 4 {out(suite)}` can give a verdict."


def test_less_than_controls_train_has_a_command_of_its_own(suite: Any) -> None:
    add_dense(suite, 5, 0.0)
    add_method(suite, "tiny", (0.0, 0.1, 0.2), time=0.3)
    assert group_of(suite).verdict.advice == (
        f"The same command with `--methods dense --epochs 1 {out(suite)}` can give the missing verdicts."
    )
    add_method(suite, "small", (0.0, 0.1, 0.2), time=0.7)
    assert group_of(suite).verdict.advice == (
        f"The same command with `--controls {out(suite)}` can give the missing verdicts. "
        f"So can `--methods dense --epochs 1 {out(suite)}` for the smallest cost."
    )


def test_without_dense_controls_give_a_verdict_and_without_a_finished_one_nothing_does(suite: Any) -> None:
    add_method(suite, "quick", (0.0, 0.1, 0.2))
    verdict = group_of(suite).verdict
    assert verdict.sentence.count("there is no verdict (dense was not run)") == 2
    assert verdict.advice == f"The same command with `--controls {out(suite)}` can give a verdict."
    suite.add("dense", 0, accuracy=None, time=None, status="error")
    verdict = group_of(suite).verdict
    assert verdict.sentence.count("there is no verdict (no dense trial is done)") == 2
    assert verdict.advice == ""


@pytest.mark.parametrize(("epochs", "text"), [(0, "these epochs"), (None, "these epochs"), (1, "1 epoch")])
def test_a_table_without_epochs_has_a_verdict(suite: Any, epochs: int | None, text: str) -> None:
    add_dense(suite, 5, 0.0)
    add_method(suite, "quick", (1.0, 1.1, 0.9), time=1.0)
    for row in suite.rows:
        row["epochs"] = epochs
    folder = suite.write()
    shutil.rmtree(folder / "trials")
    (group,) = build(read(folder)).groups
    assert group.verdict.sentence.startswith(
        f"On this CPU, for {text} and 3 seeds, at the same measured training time, quick reaches a higher accuracy "
        "than dense."
    )


def test_names_are_escaped_alike_on_the_page_and_in_markdown(suite: Any) -> None:
    add_dense(suite, 5, 0.0)
    add_method(suite, "a<b>*c*_d_", (1.0, 1.1, 0.9), time=1.0)
    report = build(read(suite.write()))
    page_text, markdown_text = html.render(report), markdown.render(report)
    assert "a&lt;b&gt;*c*_d_ reaches a higher accuracy" in page_text
    assert r"a&lt;b&gt;\*c\*\_d\_ reaches a higher accuracy" in markdown_text
    assert "a<b>" not in page_text


def test_no_verdict_without_a_method(suite: Any) -> None:
    suite.add_all(("dense",))
    assert group_of(suite).verdict is None


def test_a_smoke_test_says_that_it_has_no_verdict_and_how_to_get_one(suite: Any) -> None:
    suite.add_all(("dense", "sdgp"), preset="smoke")
    found = group_of(suite).verdict
    assert found is not None
    assert found.answers == (
        "A smoke test shows that everything runs; its numbers do not show which method to use.",
        "",
    )
    assert "--preset quick --seeds 3 --controls" in found.advice
    assert found.lines == ()


def test_dense_trainings_for_fewer_epochs_join_the_group_of_their_methods(suite: Any) -> None:
    add_dense(suite, 5, 0.0)
    add_dense(suite, 3, 2.5)
    add_method(suite, "quick", (0.0, 0.1, 0.2))
    group = group_of(suite)
    budgets = group.tables[-1]
    assert [[cell.text for cell in row] for row in budgets.rows] == [
        ["3", "0.60", "3", "68.8 ± 1.4", "−2.50"],
        ["5", "1.00", "3", "71.3 ± 1.4", "0"],
    ]
    # Dense with another learning rate is not the same training for fewer epochs.
    for seed in range(3):
        suite.add("dense", seed, accuracy=60.0, time=1.0, epochs=4, recipe={"epochs": 4, "learning_rate": 0.1})
    first, second = build(read(suite.write())).groups
    assert len(first.tables[-1].rows) == 2
    assert second.verdict is None


def test_the_last_declared_margin_applies_and_a_change_is_named(suite: Any) -> None:
    add_dense(suite, 5, 0.0)
    add_method(suite, "quick", (-0.1, 0.0, 0.1), time=1.0)
    folder = suite.write()

    def verdict_with(*declared: float) -> Any:
        commands = [{"spec": {"margin": margin}} for margin in declared]
        (folder / "suite.json").write_text(json.dumps({"commands": commands}))
        (group,) = build(read(folder)).groups
        return group.verdict

    assert verdict_with(0.005).sentence.endswith("use dense: no method gains 0.5 points over it.")
    assert verdict_with(0.01).sentence.endswith("use dense: no method gains 1 point over it.")
    assert "quick is undecided" in verdict_with(0.001).sentence
    assert verdict_with(0.005, 0.005).advice == ""
    changed = verdict_with(0.005, 0.01)
    assert changed.sentence.endswith("no method gains 1 point over it.")
    assert changed.advice == "The margin was 0.5 points in the first command and was changed later."


def test_a_margin_that_cannot_be_read_is_the_default() -> None:
    for suite in ({}, {"commands": 3}, {"commands": [{"spec": {"margin": "wide"}}, {}, 1]}):
        assert margins(suite) == (0.005,)


def write_time_pass(
    suite: Any,
    label: str,
    ratio: float,
    load: float = 0.1,
    half: float = 0.01,
    twice: tuple[float, float] = (0.99, 1.01),
) -> None:
    """Write a time pass that measured one method of the suite's only group, and dense against itself."""
    (group,) = group_trials([trial for trial in read(suite.folder).trials if trial.number("epochs") == 5])[0]
    interval = {"ratio": ratio, "low": ratio - half, "high": ratio + half}
    stage = {**interval, "epoch": 1, "steps": 750, "pairs": 30}
    entry = {
        **interval, "trial": "x", "pairs": 30, "stages": [stage], "dense_steps": 750, "reconfiguration": 0.0,
        "dense_twice": {"ratio": 1.0, "low": twice[0], "high": twice[1]}, "load": load, "threads": 2, "provenance": {},
    }  # fmt: skip
    content = {"version": 1, "groups": [{"key": dict(group.key), "methods": {label: entry}}]}
    (suite.folder / "time.json").write_text(json.dumps(content))


def test_the_verdict_uses_the_time_pass(suite: Any) -> None:
    """The trials were not faster than dense, which a disturbance hid; the pass says 0.9."""
    add_dense(suite, 5, 0.0)
    add_dense(suite, 4, 1.0)
    add_method(suite, "quick", (-0.6, -0.58, -0.62), time=1.0, executed=1.0)
    suite.write()
    assert "(−0.60 ± 0.05 points, at 1.00 × dense)" in group_of(suite).verdict.lines[0].text
    write_time_pass(suite, "quick", 0.9)
    group = group_of(suite)
    assert "(−0.10 ± 0.05 points, at 0.90 × dense)" in group.verdict.lines[0].text
    assert "training takes 0.900 × the time of dense (time pass)" in group.verdict.lines[0].text
    (headline,) = (one.text for one in group.headlines if one.name == group.verdict.lines[0].name)
    assert "training time 0.900 [" in headline
    assert "× dense by the time pass, shorter" in headline
    (remark,) = [text for text in group.remarks if text.startswith("Time pass")]
    assert "on 2 threads: quick 0.900 [0.890, 0.910] in 30 pairs of steps" in remark
    assert "(a second dense network in its place: 1.000 [0.990, 1.010]). Timed were the networks of one trial" in remark
    assert "timed dense against itself, its intervals were within [0.990, 1.010]" in group.verdict.certainty
    results = next(table for table in group.tables if table.name.endswith("-results"))
    assert [cell.text for cell in results.rows[1][5:7]] == ["0.900 [0.890, 0.910]", "10.0 [9.0, 11.0]"]


def test_a_time_pass_that_was_disturbed_is_marked_and_gives_no_verdict(suite: Any) -> None:
    """As with `time --busy`; half of the cores are the limit."""
    add_dense(suite, 5, 0.0)
    add_dense(suite, 4, 1.0)
    add_method(suite, "quick", (-0.6, -0.58, -0.62), time=1.0, executed=1.0)
    suite.write()
    write_time_pass(suite, "quick", 0.9, load=0.9)
    group = group_of(suite)
    assert "at 0.90 × dense)" in group.verdict.lines[0].text
    assert not any("The time pass was disturbed" in remark for remark in group.remarks)

    write_time_pass(suite, "quick", 0.9, load=1.0)
    group = group_of(suite)
    line = group.verdict.lines[0].text
    assert "no verdict at the same measured training time (the time pass was disturbed by other programs)" in line
    assert "training takes 0.900 × the time of dense (time pass, disturbed)" in line
    assert "at the same executed FLOPs" in line
    (headline,) = (one.text for one in group.headlines if one.name.startswith("quick"))
    assert "by the time pass, shorter (disturbed: do not rely on it)" in headline
    assert [
        text for text in group.remarks if text.startswith("The time pass was disturbed: other programs used up to 1.0")
    ]
    results = next(table for table in group.tables if table.name.endswith("-results"))
    assert results.rows[1][5].text == "0.900 [0.890, 0.910] (disturbed)"
    assert group.summary.rows[1][2].text == "0.900 [0.890, 0.910] (disturbed)"
    assert "Times are compared only if they were measured on a quiet machine." in group.verdict.advice


@pytest.mark.parametrize(("ratio", "words"), [
    (0.979, "shorter"), (0.985, "not distinguishable from dense, which timed against itself gave 1.000 [0.990, 1.010]"),
    (0.995, "not distinguishable from dense"), (1.019, "not distinguishable from dense, which"), (1.021, "longer"),
])  # fmt: skip
def test_a_time_must_differ_from_dense_and_from_dense_timed_against_itself(
    suite: Any, ratio: float, words: str
) -> None:
    add_dense(suite, 5, 0.0)
    add_method(suite, "quick", (-0.6, -0.58, -0.62), time=1.0)
    suite.write()
    write_time_pass(suite, "quick", ratio)
    (headline,) = (one.text for one in group_of(suite).headlines if one.name.startswith("quick"))
    assert f"× dense by the time pass, {words}" in headline


def test_methods_are_sorted_by_the_times_of_the_time_pass(suite: Any) -> None:
    """By the trials, the first method is both more accurate and faster."""
    add_dense(suite, 5, 0.0)
    add_method(suite, "first", (-0.5, -0.48, -0.52), time=0.8)
    add_method(suite, "second", (-0.6, -0.58, -0.62), time=0.9)
    add_method(suite, "third", (-0.7, -0.68, -0.72), time=0.7)
    suite.write()

    def order() -> list[str]:
        return [row[0].text for row in group_of(suite).summary.rows]

    assert order() == ["dense", "first", "third", "second"]
    write_time_pass(suite, "second", 0.6)
    assert order() == ["dense", "first", "second", "third"]


def test_what_is_certain_and_what_could_change_the_answer(suite: Any) -> None:
    add_dense(suite, 5, 0.0)
    add_dense(suite, 4, 2.0)
    add_method(suite, "skipped", (-0.3, -0.28, -0.32), time=1.0, executed=0.8)
    add_method(suite, "worse", (-3.0, -3.1, -2.9), time=1.0, executed=0.9)
    add_method(suite, "unclear", (-2.0, -1.0, -1.5), time=1.0, executed=0.8)
    add_method(suite, "equal", (-2.0, -2.1, -1.9), time=1.0, executed=1.0)
    verdict = group_of(suite).verdict
    assert verdict.certainty == (
        "If no method gained anything, the chance that this page says that one pays would be at most 2.5 %, and as "
        "small for a false 'does not pay' if all gained the margin (tests corrected for 8 claims). The least certain "
        "outcome: equal does not pay at the same measured training time (corrected p-value 0.0016, limit 0.025)."
    )
    assert verdict.changes == (
        "Faster kernels: if time fell in proportion to executed FLOPs, skipped would pay; unclear would be undecided; "
        "worse would still not pay. Other networks, data, hardware or numbers of epochs were not measured here."
    )
    assert verdict.advice.endswith("may decide the undecided methods.")


def test_seeds_that_may_decide_at_equal_flops_only_are_said_to_do_so(suite: Any) -> None:
    add_dense(suite, 5, 0.0)
    add_dense(suite, 4, 2.0)
    add_method(suite, "unclear", (-2.0, -1.0, -1.5), time=1.0, executed=0.8)
    verdict = group_of(suite).verdict
    assert verdict.advice.endswith("may decide the methods that are undecided at equal FLOPs.")


def test_a_damaged_time_pass_is_named_and_not_used(suite: Any) -> None:
    add_dense(suite, 5, 0.0)
    add_method(suite, "quick", (-0.6, -0.58, -0.62), time=1.0)
    (suite.write() / "time.json").write_text("{")
    report = build(read(suite.folder))
    assert "at 1.00 × dense" in report.groups[0].verdict.lines[0].text
    assert report.problems is not None
    assert any("time.json is damaged" in cell.text for row in report.problems.table.rows for cell in row)


@pytest.mark.parametrize("methods", [1, 5, 12])
def test_a_page_without_differences_rarely_claims_one(methods: int) -> None:
    """At most 5 % of pages; of 200 pages, more than 20 would be false with a probability below 0.001."""
    generator = np.random.default_rng(methods)
    assert sum(makes_a_false_claim(*page(generator, methods, 3, 0.002)) for _ in range(200)) <= 20


def test_the_spread_of_times_is_part_of_the_gains_spread() -> None:
    """On a curve that falls, a method exactly on it must not be said to pay because its time was measured too short."""
    generator = np.random.default_rng(1)
    setting = {"loss": 0.005, "time": 13 / 14, "budget_loss": 0.01, "time_spread": 0.03}
    pages = [page(generator, 1, 5, 0.001, **setting)[1] for _ in range(150)]
    # 2.5 % are expected at most, and 14 % if the mean time counted as exact; above 10 has a probability below 0.002.
    assert sum(any(one.outcome == "pays" and one.cost == "time" for one in found) for found in pages) <= 10


def test_a_loss_of_twice_the_margin_is_found_with_five_seeds() -> None:
    generator = np.random.default_rng(0)
    rows = [row for _ in range(40) for row in page(generator, 5, 5, 0.002, loss=0.01)[0] if not row.is_baseline]
    assert sum(row.accuracy_is_certain for row in rows) >= 0.8 * len(rows)


def test_the_groups_of_a_page_share_the_probability_of_a_false_claim(suite: Any) -> None:
    """A loss that one group shows alone is not certain where a second group makes claims too."""
    losses = (-0.46, -0.555, -0.65)
    add_dense(suite, 5, 0.0)
    add_method(suite, "quick", losses, time=1.0)
    difference = estimate([loss / 100 for loss in losses], "")
    p = p_value(difference, 0.0, "either")
    assert 0.025 / 2 / 2 < p <= 0.025 / 2  # two claims in each group; corrected for one group, and not for two
    alone = group_of(suite)
    assert "points below dense;" in alone.headlines[1].text
    for method in ("dense", "slow"):
        for seed in range(3):
            suite.add(method, seed, accuracy=DENSE[seed], time=300.0 + seed, hardware_id="99999999")
    first, _ = build(read(suite.write())).groups
    assert "points below dense (not certain, as one of 4 comparisons)" in first.headlines[1].text
    # Nothing is claimed about a group with dense alone, so that it does not count.
    for row in list(suite.rows):
        if row["method"] == "slow":
            suite.rows.remove(row)
    first, _ = build(read(suite.write())).groups
    assert "points below dense;" in first.headlines[1].text


def test_dense_trainings_of_unknown_recipes_are_no_budget(suite: Any) -> None:
    """Only the table is left: the trainings for 4 epochs may have had another learning rate."""
    add_dense(suite, 5, 0.0)
    add_method(suite, "quick", (-0.3, -0.28, -0.32), time=0.8)
    for seed in range(3):
        suite.add("dense", seed, accuracy=60.0, time=1.0, epochs=4, recipe={"epochs": 4})
    assert len(build(read(suite.write())).groups) == 1
    shutil.rmtree(suite.folder / "trials")
    first, second = build(read(suite.folder)).groups
    assert "dense was not trained for 0.80" in first.verdict.sentence
    assert "recipe not recorded" in second.title
