"""Tests of where trials that run at the same time are placed, and that their processes and reports know it."""

import dataclasses
import json
import os
import sys

import pytest
import torch
from engine_children import Recorder, spec
from suite.trials.engines.cpu_cores import Place, on_cores, on_gpus, physical_cores, places_for, visible_gpus

from suite.engine.cost.torch_hardware import hardware_facts
from suite.trials.engines import cpu_cores as places
from suite.trials.engines.local import LocalEngine

CHILD = """
import json, os, sys, time
from pathlib import Path
from suite.trials.engines.cpu_cores import place_of_environment, take_place
from suite.trials.folder.records import write_record
from suite.trials.spec import TrialSpec

take_place()
folder = Path(sys.argv[1])
trial = TrialSpec.from_json(json.loads((folder / "trial.json").read_text())["spec"])
found = {"cpus": sorted(os.sched_getaffinity(0)), "place": place_of_environment(), "cores": os.environ["PDT_CORES"]}
meet = folder.parent / f"here-{trial.seed}"
meet.touch()
deadline = time.monotonic() + 60
while len(list(folder.parent.glob("here-*"))) < 2 and time.monotonic() < deadline:
    time.sleep(0.02)
write_record(folder, trial, "done", provenance=found)
"""


def test_trials_get_whole_cores_in_equal_numbers():
    physical = [(0, 4), (1, 5), (2, 6), (3, 7), (8,)]
    assert on_cores(physical, 5, 2) == [Place((0, 1, 4, 5), shared_with=1), Place((2, 3, 6, 7), shared_with=1)]
    assert on_cores(physical, 2, 3) == [Place(shared_with=2)] * 3, "the quota allows fewer cores than there are trials"
    assert on_cores([], 8, 2) == [Place(shared_with=1)] * 2, "processes cannot be pinned here"


def test_trials_share_gpus_only_if_there_are_too_few():
    assert on_gpus(["0", "1"], 1, 2) == [Place(gpus=("0",)), Place(gpus=("1",))]
    assert [place.shared_with for place in on_gpus(["0", "1"], 1, 3)] == [1, 0, 1]
    assert on_gpus(["3", "5", "7"], 2, 2) == [Place(gpus=("3", "5"), shared_with=1)] * 2
    assert on_gpus([], 1, 2) == [Place(shared_with=1)] * 2


def test_places_depend_on_the_trials(monkeypatch):
    monkeypatch.setattr(places, "physical_cores", lambda: [(0,), (1,)])
    monkeypatch.setattr(places, "available_cores", lambda: 2)
    monkeypatch.setattr(places, "visible_gpus", lambda: ["0", "1"])
    one = spec("dense")
    assert places_for([one], 4) == places_for([one, one], 1) == [Place()]
    assert places_for([one] * 3, 2) == [Place((0,), shared_with=1), Place((1,), shared_with=1)]
    on_gpu = dataclasses.replace(one, device="cuda")
    assert places_for([on_gpu] * 3, 2) == [Place(gpus=("0",)), Place(gpus=("1",))]
    named = dataclasses.replace(on_gpu, device_index=1)
    assert places_for([named] * 3, 2) == [Place(shared_with=1)] * 2


def test_the_gpus_of_the_environment_are_used(monkeypatch):
    monkeypatch.setattr(places, "forked", lambda call: 2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert visible_gpus() == ["0", "1"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4, 6,-1")
    assert visible_gpus() == ["4", "6"]
    assert Place(gpus=("4", "6")).variables(8)["CUDA_VISIBLE_DEVICES"] == "4,6"
    assert "CUDA_VISIBLE_DEVICES" not in Place().variables(8)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="only Linux pins processes")
def test_a_child_has_the_cores_of_its_place(tmp_path):
    physical = physical_cores()
    if len(physical) < 2:
        pytest.skip("needs two physical cores")
    script = tmp_path / "child.py"
    script.write_text(CHILD)
    trials = [(one, tmp_path / one.trial_id) for one in (spec("dense", n) for n in range(2))]
    LocalEngine(2, None, lambda folder: [sys.executable, str(script), str(folder)]).run(trials, Recorder())
    found = [json.loads((folder / "trial.json").read_text())["provenance"] for _, folder in trials]
    cpus = [set(one["cpus"]) for one in found]
    assert {one["place"]["shared_with"] for one in found} == {1}
    assert found[0]["cores"] == found[1]["cores"]
    assert all(cpus)
    assert not cpus[0] & cpus[1]
    assert all(not set(core) & one or set(core) <= one for core in physical for one in cpus)


def test_the_hardware_does_not_depend_on_the_place(monkeypatch):
    monkeypatch.setenv("PDT_CORES", "48")
    assert hardware_facts(torch.device("cpu"))["cores"] == 48
