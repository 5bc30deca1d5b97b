"""Accuracy with running and with estimated statistics of batch normalisation, on one short trial of digits."""

import json

import pytest
import torch
from small_trials import spec, train_in_suite

from benchmarks.batch_statistics import row_of, table_of
from suite.engine.network.model_files import load_model
from suite.errors import UsageError
from suite.trials.building import load_splits


@pytest.fixture(scope="module")
def trial(tmp_path_factory):
    """Specification and folder of a trained network."""
    own = spec("dense", train_images=512, test_images=128)
    return own, train_in_suite(tmp_path_factory.mktemp("suite"), own)


def test_the_saved_accuracy_is_that_of_the_record(trial):
    own, folder = trial
    (row,) = table_of(folder.parents[1]).to_dict("records")
    recorded = json.loads((folder / "trial.json").read_text())["result"]["test_accuracy"]
    assert row["saved"] == pytest.approx(100 * recorded)
    assert row["trial_id"] == own.trial_id


def test_estimated_statistics_undo_a_shift_of_the_running_means(trial):
    own, folder = trial
    path, splits = folder / "model.pt", load_splits(own)
    right, shifted = row_of(own, load_model(path), splits), load_model(path)
    norm = next(one for one in shifted.modules() if isinstance(one, torch.nn.BatchNorm2d))
    norm.running_mean += 3 * (norm.running_var + norm.eps).sqrt()
    norm.bias.data.fill_(7)
    wrong = row_of(own, shifted, splits)
    assert wrong["shift"] == pytest.approx(3, abs=0.5)
    assert wrong["bias"] == 7 > right["bias"] > 0
    assert right["estimated"] == pytest.approx(right["saved"], abs=10)


def test_estimated_statistics_bring_the_accuracy_back(trial):
    own, folder = trial
    path, splits = folder / "model.pt", load_splits(own)
    right, shifted = row_of(own, load_model(path), splits), load_model(path)
    norms = [one for one in shifted.modules() if isinstance(one, torch.nn.BatchNorm2d)]
    norms[-1].running_mean += 3 * norms[-1].running_var.sqrt()
    wrong = row_of(own, shifted, splits)
    assert wrong["saved"] < right["saved"] - 20
    assert wrong["estimated"] == right["estimated"]
    assert row_of(own, torch.nn.Flatten(), splits) is None


def test_a_folder_without_such_networks_is_refused(trial, tmp_path):
    with pytest.raises(UsageError, match="no finished trial has a network with running statistics"):
        table_of(tmp_path)
