"""The caution in place of trust where dense training is no better than a guess."""

from __future__ import annotations

from typing import Any

import pytest
import scipy.stats

from reports.content.build import build
from reports.data.records import read
from reports.render import html, markdown

pytestmark = pytest.mark.usefixtures("without_figures")


def caution(suite: Any, accuracies: tuple[float, ...], data: Any) -> str:
    """Return the caution of a report with dense trainings of these accuracies, whose records have `data`."""
    for seed, accuracy in enumerate(accuracies):
        suite.add("dense", seed, accuracy=accuracy, time=300.0)
        suite.add("quick", seed, accuracy=99.0, time=300.0)
    suite.change(provenance={"data": data})
    (group,) = build(read(suite.write())).groups
    return str(group.caution)


BALANCED = {"classes": 3, "train_images": 162, "test_images": 18, "largest_test_class": 6}


def test_dense_at_chance_is_said_in_both_reports(suite: Any) -> None:
    said = caution(suite, (38.9,), BALANCED)
    assert said.startswith(
        "Dense training has not learned the task: its accuracy, 38.90 %, cannot be told from a guess (one of 3 "
        "classes: 33.3 %) on 18 test images. The accuracies here say nothing about the methods;"
    )
    report = build(read(suite.folder))
    for text in (html.render(report), markdown.render(report)):
        assert "Dense training has not learned the task" in text
        assert text.index("has not learned the task") < text.index("2 trials, 2 done")


def test_the_first_advice_is_to_train_longer(suite: Any) -> None:
    assert caution(suite, (38.9,), BALANCED)
    report = build(read(suite.folder))
    (verdict,) = (group.verdict for group in report.groups)
    assert verdict is not None
    assert verdict.advice.startswith("First train longer (`--epochs`) or with smaller batches (`--batch-size`), until")
    assert "--seeds" not in verdict.advice
    assert "First train longer (`--epochs`) or with" in markdown.render(report)
    assert "First train longer (<code>--epochs</code>) or with" in html.render(report)


def test_a_target_that_dense_reaches_by_guessing_is_not_shown_unless_it_was_asked_for(suite: Any) -> None:
    assert caution(suite, (38.9,), BALANCED)
    (group,) = build(read(suite.folder)).groups
    (section,) = (one for one in group.sections if one.anchor == "targets")
    assert section.tables == ()
    assert section.lines[0].startswith("There is no target, because dense training has not learned the task")
    (group,) = build(read(suite.folder), (0.9,)).groups
    (section,) = (one for one in group.sections if one.anchor == "targets")
    assert [table.caption.split(" (")[0] for table in section.tables] == ["Until the test accuracy reaches 90 %"]


@pytest.mark.parametrize(("correct", "at_chance"), [(9, True), (10, True), (11, False), (18, False), (0, True)])
def test_the_bound_is_that_of_the_binomial_distribution(suite: Any, correct: int, at_chance: bool) -> None:
    p_value = scipy.stats.binomtest(correct, 18, 1 / 3, alternative="greater").pvalue
    assert bool(p_value > 0.025) is at_chance
    assert bool(caution(suite, (100 * correct / 18,), BALANCED)) is at_chance


def test_more_test_images_tell_a_smaller_gain_from_chance(suite: Any) -> None:
    assert caution(suite, (38.9,), {"classes": 3, "test_images": 1800, "largest_test_class": 600}) == ""


@pytest.mark.parametrize(
    ("accuracy", "data", "guess"),
    [
        (72.0, {"classes": 3, "test_images": 1000, "largest_test_class": 710}, "always the largest class: 71.0 %"),
        (52.0, {"classes": 2, "test_images": 100}, "one of 2 classes: 50.0 %"),
    ],
)
def test_the_best_guess_counts(suite: Any, accuracy: float, data: Any, guess: str) -> None:
    assert f"({guess})" in caution(suite, (accuracy,), data)


def test_the_mean_over_the_seeds_counts(suite: Any) -> None:
    assert "39 ± 14 %, the mean of 3 seeds, cannot" in caution(suite, (33.3, 38.9, 44.5), BALANCED)


@pytest.mark.parametrize("data", [{}, {"classes": 3}, {"classes": True, "test_images": "many"},
                                  {"classes": 3, "test_images": -5}, {"classes": 3, "test_images": 0},
                                  {"classes": 1, "test_images": 18},
                                  {"classes": 3, "test_images": 18, "largest_test_class": 19}])  # fmt: skip
def test_nothing_is_said_without_the_number_of_test_images(suite: Any, data: Any) -> None:
    assert caution(suite, (33.3,), data) == ""


def test_nothing_is_said_without_dense(suite: Any) -> None:
    suite.add("quick", 0, accuracy=10.0, time=300.0)
    (group,) = build(read(suite.write())).groups
    assert group.caution == ""
