"""What it takes to reach a target accuracy: medians over censored seeds, the default target, and the table."""

from __future__ import annotations

import dataclasses
import json
import math
import statistics
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_trials import recorded
from time_passes import one_pass, stage

from reports import write_report
from reports.content.build import build
from reports.content.targets import target_sections
from reports.data.method_rows import method_rows
from reports.data.pooling import of_any_machine
from reports.data.records import PageGroup, looks, read
from reports.data.targets import (
    NOT_REACHED,
    Targets,
    default_target,
    median,
    of_dense,
    target_rows,
    targets_of,
    time_share,
)
from suite.measure.times import MethodTime
from suite.trials.folder.records import TrialRecord
from suite.trials.groups import KEY, label

RISING = (0.3, 0.6, 0.7, 0.8)


def trial(
    method: str, seed: int, accuracies: tuple[float, ...] = RISING, pace: float = 1.0, **changed: Any
) -> TrialRecord:
    epochs = tuple(
        {
            "epoch": number,
            "steps": 10,
            "test_accuracy": accuracy,
            "train_time_s": 10 * pace * number,
            "reconfigure_time_s": float(number),
            "train_flops": {"executed": 4e9 * pace * number},
        }
        for number, accuracy in enumerate(accuracies, 1)
    )
    recipe = {"epochs": len(accuracies), **changed.pop("recipe", {})}
    return recorded(
        {"test_accuracy": accuracies[-1]}, epochs=epochs, method=method, seed=seed, recipe=recipe, **changed
    )


def group(*trials: TrialRecord, budgets: tuple[PageGroup, ...] = (), times: Any = None) -> PageGroup:
    epochs = f"{max((len(one.epochs) for one in trials), default=4)}"
    return PageGroup({**dict.fromkeys(KEY, ""), "epochs": epochs}, trials, budgets, times or {})


def rows_of(one: PageGroup, target: float) -> dict[str, Any]:
    return {row.name: row for row in target_rows(one, method_rows(one, looks(map(label, one.trials))), target)}


def timed(*ratios: float, reconfiguration: float = 0.0) -> MethodTime:
    """A time pass with one stage for each epoch from the first on, of 40 dense steps."""
    stages = [stage(ratio, place, 10) for place, ratio in enumerate(ratios, 1)]
    seconds = reconfiguration * 40 * 0.1
    return MethodTime.model_validate(
        {"passes": [one_pass(1.0, stages=stages, dense=[{"steps": 40}], reconfigure_s=seconds)]}
    )


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=9), st.integers(0, 9))
def test_a_seed_that_did_not_reach_the_target_is_longer_than_all_others(reached: list[float], censored: int) -> None:
    found = median([*reached, *[NOT_REACHED] * censored])
    assert found is not None
    assert found >= statistics.median(reached)
    assert math.isinf(found) == (2 * len(reached) <= len(reached) + censored)


def test_a_value_that_is_not_known_makes_the_median_unknown() -> None:
    assert median([1.0, None, 2.0]) is None
    assert median([]) is None
    assert median([3.0, 1.0, NOT_REACHED]) == 3.0


def test_costs_are_medians_over_all_seeds() -> None:
    slow = (0.1, 0.2, 0.3, 0.75)
    one = group(
        *(trial("dense", seed) for seed in range(3)),
        *(trial("fast", seed, pace=0.5) for seed in range(2)), trial("fast", 2, slow, pace=0.5),
        trial("late", 0), trial("late", 1, (0.1, 0.2, 0.3, 0.4)), trial("late", 2, status="diverged"),
    )  # fmt: skip
    rows = rows_of(one, 0.7)
    assert (rows["dense"].reached, rows["dense"].epoch, rows["dense"].costs["time_to_target_s"]) == (3, 3, 30.0)
    fast = rows["fast"]
    assert (fast.reached, fast.costs["time_to_target_s"], fast.costs["flops_to_target"]) == (3, 15.0, 6e9)
    assert of_dense(fast, list(rows.values()), "time_to_target_s") == 0.5
    disturbed = dataclasses.replace(fast, time_is_disturbed=True)
    assert of_dense(disturbed, list(rows.values()), "time_to_target_s") is None
    assert fast.costs["energy_to_target_j"] is None  # not recorded
    late = rows["late"]
    assert (late.reached, late.seeds, late.epoch) == (1, 3, NOT_REACHED)
    assert of_dense(late, list(rows.values()), "flops_to_target") is None


