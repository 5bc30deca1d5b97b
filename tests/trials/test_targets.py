"""Target accuracies: what a user types, the first epoch that reaches one, and the columns of the table."""

from __future__ import annotations

import csv
import dataclasses
import json
import os

import pytest
from small_trials import put
from small_trials import untrained as spec

from suite.cli.main import main
from suite.cli.options import read_run_options
from suite.errors import UsageError
from suite.trials.folder.reader import read_declared_targets, update_table
from suite.trials.folder.records import pack, write_json
from suite.trials.folder.targets import declared_targets, first_reached, read_targets, target_columns
from suite.trials.planning import plan
from suite.trials.spec import SuiteSpec

RUN = {"models": "", "recipe": "", "overrides": {}, "seeds": (0,), "device": "cpu", "dtype": "float32"}
ACCURACIES = (0.1, 0.55, 0.5, 0.7)


def epochs(accuracies=ACCURACIES, energy=True):
    return [
        {
            "epoch": number,
            "test_accuracy": accuracy,
            "train_time_s": 10.0 * number,
            "train_flops": {"dense": 9e9 * number, "executed": 5e9 * number},
            **({"energy_j": 100.0 * number} if energy else {}),
        }
        for number, accuracy in enumerate(accuracies, 1)
    ]


@pytest.mark.parametrize(("text", "expected"), [("90", (0.9,)), ("88,90.5", (0.88, 0.905)), ("100", (1.0,))])
def test_targets_are_percentages(text, expected):
    assert read_targets(text) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0.9", "did you mean 90?"),
        ("ninety", "expected percentages"),
        ("90,", "expected percentages"),
        ("101", "expected percentages"),
        ("-5", "expected percentages"),
        ("nan", "expected percentages"),
        ("90,90.0", "occurs twice"),
        ("2,3,4,5,6,7", "at most 5 targets"),
    ],
)
def test_other_targets_are_refused(text, message):
    with pytest.raises(UsageError, match=message.replace("?", r"\?")):
        read_targets(text)


def test_a_target_that_a_guess_reaches_is_refused(tmp_path):
    suite = SuiteSpec(methods="dense", tasks="digits", preset="smoke", data_root=str(tmp_path), **RUN)
    suite = dataclasses.replace(suite, targets=(0.88, 0.1))
    with pytest.raises(UsageError, match=r"^--target 10: a guess among 10 classes reaches 10 %; .* a point: 88\.5$"):
        plan(suite)
    assert plan(dataclasses.replace(suite, targets=(0.88, 0.11)))


def test_report_refuses_it_too(tmp_path, capsys):
    put(tmp_path, spec(0), provenance={"data": {"classes": 10}})
    (tmp_path / "suite.json").write_text("{}")
    assert main(["report", str(tmp_path), "--target", "88,5"]) == 2
    assert "--target 5: a guess among 10 classes reaches 10 %" in capsys.readouterr().err
    assert not (tmp_path / "report.md").exists()


def test_the_first_epoch_counts_and_equality_suffices():
    assert first_reached(epochs(), 0.55)["epoch"] == 2
    assert first_reached(epochs(), 0.551)["epoch"] == 4
    assert first_reached(epochs(), 0.71) is None
    assert first_reached(epochs([57.3 / 100]), read_targets("57.3")[0])["epoch"] == 1
    assert first_reached([{"epoch": 1}, {"epoch": 2, "test_accuracy": 0.9}], 0.8)["epoch"] == 2


def test_the_columns_are_costs_until_the_end_of_that_epoch():
    assert target_columns(epochs(), (0.6, 0.1)) == {
        "target_accuracy": 0.6,
        "time_to_target_s": 40.0,
        "flops_to_target": 20e9,
        "energy_to_target_j": 400.0,
    }
    missed = target_columns(epochs(), (0.8,))
    assert missed.pop("target_accuracy") == 0.8
    assert set(missed.values()) == {None}
    assert target_columns(epochs(), ()) == target_columns([], (0.8,)) == {}
    found = target_columns(epochs(energy=False), (0.5,))
    assert (found["energy_to_target_j"], found["time_to_target_s"]) == (None, 20.0)


def test_the_last_declared_targets_apply():
    def suite(*several):
        return {"commands": [{"spec": {"targets": targets}} for targets in several]}

    assert declared_targets(suite([0.9], [], [0.9], [0.8, 0.7])) == [(0.9,), (0.8, 0.7)]
    assert declared_targets(suite([], None)) == declared_targets({}) == []


@pytest.mark.parametrize("packed", [False, True])
def test_the_table_has_the_declared_target_and_a_command_may_replace_it(tmp_path, packed):
    def row(targets=()):
        update_table(tmp_path, targets=targets)
        with open(tmp_path / "results.csv", encoding="utf-8", newline="") as file:
            return next(iter(csv.DictReader(file)))

    folder = put(tmp_path, spec(0), result={"test_accuracy": 0.7})
    content = "".join(json.dumps(record) + "\n" for record in epochs()).encode()
    if packed:
        (folder / "epochs.jsonl").unlink()
    (folder / f"epochs.jsonl{'.gz' if packed else ''}").write_bytes(pack(content) if packed else content)
    write_json(tmp_path / "suite.json", {"commands": [{"spec": {"targets": [0.6, 0.5]}}]})
    assert (row()["target_accuracy"], row()["time_to_target_s"]) == ("0.6", "40.0")
    found = row((0.99,))
    assert (found["target_accuracy"], found["time_to_target_s"], found["flops_to_target"]) == ("0.99", "", "")
    write_json(tmp_path / "suite.json", {"commands": []})
    assert row()["target_accuracy"] == ""  # although the earlier table had one


def test_a_command_records_its_targets():
    options = read_run_options(["--methods", "dense", "--task", "digits", "--target", "88,90"])
    assert options.target == (0.88, 0.9)
    assert read_run_options(["--task", "digits"]).target == ()
    spec = SuiteSpec(
        methods="dense", tasks="digits", preset="smoke", seeds=(0,), device="cpu", dtype="float32", data_root="/",
        targets=options.target,
    )  # fmt: skip
    assert declared_targets({"commands": [{"spec": json.loads(json.dumps(dataclasses.asdict(spec)))}]}) == [(0.88, 0.9)]


def test_a_pipe_in_place_of_the_commands_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "suite.json")
    assert read_declared_targets(tmp_path) == ()
