"""The verb `compare`: differences paired by seed, what changed, and times that are not comparable."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from report_fixtures import suites, without_figures
from test_merge import put, spec, suite_at

from reports.data.records import DISTURBED_RATIO
from suite import load_results
from suite.cli import main as cli

__all__ = ["suites", "without_figures"]


@pytest.fixture
def two(suites: Callable[[str], Any]) -> tuple[Path, Path]:
    """Two folders: the second has one seed less, half the time, and another learning rate."""
    first, second = suites("a"), suites("b")
    for seed, accuracy in enumerate((71.0, 72.0, 73.0)):
        first.add("dense", seed, accuracy=accuracy, time=100.0 + seed, threads=2, torch="2.15")
    for seed, accuracy in enumerate((71.5, 72.7)):
        second.add(
            "dense", seed, accuracy=accuracy, time=50.0 + seed / 2, threads=2, torch="2.15",
            recipe={"learning_rate": 0.2}, train_flops_executed=0.9e12,
        )  # fmt: skip
    second.add("sdgp", 0, accuracy=70.0, time=90.0)
    second.add("sdgp", 1, accuracy=None, time=None, status="error", message="killed")
    return first.write(), second.write()


@pytest.mark.usefixtures("without_figures")
def test_what_trials_wrote_counts_also_if_it_was_edited_by_hand_and_no_table(tmp_path: Path, capsys: Any) -> None:
    first, second = (suite_at(tmp_path / name, ("run", "2026-01-01")) for name in "ab")
    for folder in (first, second):
        put(folder, spec(0), 0.7)
    assert cli.main(["report", str(second)]) == 0
    table, record = second / "results.csv", second / "trials" / spec(0).trial_id / "trial.json"
    capsys.readouterr()
    for path, difference in ((table, 0.0), (record, 0.1)):
        text = path.read_text()
        path.write_text(text.replace("0.7,", "0.8,"))
        assert path.read_text() != text
        (found,) = compared(first, second, capsys=capsys)["differences"]
        assert found["accuracy_difference"]["mean"] == pytest.approx(difference)
    assert list(load_results(second).trials["test_accuracy"]) == [0.8]
    table.unlink()
    assert cli.main(["report", str(second)]) == 0
    assert ",0.8," in table.read_text()
    assert "80.00" in (second / "report.md").read_text(encoding="utf-8")


def compared(*arguments: Any, capsys: Any) -> Any:
    assert cli.main(["compare", *map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_differences_are_paired_by_seed(two: tuple[Path, Path], capsys: Any) -> None:
    found = compared(*two, capsys=capsys)
    (dense,) = found["differences"]
    assert (dense["method"], dense["seeds"]) == ("dense", {"first": 3, "second": 2, "both": 2})
    accuracy = dense["accuracy_difference"]
    assert accuracy["mean"] == pytest.approx(0.006)
    assert accuracy["high"] - accuracy["low"] == pytest.approx(2 * 12.7062 * 0.001)  # t of one degree of freedom
    assert dense["time_ratio"] == {"mean": pytest.approx(0.5), "low": None, "high": None, "seeds": 2}
    assert dense["executed_flops_ratio"]["mean"] == pytest.approx(0.9e12 / 1.8e12)
    assert dense["effective_flops_ratio"]["mean"] == pytest.approx(1.0)
    assert dense["changes"] == {"recipe.learning_rate": {"first": "0.4", "second": "0.2"}}
    assert dense["times_comparable"]
    (only,) = found["only_first"]
    assert "-s2-" in only
    assert [name.partition("-")[0] for name in found["only_second"]] == ["sdgp"]  # a failed trial has no numbers


def test_times_of_other_hardware_are_shown_and_marked(
    two: tuple[Path, Path], suites: Callable[[str], Any], capsys: Any, tmp_path: Path
) -> None:
    other = suites("c")
    other.add("dense", 0, accuracy=71.0, time=200.0, hardware_id="99999999", threads=2, torch="2.15")
    folder = other.write()
    (dense,) = compared(two[0], folder, capsys=capsys)["differences"]
    assert not dense["times_comparable"]
    assert dense["changes"]["hardware_id"] == {"first": "12e45678", "second": "99999999"}
    assert cli.main(["compare", str(two[0]), str(folder), "-o", str(tmp_path / "c.md")]) == 0
    printed, written = capsys.readouterr().out, (tmp_path / "c.md").read_text(encoding="utf-8")
    for text in (printed, written):
        assert "2.00 (not comparable)" in text
        assert "99999999" in text
    assert "| `hardware_id` | 12e45678 | 99999999 | all |" in written


def test_trials_with_several_settings_are_compared_with_those_of_the_same_settings(
    suites: Callable[[str], Any], capsys: Any
) -> None:
    first, second = suites("a"), suites("b")
    for folder, rates, gain in ((first, (0.1, 0.2), 0.0), (second, (0.2, 0.1), 1.0)):
        for rate in rates:
            folder.add("dense", 0, accuracy=70.0 + 10 * rate + gain, time=1.0, recipe={"learning_rate": rate})
    first.add("dense", 0, accuracy=60.0, time=1.0, recipe={"learning_rate": 0.1}, dtype="bfloat16")
    found = compared(first.write(), second.write(), capsys=capsys)
    assert [(one["settings"], one["accuracy_difference"]["mean"]) for one in found["differences"]] == [
        ("learning_rate=0.1", pytest.approx(0.01)), ("learning_rate=0.2", pytest.approx(0.01)),
    ]  # fmt: skip
    assert (len(found["only_first"]), len(found["only_second"])) == (1, 0)


def test_a_changed_recipe_is_compared_if_there_is_no_other(
    suites: Callable[[str], Any], capsys: Any, caplog: Any
) -> None:
    first, second = suites("a"), suites("b")
    first.add("dense", 0, accuracy=70.0, time=1.0, recipe={"learning_rate": 0.1})
    for rate in (0.2, 0.3):
        second.add("dense", 0, accuracy=71.0, time=1.0, recipe={"learning_rate": rate})
    found = compared(first.write(), second.write(), capsys=capsys)
    assert found["differences"] == []  # it is not known which of the two replaced the first
    assert caplog.messages == ["compare: no finished trial of one folder has a counterpart in the other"]
    assert (len(found["only_first"]), len(found["only_second"])) == (1, 2)


def test_a_folder_equals_itself(two: tuple[Path, Path], capsys: Any) -> None:
    found = compared(two[0], two[0], capsys=capsys)
    (dense,) = found["differences"]
    assert dense["changes"] == {}
    assert (dense["accuracy_difference"]["mean"], dense["time_ratio"]["mean"]) == (0.0, 1.0)
    assert found["only_first"] == found["only_second"] == []


def test_a_folder_that_does_not_exist_is_refused(two: tuple[Path, Path], capsys: Any) -> None:
    assert cli.main(["compare", str(two[0]), "absent"]) == 2
    assert "absent does not exist" in capsys.readouterr().err


@pytest.mark.parametrize("disturbed", ["0.4", "0.2"])
def test_times_of_which_one_is_disturbed_have_no_ratio(
    two: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, capsys: Any, disturbed: str
) -> None:
    monkeypatch.setattr(
        "reports.comparison.is_disturbed", lambda trial: str(trial.spec.recipe["learning_rate"]) == disturbed
    )
    found = compared(*two, capsys=capsys)["differences"][0]
    assert (found["times_disturbed"], found["time_ratio"]) == (True, {"reason": DISTURBED_RATIO})


def test_times_of_unknown_machines_are_not_comparable(suites: Callable[[str], Any], capsys: Any) -> None:
    folders = []
    for name in "ab":
        one = suites(name)
        one.add("dense", 0, accuracy=70.0, time=10.0, hardware_id="")
        folders.append(one.write())
    assert not compared(*folders, capsys=capsys)["differences"][0]["times_comparable"]
