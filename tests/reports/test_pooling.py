"""Trials of several machines: one group of accuracies, costs of one machine, and refusals by name."""

from __future__ import annotations

import json
from typing import Any

import pytest
from time_passes import time_json

from reports.content.build import build
from reports.data.records import page_groups, read

pytestmark = pytest.mark.usefixtures("without_figures")
HERE, THERE = "12e45678", "99999999"
ACCURACIES = (71.2, 71.9, 70.8, 71.4, 71.0, 71.6)


def add_dense(suite: Any, seeds: range, better: float = 0.0, **changed: Any) -> None:
    for seed in seeds:
        suite.add("dense", seed, accuracy=ACCURACIES[seed % 6] + better, time=370.0 + seed, **changed)


def groups_of(suite: Any) -> Any:
    return build(read(suite.write())).groups


def rows(group: Any, number: int = 0) -> dict[str, list[str]]:
    return {line[0].text: [cell.text for cell in line[1:]] for line in group.tables[number].rows}


def about(group: Any, hardware: str) -> str:
    (found,) = [one for one in group.remarks if f"hardware {hardware}" in one]
    return str(found)


def test_a_table_has_the_accuracies_of_two_machines_and_the_costs_of_one(suite: Any) -> None:
    add_dense(suite, range(6))
    suite.add_all(("sdgp",))
    add_dense(suite, range(6, 10), 0.2, hardware_id=THERE)
    suite.add("sdgp", 7, accuracy=75.1, time=1.0, hardware_id=THERE, train_flops_executed=1.0)
    suite.add("prunetrain", 1, accuracy=69.0, time=1.0, hardware_id=THERE, train_flops_executed=1.0)
    (group,) = groups_of(suite)
    found = rows(group)
    assert [found[name][0] for name in found] == ["10", "4", "1"]
    assert found["sdgp[n=2,m=4]"][1] == "72 ± 3"  # of 71.0, 71.3, 71.1 and 75.1
    assert found["sdgp[n=2,m=4]"][3] == "6 min 31 s ± 9 s"  # of three
    assert found["prunetrain[ratio=0.2]"][1:4] == ["69.00", "−2.40", "–"]
    costs = rows(group, 1)
    assert (costs["sdgp[n=2,m=4]"][0], costs["prunetrain[ratio=0.2]"][0]) == ("1.00", "–")  # executed FLOPs
    assert costs["prunetrain[ratio=0.2]"][1] == "0.63"  # effective FLOPs, which any machine counts
    assert about(group, THERE) == (
        "The accuracies of 6 trials of hardware 99999999 (threads 2, torch not recorded) count here; their times and "
        "executed FLOPs do not. Accuracy there minus here: dense, 5 epochs: +0.2 ± 0.6 points (intervals that hold "
        "together at 95 %)."
    )


def test_machines_whose_accuracies_differ_are_not_pooled(suite: Any) -> None:
    add_dense(suite, range(3))
    add_dense(suite, range(3, 9), 3.0, hardware_id=THERE)
    suite.add_all(("sdgp",), seeds=2, hardware_id=THERE)
    there, here = groups_of(suite)
    assert ([*rows(there)], rows(here)["dense"][0]) == (["dense", "sdgp[n=2,m=4]"], "3")
    for group, other, sign in ((there, HERE, "−"), (here, THERE, "+")):
        assert f"(threads 2, torch not recorded) do not count here: the accuracy of dense, 5 epochs differs. Accuracy "\
            f"there minus here: dense, 5 epochs: {sign}3.0 ± " in about(group, other)  # fmt: skip


def test_with_too_few_seeds_the_page_says_that_nothing_was_compared(suite: Any) -> None:
    add_dense(suite, range(3))
    add_dense(suite, range(3, 5), 9.0, hardware_id=THERE)
    (group,) = groups_of(suite)
    assert rows(group)["dense"][0] == "5"
    assert about(group, THERE).endswith("do not. Their accuracies were not compared: nothing has three seeds on both.")


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({"recipe": {"learning_rate": 0.2}}, "recipe.learning_rate"),
        ({"data_copy": "jpeg-89abcdef"}, "data_copy"),
        ({"dtype": "bfloat16", "arithmetic": "ieee"}, "dtype and arithmetic"),
        ({"device": "cuda"}, "device"),
    ],
)
def test_trials_of_another_setting_are_refused_by_its_name(suite: Any, change: Any, names: str) -> None:
    add_dense(suite, range(3))
    add_dense(suite, range(3, 6), hardware_id=THERE, **change)
    first, second = groups_of(suite)
    assert rows(first)["dense"][0] == rows(second)["dense"][0] == "3"
    assert about(first, THERE).endswith(f" do not count here: their {names} differ.")
    assert about(second, HERE).endswith(f" do not count here: their {names} differ.")


