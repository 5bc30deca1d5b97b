"""Tests of the local engine with real processes, which crash, are killed or run too long; none outlives its parent.

And of where trials that run at the same time are placed, which their processes and reports know.
"""

import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys

import pytest
import torch
from engine_children import CHILD, ROOT, Recorder, alive, drive, group_members, pids_of, run, runs, spec, wait_until

from suite.engine.cost.hardware import physical_cores
from suite.engine.cost.torch_hardware import hardware_facts
from suite.trials import process as of_trial
from suite.trials.engines import local
from suite.trials.engines.local import LocalEngine, Place, places_for, visible_gpus
from suite.trials.folder.records import read_record
from suite.trials.process import Position

PLACED = """
import json, os, sys, time
from pathlib import Path
from suite.trials.process import place_of_environment, take_place
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


@pytest.fixture
def child(tmp_path):
    path = tmp_path / "child.py"
    path.write_text(CHILD)
    return path


def test_every_end_has_its_status_and_stops_no_other(child, tmp_path):
    methods = ("crash", "killed", "silent", "diverged", "done_then_killed", "done")
    records, told, folders = run(child, tmp_path, *methods, jobs=2)
    ends = [(record.status, record.message) for record in records]
    assert ends == [
        ("error", "RuntimeError: no luck today"),
        ("error", "killed by signal 9"),
        ("error", "exit status 3; log.txt is empty"),
        ("diverged", "the loss is nan"),
        ("done", ""),
        ("done", ""),
    ]
    assert records[-1].result == {"test_accuracy": 0.75}
    assert sorted(item[1:3] for item in told if item[0] == "ended") == sorted(
        (method, end[0]) for method, end in zip(methods, ends, strict=True)
    )
    assert [item[1] for item in told if item[0] == "epoch"] == [1, 2, 3]
    assert ("position", Position(1, 3, 0.5)) in told
    assert "Traceback" in (folders[0] / "log.txt").read_text()
    # The processes of crashed trials have ended, including their guardians.
    for folder in folders[:2]:
        leader, grandchild = pids_of(folder)
        wait_until(lambda grandchild=grandchild: not alive(grandchild))
        wait_until(lambda leader=leader: not group_members(leader))


def test_a_trial_that_takes_too_long_is_killed_with_its_processes(child, tmp_path):
    records, _, folders = run(child, tmp_path, "sleep", "done", timeout=2)
    assert (records[0].status, records[0].message) == ("timeout", "killed after 2 s (--timeout)")
    assert records[1].done
    for pid in pids_of(folders[0]):
        wait_until(lambda pid=pid: not alive(pid))


def test_two_at_a_time(child, tmp_path, monkeypatch):
    monkeypatch.setattr(of_trial, "available_cores", lambda: 7)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    records, told, _ = run(child, tmp_path, "done", "done", "done", jobs=2)
    assert [item[0] for item in told[:2]] == ["started", "started"]
    assert [item[0] for item in told].index("ended") < [i for i, item in enumerate(told) if item[0] == "started"][2]
    assert [record.provenance["threads"] for record in records] == [3, 3, 3]


def test_a_resumed_trial_keeps_its_files_and_its_first_log(child, tmp_path):
    _, told, (folder,) = run(child, tmp_path, "done")
    _, again, _ = run(child, tmp_path, "done")
    assert (folder / "log.txt").read_text().count("--- 2") == 2
    assert [item[1] for item in told if item[0] == "epoch"] == [item[1] for item in again if item[0] == "epoch"]
    assert not (folder / "progress.json").exists()


def test_no_process_outlives_a_killed_parent(child, tmp_path):
    process, folders = drive(tmp_path, child, "sleep", "stuck")
    pids = [pid for folder in folders for pid in pids_of(folder)]
    groups = [pids_of(folder)[0] for folder in folders]
    assert all(alive(pid) for pid in pids)
    assert all(len(group_members(group)) == 3 for group in groups)  # the trial, its guardian, its grandchild
    process.send_signal(signal.SIGKILL)
    process.wait()
    for pid in pids:
        wait_until(lambda pid=pid: not alive(pid))
    for group in groups:
        wait_until(lambda group=group: not group_members(group))
    assert read_record(folders[0]).status == "running"  # the next command runs it again


def test_ctrl_c_kills_all_and_leaves_records(child, tmp_path):
    process, folders = drive(tmp_path, child, "sleep", "sleep")
    pids = [pid for folder in folders for pid in pids_of(folder)]
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=20) == 130
    for pid in pids:
        wait_until(lambda pid=pid: not alive(pid))
    for folder in folders:
        record = read_record(folder)
        assert record.status == "error"
        assert record.message.startswith("interrupted")
        assert not [*folder.rglob(".*.part")]


def test_watching_the_parent_leaves_other_processes_alone():
    script = "import os; from suite.trials.process import watch_parent; watch_parent(); print(os.getpid())"
    env = {key: value for key, value in os.environ.items() if key != "PDT_LIFELINE_PARENT"}
    run_by_hand = [sys.executable, "-c", script]
    subprocess.run(run_by_hand, cwd=ROOT, check=True, env=env, stdin=subprocess.DEVNULL, capture_output=True)
    wrong = subprocess.run(
        run_by_hand, cwd=ROOT, env={**env, "PDT_LIFELINE_PARENT": "1"}, capture_output=True, text=True
    )
    assert "does not lead a process group" in wrong.stderr


def test_a_parent_that_died_before_the_request_is_noticed():
    script = "from suite.trials.process import watch_parent; watch_parent(); import time; time.sleep(60)"
    env = {**os.environ, "PDT_LIFELINE_PARENT": "999999999"}
    command = [sys.executable, "-c", script]
    process = subprocess.Popen(command, cwd=ROOT, env=env, stdin=subprocess.PIPE, start_new_session=True)
    assert process.wait(timeout=20) == -signal.SIGKILL
    process.stdin.close()


def test_the_environment_of_a_trial(monkeypatch):
    monkeypatch.setattr(of_trial, "available_cores", lambda: 4)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setenv("MALLOC_TOP_PAD_", "1")
    monkeypatch.setenv("PYTHONPATH", "/mine")
    variables = of_trial.environment(8)
    assert variables["OMP_NUM_THREADS"] == "1"
    assert variables["MALLOC_TOP_PAD_"] == "1"
    assert variables["MALLOC_MMAP_THRESHOLD_"] == "4294967296"
    assert variables["PYTHONPATH"].split(os.pathsep) == [str(ROOT), "/mine"]
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert of_trial.environment(8)["OMP_NUM_THREADS"] == "3"


def test_a_folder_that_is_removed_during_the_run_ends_that_trial_alone(child, tmp_path):
    """Both a running trial and a finished trial."""
    trials = [spec(method, seed) for seed, method in enumerate(("sleep", "done", "done"))]
    folders = [tmp_path / trial.trial_id for trial in trials]

    class Removes(Recorder):
        def started(self, trial):
            super().started(trial)
            if trial == trials[0]:
                process, _ = pids_of(folders[0])
                shutil.rmtree(folders[0])
                os.kill(process, signal.SIGKILL)

        def ended(self, trial, record, seconds):
            super().ended(trial, record, seconds)
            if trial == trials[1]:
                shutil.rmtree(folders[1])

    shown = Removes()
    with runs(child):
        LocalEngine().run(list(zip(trials, folders, strict=True)), shown)
    reason = "its folder or trial.json was removed while it ran"
    assert [item[1:] for item in shown.told if item[0] == "ended"] == [
        ("sleep", "error", reason),
        ("done", "done", ""),
        ("done", "done", ""),
    ]
    record = read_record(folders[0])
    assert (record.status, record.message) == ("error", reason)
    assert not folders[1].exists()


def test_a_trial_that_cannot_be_started_or_recorded_stops_no_other(child, tmp_path):
    trials = [spec("done", seed) for seed in range(4)]
    folders = [tmp_path / trial.trial_id for trial in trials]
    folders[0].write_text("a file in its place")
    (folders[1] / "trial.json").mkdir(parents=True)
    recorder = Recorder()
    with runs(child):
        LocalEngine(2).run(list(zip(trials, folders, strict=True)), recorder)
    ends = sorted((item for item in recorder.told if item[0] == "ended"), key=lambda item: item[2], reverse=True)
    assert [item[2] for item in ends] == ["error", "error", "done", "done"]
    messages = " | ".join(item[3] for item in ends[:2])
    for expected in ("File exists", "Is a directory"):
        assert expected in messages


def test_trials_get_whole_cores_in_equal_numbers(monkeypatch):
    trials = [spec("dense")] * 3

    def places(physical, usable, jobs):
        monkeypatch.setattr(local, "physical_cores", lambda: physical)
        monkeypatch.setattr(local, "available_cores", lambda: usable)
        return places_for(trials, jobs)

    physical = [(0, 4), (1, 5), (2, 6), (3, 7), (8,)]
    assert places(physical, 5, 2) == [Place((0, 1, 4, 5), shared_with=1), Place((2, 3, 6, 7), shared_with=1)]
    assert places(physical, 2, 3) == [Place(shared_with=2)] * 3, "the quota allows fewer cores than there are trials"
    assert places([], 8, 2) == [Place(shared_with=1)] * 2, "processes cannot be pinned here"
    assert places(physical, 5, 1) == places_for(trials[:1], 4) == [Place()]


def test_trials_share_gpus_only_if_there_are_too_few(monkeypatch):
    def places(gpus, processes, count, **changes):
        monkeypatch.setattr(local, "visible_gpus", lambda: gpus)
        trial = dataclasses.replace(spec("dense"), device="cuda", processes=processes, **changes)
        return places_for([trial] * count, count)

    assert places(["0", "1"], 1, 2) == [Place(gpus=("0",)), Place(gpus=("1",))]
    assert [place.shared_with for place in places(["0", "1"], 1, 3)] == [1, 0, 1]
    assert places(["3", "5", "7"], 2, 2) == [Place(gpus=("3", "5"), shared_with=1)] * 2
    assert places(["0", "1"], 1, 2, device_index=1) == [Place(shared_with=1)] * 2


def test_the_gpus_of_the_environment_are_used(monkeypatch):
    monkeypatch.setattr(local, "forked", lambda call: 2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert visible_gpus() == ["0", "1"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4, 6,-1")
    assert visible_gpus() == ["4", "6"]
    assert Place(gpus=("4", "6")).variables()["CUDA_VISIBLE_DEVICES"] == "4,6"
    assert "CUDA_VISIBLE_DEVICES" not in Place().variables()


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="only Linux pins processes")
def test_a_child_has_the_cores_of_its_place(tmp_path):
    physical = physical_cores()
    if len(physical) < 2:
        pytest.skip("needs two physical cores")
    script = tmp_path / "child.py"
    script.write_text(PLACED)
    trials = [(trial, tmp_path / trial.trial_id) for trial in (spec("dense", n) for n in range(2))]
    with runs(script):
        LocalEngine(2).run(trials, Recorder())
    found = [json.loads((folder / "trial.json").read_text())["provenance"] for _, folder in trials]
    cpus = [set(trial["cpus"]) for trial in found]
    assert {trial["place"]["shared_with"] for trial in found} == {1}
    assert found[0]["cores"] == found[1]["cores"]
    assert all(cpus)
    assert not cpus[0] & cpus[1]
    assert all(not set(core) & taken or set(core) <= taken for core in physical for taken in cpus)


def test_the_hardware_does_not_depend_on_the_place(monkeypatch):
    monkeypatch.setenv("PDT_CORES", "48")
    assert hardware_facts(torch.device("cpu"))["cores"] == 48
