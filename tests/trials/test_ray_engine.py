"""Tests of the Ray engine without a cluster: what a worker does, what a task declares, and errors of the user."""

import dataclasses
import importlib.util
import socket
import sys
import tempfile
from collections import deque
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest
from engine_children import CHILD, Recorder, spec

from suite import files
from suite.errors import UsageError
from suite.trials.engines import local, ray_cluster
from suite.trials.engines.ray_cluster import (
    Job,
    connect,
    fits,
    make_token,
    own_variables,
    run_job,
    socket_folder,
    task_needs,
    write_content,
)
from suite.trials.folder.records import read_record


@pytest.fixture
def job(tmp_path, monkeypatch):
    """A job whose trial ends at once, in a folder next to a token."""
    child = tmp_path / "child.py"
    child.write_text(CHILD)
    monkeypatch.setattr(local, "trial_command", lambda folder: [sys.executable, str(child), str(folder)])
    monkeypatch.setattr(ray_cluster, "available_cores", lambda: 7)
    trials = tmp_path / "trials"
    trial = spec("done")
    return Job(trial, trials / trial.trial_id, make_token(trials), {}, None)


def test_a_worker_that_shares_the_folder_works_in_it(job):
    ended = run_job(job, 2, {})
    assert (ended.record["status"], ended.content) == ("done", None)
    record = read_record(job.folder)
    assert record.done
    assert record.provenance == {"threads": 3}


