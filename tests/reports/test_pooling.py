"""Trials of several machines: one group of accuracies, costs of one machine, and refusals by name."""

from __future__ import annotations

import json
from typing import Any

import pytest
from time_passes import time_json

from reports.content.build import build
from reports.data.groups import group_trials
from reports.data.records import read

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
    assert found["prunetrain[ratio=0.2]"][1:4] == ["69 ± 6", "−2 ± 6", "–"]
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
    key = dict(group_trials(read(suite.folder).trials)[0][0].key)
    here, there = (
        time_json({**key, "hardware_id": name}, **{"sdgp[n=2,m=4]": ratios})["groups"]
        for name, ratios in ((HERE, (0.9, 0.9, 0.9)), (THERE, (0.7, 0.7, 0.7)))
    )
    (suite.folder / "time.json").write_text(json.dumps({"version": 1, "groups": [*here, *there]}))
    first, second = build(read(suite.folder)).groups
    shown = [[cell.text[:10] for cell in one.summary.rows[1][1:3]] for one in (first, second)]
    assert shown == [["71.1 ± 0.4", "0.900 [0.9"], ["71.1 ± 0.4", "0.700 [0.7"]]
    assert (f"hardware {HERE}" in first.title, f"hardware {THERE}" in second.title) == (True, True)
    assert about(second, HERE).startswith("The accuracies of 6 trials")
    (suite.folder / "time.json").write_text(json.dumps({"version": 1, "groups": there}))
    (alone,) = build(read(suite.folder)).groups  # what only the other machine measured counts with all accuracies
    assert alone.summary.rows[1][2].text.startswith("0.700")
