"""Parameters that name files: the content is part of the trial's id, and a trial refuses other content."""

import json

import pytest

from suite.errors import UsageError
from suite.trials.folder.records import write_record
from suite.trials.planning import plan
from suite.trials.spec import SuiteSpec, TrialSpec
from suite.trials.trial_run import TrialRun


def planned(path):
    fields = {"tasks": "digits", "preset": "smoke", "seeds": (0,), "device": "cpu", "dtype": "float32", "data_root": ""}
    (trial,) = plan(SuiteSpec(methods=f"ssl[from_trained={path}]", **fields))
    return trial


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "one.pt"
    path.write_bytes(b"weights")
    return path


def test_the_content_is_in_the_hash_and_the_path_is_not(file, tmp_path):
    other = tmp_path / "other.pt"
    other.write_bytes(b"weights")
    assert planned(file).hash == planned(other).hash
    other.write_bytes(b"weightz")
    assert planned(file).hash != planned(other).hash
    data = planned(file).to_json()
    assert TrialSpec.from_json(json.loads(json.dumps(data))) == planned(file)


def test_a_relative_path_is_found_from_wherever_the_trial_runs(file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    trial = planned("./one.pt")
    assert trial.parameters["from_trained"] == str(file)
    assert trial.label == "ssl[from_trained=./one.pt]"


def test_a_file_that_changed_since_is_refused(file):
    trial = planned(file)
    trial.check_files()
    file.write_bytes(b"weightz")
    with pytest.raises(UsageError, match=r"from_trained: .*one\.pt has changed since this trial was planned"):
        trial.check_files()
    file.unlink()
    with pytest.raises(UsageError, match=r"from_trained is '.*one\.pt': No such file"):
        trial.check_files()


def test_a_file_that_is_not_there_is_one_line(tmp_path):
    with pytest.raises(UsageError, match=r"^ssl\[from_trained=.*\]: from_trained is '.*none\.pt': No such file"):
        planned(tmp_path / "none.pt")


def test_a_file_that_is_not_there_is_told_before_data_is_looked_for(tmp_path):
    fields = {"tasks": "cifar100", "preset": "smoke", "seeds": (0,), "device": "cpu", "dtype": "float32"}
    with pytest.raises(UsageError, match=r"none\.pt': No such file"):
        plan(SuiteSpec(methods=f"ssl[from_trained={tmp_path}/none.pt]", data_root=str(tmp_path), **fields))


def test_a_trial_does_not_start_from_another_content(tmp_path):
    path = tmp_path / "one.pt"
    path.write_bytes(b"weights")
    trial = planned(path)
    folder = tmp_path / trial.trial_id
    folder.mkdir()
    path.write_bytes(b"weightz")
    with pytest.raises(UsageError, match="has changed since this trial was planned"):
        TrialRun(trial, folder).run()


def train(trial, folder):
    """Run a planned trial in this process, and write its record as its own process would."""
    path = folder / trial.trial_id
    path.mkdir()
    run = TrialRun(trial, path)
    run.run()
    write_record(path, trial, "done", "", run.result, run.provenance)
    return [json.loads(line) for line in (path / "epochs.jsonl").read_text().splitlines()]


def test_ssl_starts_from_a_trained_network_by_name_and_by_path(tmp_path):
    fields = {"tasks": "digits", "preset": "smoke", "seeds": (0,), "device": "cpu", "dtype": "float32", "data_root": ""}
    fields |= {"models": "resnet9[width=0.0625]", "overrides": {"epochs": 2, "train_images": 256, "test_images": 32}}
    dense, by_name = plan(SuiteSpec(methods="ssl[from_trained=dense,watch=true]", **fields))
    dense_epochs = train(dense, tmp_path)
    model = tmp_path / dense.trial_id / "model.pt"
    (by_path,) = plan(SuiteSpec(methods=f"ssl[from_trained={model}]", **fields))
    assert (by_name.depends_on, by_name.files) == ({"dense": dense.trial_id}, {})
    assert (by_path.depends_on, by_path.files.keys()) == ({}, {"from_trained"})
    epochs = {trial.trial_id: train(trial, tmp_path) for trial in (by_name, by_path)}
    for first, *_ in epochs.values():
        assert first["step_memory_bytes"] > 0
        # A trained network starts with a smaller loss than a new one.
        assert first["train_loss"] < dense_epochs[0]["train_loss"]
    peaks = epochs[by_name.trial_id][0]["method"]["peaks"]
    assert sum(len(one["peaks"]) for one in peaks.values()) > 0
    assert "method" not in epochs[by_path.trial_id][0]