def test_a_worker_without_the_folder_sends_all_files(job, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    other = dataclasses.replace(job, token=tmp_path / "not here", variables={"OMP_NUM_THREADS": "5"})
    name = job.spec.trial_id
    ended = run_job(other, 2, {name: {"log.txt": b"before\n"}, "dense-x": {"model.pt": b"weights"}})
    assert not job.folder.exists()
    assert ended.record["status"] == "done"
    assert set(ended.content) == {"trial.json", "epochs.jsonl", "log.txt", "starts"}
    assert ended.content["log.txt"].startswith(b"before\n--- 2")
    assert list(tmp_path.glob("pdt-ray-*")) == []
    write_content(job.folder, ended.content)
    assert read_record(job.folder).provenance == {"threads": 5}


def test_a_failed_trial_is_sent_back_with_its_reason(job, tmp_path):
    failing = dataclasses.replace(job, token=tmp_path / "not here", spec=spec("crash"))
    ended = run_job(failing, 1, {})
    assert (ended.record["status"], ended.record["message"]) == ("error", "RuntimeError: no luck today")
    assert b"no luck today" in ended.content["trial.json"]


def test_two_processes_do_not_train_one_trial(job, monkeypatch):
    monkeypatch.setattr(ray_cluster, "EARLIER_WORKER_S", 0.1)
    job.folder.mkdir()
    with files.lock(job.folder / "log.txt"), pytest.raises(UsageError, match="another process has trained it"):
        run_job(job, 1, {})
    assert run_job(job, 1, {}).record["status"] == "done"


def test_what_is_sent_replaces_the_files_of_the_folder(tmp_path):
    folder = tmp_path / "trial"
    write_content(folder, {"checkpoint.pt": b"1", "stages/one.json": b"2", "trial.json": b"3"})
    write_content(folder, {"trial.json": b"4", "model.pt": b"5"})
    assert {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == {
        "trial.json": b"4",
        "model.pt": b"5",
    }


def node(cpus, gpus=0, alive=True):
    return {"Alive": alive, "Resources": {"CPU": cpus, **({"GPU": gpus} if gpus else {})}}


def test_a_task_declares_its_share_of_the_smallest_machine():
    nodes = [node(16, 4), node(8, 2), node(0), node(2, 0, alive=False)]
    cpu, gpu = spec("dense"), dataclasses.replace(spec("dense"), device="cuda", processes=2)
    assert task_needs(nodes, cpu, 1) == {"CPU": 8}
    assert [fits(one, {"CPU": 8}) for one in nodes] == [2, 1, 0, 0]
    assert task_needs(nodes, cpu, 3) == {"CPU": 3}
    assert task_needs(nodes, cpu, 16) == {"CPU": 0.5}
    assert task_needs(nodes, gpu, 1) == {"CPU": 8, "GPU": 2}
    assert [fits(one, {"CPU": 1, "GPU": 2}) for one in nodes] == [2, 1, 0, 0]
    with pytest.raises(UsageError, match=r"none of the 1 machines of the cluster has a CPU and 2 GPU\(s\)"):
        task_needs([node(4, 1)], gpu, 1)


@pytest.mark.parametrize("cpus", [1, 2, 8, 16, 64])
def test_the_smallest_machine_runs_as_many_trials_as_wanted_and_never_more(cpus):
    for jobs in range(1, 70):
        at_once = fits(node(cpus), task_needs([node(cpus)], spec("dense"), jobs))
        assert at_once <= jobs
        assert at_once == jobs or cpus % jobs, "a number that divides the cores is reached"


def test_ray_that_is_not_installed_is_said(monkeypatch):
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "ray" else real(name))
    with pytest.raises(UsageError, match=r"ray is not installed; install it with pip install .*\[ray\]"):
        connect("auto", ExitStack())


@pytest.mark.parametrize(("folder", "expected"), [("/scratch/me", "/scratch/me"), ("/scratch/" + "x" * 21, "/tmp")])
def test_a_long_name_of_the_temporary_folder_leaves_room_for_sockets(monkeypatch, folder, expected):
    monkeypatch.setattr("tempfile.tempdir", folder)
    assert socket_folder() == expected


def test_an_address_without_a_cluster_is_said_at_once():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(UsageError, match=f"--ray-address 127.0.0.1:{port}: Connection refused; start a cluster"):
        connect(f"127.0.0.1:{port}", ExitStack())


def test_variables_of_libraries_are_passed_on(monkeypatch):
    for name in ("MKL_X", "PDT_CHOICES", "CUDA_VISIBLE_DEVICES", "HOME_X"):
        monkeypatch.setenv(name, "1")
    found = own_variables()
    assert {"MKL_X", "PDT_CHOICES", "PDT_COMMAND_LINE"} <= set(found)
    assert not {"CUDA_VISIBLE_DEVICES", "HOME_X", "PATH"} & set(found)


class Died(Exception):
    pass


class FakeRay:
    """Ray whose tasks are called as they are waited for; a task of method `lost` loses its worker."""

    class exceptions:
        RayError = RayTaskError = Died

    def __init__(self):
        self.most = self.waiting = 0
        self.down = False

    def nodes(self):
        return [node(2)]

    def remote(self, function):
        return SimpleNamespace(options=self.options)

    def options(self, **declared):
        assert declared["max_retries"] == 1
        self.declared = declared
        return SimpleNamespace(remote=self.submit)

    def submit(self, *arguments):
        self.waiting += 1
        self.most = max(self.most, self.waiting)
        return arguments

    def wait(self, references, timeout):
        return references[:1], references[1:]

    def get(self, arguments):
        self.waiting -= 1
        job, needs, total, sent = arguments
        if job.spec.method == "lost":
            raise Died("the machine has burnt\nin detail")
        return run_job(job, min(total, fits(node(2), needs)), sent)

    def cancel(self, reference, force):
        raise AssertionError("nothing is to be cancelled")

    def shutdown(self):
        self.down = True


def test_the_command_fills_the_cluster_and_records_what_was_lost(job, monkeypatch):
    fake = FakeRay()
    monkeypatch.setattr(ray_cluster, "connect", lambda address, closing: closing.callback(fake.shutdown) and fake)
    first = spec("done")
    after = dataclasses.replace(spec("done", 1), depends_on={"it": spec("lost").trial_id})
    trials = [(one, job.folder.parent / one.trial_id) for one in (first, spec("lost"), after, spec("done", 2))]
    recorder = Recorder()
    ray_cluster.RayEngine(jobs=2).run(trials, recorder)
    ends = {folder.name: read_record(folder) for _, folder in trials}
    assert [(one.status, one.message) for one in ends.values()] == [
        ("done", ""),
        ("error", "its Ray task failed: in detail"),
        ("skipped", f"it depends on {trials[1][1].name}, which is not done"),
        ("done", ""),
    ]
    assert (fake.most, fake.declared["num_cpus"], fake.down) == (2, 1, True)
    assert sorted(item[0] for item in recorder.told).count("ended") == 4
    assert [path.name for path in Path(job.folder.parent).glob(".shared-*")] == []


def test_trials_wait_while_the_machines_are_down(job, monkeypatch, caplog):
    fake, looks = FakeRay(), iter([True, False, False])
    fake.nodes = lambda: [node(2, alive=next(looks, True))]
    monkeypatch.setattr(ray_cluster, "connect", lambda address, closing: fake)
    monkeypatch.setattr(ray_cluster, "NODES_INTERVAL", 0)
    trials = [(one, job.folder.parent / one.trial_id) for one in (spec("done", seed) for seed in range(3))]
    ray_cluster.RayEngine(jobs=1).run(trials, Recorder())
    assert [read_record(folder).status for _, folder in trials] == ["done"] * 3
    assert [record.getMessage() for record in caplog.records] == [
        "--engine ray: the machines of the cluster are down; trials wait until one is up again"
    ]


def test_the_epochs_of_a_worker_without_the_folder_are_told_before_the_end(job, monkeypatch):
    fake = FakeRay()
    monkeypatch.setattr(ray_cluster, "connect", lambda address, closing: fake)
    monkeypatch.setattr(ray_cluster, "make_token", lambda folder: folder / "not there")
    recorder = Recorder()
    ray_cluster.RayEngine().run([(job.spec, job.folder)], recorder)
    told = [item[0] for item in recorder.told]
    assert told.count("epoch") == 3
    assert told[-1] == "ended"


def test_a_task_says_how_many_trials_share_its_machine(job, monkeypatch):
    import ray

    one = {"NodeID": "a", **node(4)}
    monkeypatch.setattr(ray, "get_runtime_context", lambda: SimpleNamespace(get_node_id=lambda: "a"))
    monkeypatch.setattr(ray, "nodes", lambda: [{"NodeID": "b", **node(64)}, one])
    monkeypatch.setattr(ray_cluster, "die_with", lambda parent: True)
    monkeypatch.setattr(ray_cluster, "run_job", lambda job, at_a_time, sent: at_a_time)
    assert ray_cluster._run_on_node(job, {"CPU": 2}, 9, {}) == 2
    assert ray_cluster._run_on_node(job, {"CPU": 1}, 3, {}) == 3
    assert ray_cluster._run_on_node(job, {"CPU": 1}, 9, {}) == 4


def test_the_reason_of_a_lost_worker_is_what_ray_says_first(job, monkeypatch):
    fake = FakeRay()
    fake.exceptions = SimpleNamespace(RayError=Died, RayTaskError=KeyError)
    monkeypatch.setattr(ray_cluster, "connect", lambda address, closing: fake)
    ray_cluster.RayEngine().run([(spec("lost"), job.folder)], Recorder())
    assert "its Ray task failed: the machine has burnt" in (job.folder / "trial.json").read_text()


def test_ctrl_c_cancels_the_tasks(job, monkeypatch):
    fake, cancelled = FakeRay(), deque()

    def interrupted(references, timeout):
        raise KeyboardInterrupt

    fake.wait, fake.cancel = interrupted, lambda reference, force: cancelled.append(force)
    monkeypatch.setattr(ray_cluster, "connect", lambda address, closing: fake)
    with pytest.raises(KeyboardInterrupt):
        ray_cluster.RayEngine().run([(job.spec, job.folder)], Recorder())
    assert list(cancelled) == [True]
    assert read_record(job.folder).message == "interrupted; the same command continues it"
