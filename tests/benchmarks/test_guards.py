"""What the guards compare: trials of two folders by their weights and counted numbers."""

import json

import pytest
import torch

from benchmarks import guards


@pytest.fixture
def folders(tmp_path):
    def write(side, weight=1.0, flops=8.0, status="done", method="sdgp", dtype=torch.float32, **more):
        folder = tmp_path / side / "trials" / f"{method}-{side}"  # names may differ
        folder.mkdir(parents=True)
        torch.save({"tensors": {"weight": torch.tensor([weight], dtype=dtype)}}, folder / "model.pt")
        spec = {"method": method, "recipe": {"epochs": 4}, "seed": 0}
        result = {"train_flops_executed": flops, "train_time_s": len(side), **more}
        (folder / "trial.json").write_text(json.dumps({"spec": spec, "status": status, "result": result}))
        return tmp_path / side

    return write


def test_equal_trials_have_no_difference(folders):
    assert guards.differences(folders("old"), folders("newer")) == []


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"weight": 1.0 + 2**-23}, "other weights"),
        ({"dtype": torch.float64}, "other weights"),
        ({"params": 3.0}, "params was None, is 3.0"),
        ({"flops": 9.0}, "train_flops_executed was 8.0, is 9.0"),
        ({"status": "skipped"}, "done, skipped"),
        ({"method": "dense"}, "only in one of the two"),
    ],
)
def test_a_difference_is_a_line(folders, change, line):
    found = guards.differences(folders("old"), folders("new", **change))
    assert found
    assert all(one.endswith(line) for one in found)


def test_a_run_without_trials_or_counts_is_no_success(folders, tmp_path):
    (tmp_path / "empty").mkdir()
    assert guards.differences(tmp_path / "empty", tmp_path / "empty")


def test_a_run_that_killed_nothing_fails(tmp_path, monkeypatch):
    monkeypatch.setattr(guards, "_program", lambda root: ["true"])
    with pytest.raises(RuntimeError, match="no trial could be killed"):
        guards.train_killed(tmp_path, ["dense"], [], tmp_path / "out")