def test_a_trial_that_failed_otherwise_is_left_out_and_a_seed_counts_once_with_the_longer_trial() -> None:
    later = trial("dense", 0, (0.1, 0.2, 0.3, 0.75))
    one = group(trial("dense", 0), later, trial("dense", 1, status="error"))
    row = rows_of(one, 0.7)["dense"]
    assert (row.seeds, row.reached, row.epoch) == (1, 1, 4)


def test_a_seed_that_fell_below_the_target_again_is_named() -> None:
    row = rows_of(group(trial("dense", 0, (0.3, 0.9, 0.5, 0.8))), 0.85)["dense"]
    assert (row.epoch, row.fell) == (2, 1)


def test_dense_trainings_for_fewer_epochs_have_rows() -> None:
    short = group(trial("dense", 0, (0.5, 0.75)))
    rows = rows_of(group(trial("dense", 0), trial("other", 0), budgets=(short,)), 0.7)
    assert list(rows) == ["dense", "dense, 2 epochs", "other"]
    assert rows["dense, 2 epochs"].epoch == 2
    assert rows["dense, 2 epochs"].share == pytest.approx(2 / 4)  # of the whole training
    assert of_dense(rows["dense, 2 epochs"], list(rows.values()), "share") == pytest.approx(2 / 3)


def test_the_time_pass_gives_the_time_until_an_epoch_by_stages() -> None:
    pass_ = timed(1.0, 0.5, reconfiguration=0.08)
    # Epoch 1 as long as dense's, the others half as long; a quarter of the reconfigurations after each epoch.
    assert time_share(trial("a", 0), 3, pass_) == pytest.approx((10 + 5 + 5) / 40 + 0.75 * 0.08)
    assert time_share(trial("a", 0), 1, pass_) == pytest.approx(10 / 40 + 0.25 * 0.08)
    rows = rows_of(group(trial("dense", 0), trial("a", 0, pace=9.0), times={"a": pass_}), 0.7)
    assert of_dense(rows["a"], list(rows.values()), "share") == pytest.approx(0.56 / 0.75)
    assert of_dense(rows["a"], list(rows.values()), "time_to_target_s") == 9.0  # the wall time of the trials
    slow = one_pass(1.0, stages=[stage(3.0, 1, 10)], dense=[{"steps": 40}], load=9.0)
    both = MethodTime.model_validate({"passes": [slow, *pass_.model_dump()["passes"]]})
    assert time_share(trial("a", 0), 3, both) == time_share(trial("a", 0), 3, pass_)  # the other pass is disturbed


def test_epochs_with_larger_images_take_more_of_the_time() -> None:
    """Two of four epochs have larger images, whose dense steps take three times as long."""
    sizes = [{"image_size": size, "steps": 20} for size in (96, 160)]
    stages = [stage(1.0, 1, 20, 0.5, 96), stage(0.8, 3, 20, 1.5, 160)]
    pass_ = MethodTime.model_validate({"passes": [one_pass(1.0, stages=stages, dense=sizes)]})
    assert time_share(trial("a", 0), 2, pass_) == pytest.approx(0.25)
    assert time_share(trial("a", 0), 3, pass_) == pytest.approx(0.25 + 0.375 * 0.8)
    short = group(trial("dense", 0, (0.1, 0.75)))
    one = group(trial("dense", 0), trial("a", 0), budgets=(short,), times={"a": pass_})
    rows = rows_of(one, 0.7)
    assert rows["dense"].share == pytest.approx(0.25 + 0.375)
    assert rows["dense, 2 epochs"].share == pytest.approx(1 / 2)  # all of a training of half the length
    # Without the time pass, it is not known how much longer the larger images take.
    growing = trial("dense", 0, recipe={"train_sizes": [96, 160]})
    assert rows_of(group(growing, trial("a", 0)), 0.7)["dense"].share is None
    smaller = trial("dense", 0, recipe={"train_sizes": [96]})
    assert rows_of(group(smaller, trial("a", 0)), 0.7)["dense"].share == pytest.approx(3 / 4)


