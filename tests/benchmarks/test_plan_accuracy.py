"""The comparison of predicted with measured times: its settings and its arithmetic."""

import pytest

from benchmarks.steps.plan_accuracy import COLUMNS, SETTINGS, epochs_for, line, row, summary
from suite.cli.options import resolve_run_options, run_parser


def test_ten_different_settings_can_be_typed():
    assert len({setting.text for setting in SETTINGS}) == 10
    for setting in SETTINGS:
        options = resolve_run_options(run_parser().read(setting.options(5)))
        assert options.overrides == {"epochs": 5, "batch_size": setting.batch_size}
    assert len({setting.dtype for setting in SETTINGS}) > 1


def test_a_row_has_the_ratio_of_predicted_to_measured():
    predicted = {"epochs": 9, "steps": 90, "train_s": 30.0, "wall_s": 50.0}
    record = {"result": {"train_time_s": 20.0, "wall_time_s": 50.0}, "provenance": {"busy_cores": 0.1}}
    found = row(SETTINGS[0], predicted, record)
    assert tuple(found) == COLUMNS
    assert (found["ratio"], found["wall_ratio"]) == (1.5, 1.0)
    assert line(found).endswith("outside")
    assert not line({**found, "ratio": 1.25}).endswith("outside")
    assert summary([found, {**found, "ratio": 0.8}]) == "1 of 2 training times within 25 %; ratios 0.800 to 1.500"


@pytest.mark.parametrize(("train_s", "epochs"), [(4.0, 40), (4000.0, 3)])
def test_a_setting_is_trained_for_the_wanted_time(train_s, epochs):
    assert epochs_for({"train_s": train_s, "epochs": 4}, 40.0) == epochs