def test_each_machine_that_was_timed_has_a_group_with_all_accuracies(suite: Any) -> None:
    add_dense(suite, range(3))
    suite.add_all(("sdgp",))
    suite.write()
    key = dict(page_groups(read(suite.folder).trials)[0][0].key)
    here, there = (
        time_json({**key, "hardware_id": name}, **{"sdgp[n=2,m=4]": ratios})["groups"]
        for name, ratios in ((HERE, (0.9, 0.9, 0.9)), (THERE, (0.7, 0.7, 0.7)))
    )
    (suite.folder / "time.json").write_text(json.dumps({"version": 1, "groups": [*here, *there]}))
    first, second = build(read(suite.folder)).groups
    shown = [[cell.text[:10] for cell in one.summary.rows[1][1:4:2]] for one in (first, second)]
    assert shown == [["71.1 ± 1.4", "0.900 [0.9"], ["71.1 ± 1.4", "0.700 [0.7"]]
    assert (f"hardware {HERE}" in first.title, f"hardware {THERE}" in second.title) == (True, True)
    assert about(second, HERE) == (
        "Times relative to dense were measured on hardware 99999999 (threads 2, torch not recorded); times of trials, "
        "memory and executed FLOPs are those of hardware 12e45678 (threads 2, torch not recorded)."
    )
    (suite.folder / "time.json").write_text(json.dumps({"version": 1, "groups": there}))
    (alone,) = build(read(suite.folder)).groups  # it has trained nothing
    assert alone.summary.rows[1][3].text.startswith("0.700")
    assert rows(alone, 2)["sdgp[n=2,m=4]"][0] == "1.00"  # executed FLOPs


def test_all_machines_of_a_pool_agree_with_each_other(suite: Any) -> None:
    """The first machine, which has most trials, has too few seeds of dense to be compared."""
    suite.add_all(("sdgp",))
    for seed in range(3, 9):
        suite.add("sdgp", seed, accuracy=71.2, time=1.0)
    add_dense(suite, range(2))
    add_dense(suite, range(2, 6), hardware_id=THERE)
    add_dense(suite, range(6, 10), 5.0, hardware_id="77777777")
    first, other = groups_of(suite)
    assert (rows(first)["dense"][0], rows(other)["dense"][0]) == ("6", "4")
    assert "do not count here: the accuracy of dense, 5 epochs differs." in about(first, "77777777")


def test_a_machine_that_only_measured_times_joins_no_machines_that_differ(suite: Any) -> None:
    add_dense(suite, range(6))
    add_dense(suite, range(6, 12), 5.0, hardware_id=THERE)
    suite.add_all(("sdgp",))
    suite.write()
    key = dict(page_groups(read(suite.folder).trials)[0][0].key)
    times = time_json({**key, "hardware_id": "77777777"}, **{"sdgp[n=2,m=4]": (0.7, 0.7, 0.7)})
    (suite.folder / "time.json").write_text(json.dumps(times))
    timed, other = build(read(suite.folder)).groups
    assert (timed.summary.rows[0][1].text, other.summary.rows[0][1].text) == ("71.3 ± 0.4", "76.3 ± 0.4")
    assert timed.summary.rows[1][3].text.startswith("0.700")


def test_each_setting_has_the_costs_of_the_machine_that_trained_it(suite: Any) -> None:
    add_dense(suite, range(6))
    suite.add_all(("sdgp",))
    add_dense(suite, range(3), hardware_id=THERE, epochs=10, recipe={"epochs": 10})
    suite.add_all(("sdgp",), hardware_id=THERE, epochs=10, recipe={"epochs": 10})
    groups = groups_of(suite)
    assert sorted(f"hardware id {THERE}" in one.subtitle for one in groups) == [False, True]
    for group in groups:
        assert f"hardware id {THERE if '10 epochs' in group.subtitle else HERE}" in group.subtitle
        assert rows(group)["sdgp[n=2,m=4]"][3] == "6 min 31 s ± 9 s"
        assert not [one for one in group.remarks if "count here" in one]


def test_equal_accuracies_are_pooled_and_guesses_are_not_compared(suite: Any) -> None:
    for seed in range(10):
        suite.add("dense", seed, accuracy=71.7, time=1.0, hardware_id=HERE if seed < 3 else THERE)
        suite.add("sdgp", seed, accuracy=10.0 if seed == 9 else 70.3, time=1.0, hardware_id=HERE if seed < 3 else THERE)
    (group,) = groups_of(suite)
    assert "dense, 5 epochs: 0.00 ± 0.00 points" in about(group, HERE)


def test_a_method_that_failed_on_another_machine_is_in_the_table(suite: Any) -> None:
    add_dense(suite, range(3))
    add_dense(suite, range(3, 5), hardware_id=THERE)
    suite.add("sdgp", 0, accuracy=None, time=None, status="error", message="x", hardware_id=THERE)
    (group,) = groups_of(suite)
    assert rows(group)["sdgp[n=2,m=4]"][0] == "0 of 1"