def test_trials_of_another_machine_reach_the_target_and_have_no_cost_here() -> None:
    own = [trial("dense", seed) for seed in range(3)]
    late = [of_any_machine(trial("dense", seed, (0.1, 0.2, 0.7, 0.8))) for seed in range(1, 4)]
    diverged = of_any_machine(trial("dense", 0, status="diverged"))
    row = rows_of(group(*own, *late, diverged), 0.6)["dense"]
    assert (row.seeds, row.reached, row.epoch) == (4, 4, 2.0)  # seeds of this machine count before those of others
    assert row.costs["time_to_target_s"] == 20.0
    without = late[2].model_copy(update={"epochs": ()})
    row = rows_of(group(*own, without), 0.6)["dense"]
    assert (row.seeds, row.unknown, row.costs["time_to_target_s"]) == (4, 1, 20.0)
    share = timed(0.8, reconfiguration=0.2)
    assert time_share(own[0], 2, share) == time_share(of_any_machine(own[0]), 2, share) == pytest.approx(0.5)


def test_the_default_target_follows_from_dense_and_a_declared_one_replaces_it() -> None:
    one = group(trial("dense", 0, (0.1, 0.7666)), trial("dense", 1, (0.1, 0.7655)), trial("other", 0))
    rows = method_rows(one, looks(["dense", "other"]))
    targets, origin = default_target(rows, 0.005)
    assert targets == (0.761,)  # 76.605 - 0.5 points, rounded down
    assert "minus the margin of 0.5 points" in origin
    assert targets_of({}, ()) == Targets()
    assert target_sections(one, rows, Targets(), 0.005, "g", default=False) == ()  # a smoke test
    assert default_target(rows[:1], 0.005) == Targets()  # there is nothing to compare
    declared = {"commands": [{"spec": {"targets": [0.9]}}, {"spec": {"targets": [0.8]}}]}
    targets, origin = targets_of(declared, ())
    assert targets == (0.8,)
    assert "the first command with targets declared 90 %" in origin
    assert targets_of(declared, (0.5,)).accuracies == (0.5,)


def test_the_table_says_within_how_many_epochs_a_target_was_not_reached() -> None:
    one = group(trial("dense", 0), trial("late", 0, (0.1, 0.2, 0.3, 0.9)), trial("late", 1, (0.1, 0.2, 0.3, 0.4)))
    rows = method_rows(one, looks(["dense", "late"]))
    (section,) = target_sections(one, rows, Targets((0.7,)), 0.005, "g", default=True)
    (table,) = section.tables
    texts = {row[0].text: [cell.text for cell in row[1:]] for row in table.rows}
    assert texts["dense"][:4] == ["1 of 1 seed", "3", "30.0 s", "1.00"]
    assert texts["late"][0] == "not reached within 4 epochs (1 of 2 seeds)"
    assert set(texts["late"][1:]) == {"–"}
    assert "reaches 70 % (" in table.caption
    assert "not used to choose anything" in section.lines[0]
    assert not any("time pass" in column.title or "Energy" in column.title for column in table.columns)


@pytest.mark.usefixtures("without_figures")
def test_the_report_of_a_folder_has_the_table(suite: Any) -> None:
    suite.add_all()
    folder = suite.write()

    def tables(*asked: float) -> list[str]:
        (group,) = build(read(folder), asked).groups
        return [table.caption for section in group.sections for table in section.tables]

    assert [caption.split(" (")[0] for caption in tables()] == ["Until the test accuracy reaches 70.8 %"]  # 71.3 - 0.5
    assert [caption.split(" (")[0][-4:] for caption in tables(0.6, 0.7)] == ["60 %", "70 %"]
    stored = json.loads((folder / "suite.json").read_text())
    stored["commands"][0]["spec"]["targets"] = [0.65]
    (folder / "suite.json").write_text(json.dumps(stored))
    write_report(folder)
    text = (folder / "report.md").read_text(encoding="utf-8")
    assert "Until the test accuracy reaches 65 % (declared by the command that trained)" in text
