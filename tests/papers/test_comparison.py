"""Tests of the comparison with published numbers, on invented results with answers computed by hand."""

from __future__ import annotations

import dataclasses

import pytest
from invented_numbers import COMPARED, by_label, lines, one

from reports.data.estimates import Estimate, Missing
from reports.data.records import read
from reports.papers.comparison import comparison, doubts_about_times
from reports.papers.page import _our_cell, to_csv


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
    ratio = (391 / 372 * 388 / 365 * 395 / 379) ** (1 / 3)  # the geometric mean
    assert found["time saved"].ours.mean == pytest.approx(100 * (1 - ratio))
    assert found["training time"].ours.mean == pytest.approx(ratio)
    assert found["FLOPs left"].ours.mean == pytest.approx(100 * 5 / 6)
    assert "dense minus dense" not in found


def test_one_seed_has_no_interval_and_covers_nothing(suite, numbers):
    suite.add_all(("dense", "sdgp"), seeds=1)
    line = lines(by_label(read(suite.write())), numbers)["pruned minus dense"]
    assert (line.ours.half_width, line.covered) == (None, None)


def test_times_of_a_busy_machine_are_doubted_where_a_quantity_is_a_time(trials):
    several = [trial for found in trials.values() for trial in found]
    assert doubts_about_times(COMPARED, several) == []
    busy = several[0].model_copy(update={"provenance": {"hardware": {"threads": 2}, "busy_cores": 1.5}})
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
    group = numbers.groups["t"]
    assert group.decimals == {"dense": 1, "sdgp": 1}
    line = lines({}, numbers)["pruned minus dense"]
    assert line.rounding == pytest.approx(0.1)
    assert dataclasses.replace(line, ours=Estimate(mean, 0.3, 3)).covered is covered
    line = lines({}, numbers)["accuracy, pruned"]
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
    seconds = comparison(one("s", column="train_time_s", scale=1.0, unit="s"), "a", trials, numbers)
    assert seconds.ours == Missing("trials ran on several machines or in several formats, so their times have no mean")


@pytest.mark.parametrize(
    ("first", "second", "what"),
    [
        ({"threads": 1}, {"threads": 2}, "with another number of threads or version of torch"),
        ({"torch": "2.14"}, {"torch": "2.15"}, "with another number of threads or version of torch"),
        ({}, {"recipe": {"execution": "compile"}}, "in another format or execution"),
        ({}, {"dtype": "bfloat16"}, "in another format or execution"),
    ],
)
def test_times_of_other_threads_versions_or_formats_are_not_compared(suite, numbers, first, second, what):
    suite.add_all(("dense",), **first)
    suite.add_all(("sdgp",), **second)
    found = lines(by_label(read(suite.write())), numbers)
    assert found["time saved"].ours == Missing(f"dense ran {what}")
    assert (found["pruned minus dense"].ours.count, found["FLOPs left"].ours.count) == (3, 3)


def test_a_disturbed_time_is_marked_beside_the_published_one(suite, numbers):
    suite.add_all(("dense", "sdgp"))
    folder = suite.write()
    found = lines(by_label(read(folder)), numbers)
    assert not any(line.disturbed for line in found.values())
    suite.change("dense-*-s0-*", provenance={"busy_cores": 1.9})
    found = lines(by_label(read(folder)), numbers)
    assert {name for name, line in found.items() if line.disturbed} == {"time saved", "training time"}
    assert _our_cell(found["time saved"]).text == "–"
    assert "disturbed" in to_csv([found["time saved"]])


def test_without_a_seed_in_common_that_is_said_and_not_the_hardware(suite, numbers):
    suite.add("dense", 0, accuracy=71.0, time=1.0, hardware_id="one")
    suite.add("sdgp", 1, accuracy=71.0, time=1.0, hardware_id="other")
    found = lines(by_label(read(suite.write())), numbers)
    assert found["time saved"].ours == Missing("no seed in common with dense, so nothing can be paired")
