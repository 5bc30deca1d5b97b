"""Trials of several processes: started by the command, ended together, resumed."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from toy_suite import pdt

from suite.errors import UsageError
from suite.trials.ranks.allocation import Allocation
from suite.trials.ranks.failures import Failure, cause

ROOT = Path(__file__).parents[2]
ARGUMENTS = ("--task", "digits", "--preset", "smoke", "--dtype", "float32", "--nproc-per-trial", "2")


def record_of(folder):
    (path,) = folder.glob("trials/*/trial.json")
    return json.loads(path.read_text())


def ranks_of(folder):
    """Return the processes of the ranks of the trials in a folder, by their number."""
    found = {}
    for place in sorted(Path("/proc").glob("[0-9]*"), key=lambda one: int(one.name)):
        try:
            command = (place / "cmdline").read_bytes().split(b"\0")
            variables = dict(
                line.split(b"=", 1) for line in (place / "environ").read_bytes().split(b"\0") if b"=" in line
            )
        except (OSError, ValueError):
            continue
        if b"suite.trials.trial" in command and str(folder).encode() in b" ".join(command) and b"PDT_RANK" in variables:
            found.setdefault(int(variables[b"PDT_RANK"]), int(place.name))  # not the guardian that it has forked
    return found


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_killed_rank_ends_its_trial_and_the_same_command_resumes_it(tmp_path):
    out = tmp_path / "out"
    command = [
        sys.executable,
        "run_suite.py",
        "--methods",
        "dense,sdgp",
        *ARGUMENTS,
        "--epochs",
        "3",
        "--out",
        str(out),
    ]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL) as running:
        # Kill rank 1 of the first trial after its first epoch.
        deadline = time.monotonic() + 240
        while not any(out.glob("trials/dense-*/checkpoint.pt")):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        os.kill(ranks_of(out)[1], signal.SIGKILL)
        killed = time.monotonic()
        while True:
            (path,) = out.glob("trials/dense-*/trial.json")
            record = json.loads(path.read_text())
            if record["status"] != "running":
                break
            assert time.monotonic() - killed < 60
            time.sleep(0.1)
        assert (record["status"], record["message"]) == ("error", "rank 1 was killed by signal 9")
        assert running.wait() == 1
    assert not ranks_of(out)
    (other,) = out.glob("trials/sdgp-*/trial.json")
    assert json.loads(other.read_text())["status"] == "done"
    # Resume, and compare with an undisturbed trial.
    assert subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL, check=False).returncode == 0
    resumed = json.loads(path.read_text())
    assert resumed["status"] == "done"
    whole = tmp_path / "whole"
    again = [*command[:3], "dense", *command[4:-1], str(whole)]
    assert subprocess.run(again, cwd=ROOT, stdout=subprocess.DEVNULL, check=False).returncode == 0
    expected = record_of(whole)["result"]
    for name in ("test_accuracy", "test_loss", "train_flops_executed", "nonzero_params"):
        assert resumed["result"][name] == expected[name]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_methods_of_each_kind_train_with_two_processes(tmp_path):
    """At the end of each epoch the ranks compare weights, masks and states; a difference would end the trial."""
    methods = "dense,sdgp[mode=random],prunetrain,clicktrain,oneshot,scratch[of=prunetrain],dense[match=prunetrain]"
    answer = subprocess.run(
        [sys.executable, "run_suite.py", "--methods", methods, *ARGUMENTS, "--out", str(tmp_path / "out")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stdout
    records = [json.loads(path.read_text()) for path in tmp_path.glob("out/trials/*/trial.json")]
    assert len(records) == 7
    assert all(record["spec"]["processes"] == 2 for record in records)
    assert any(record["result"]["inference_flops"] < record["result"]["inference_flops_dense"] for record in records)
    table = (tmp_path / "out" / "results.csv").read_text()
    assert table.count("eager in 2 processes") == len(records)


def started_by_slurm(rank, *arguments, port):
    """Start one of two commands with the environment of a step of Slurm."""
    step = {"STEP_NUM_TASKS": 2, "STEP_ID": 0, "PROCID": rank, "LOCALID": rank, "JOB_ID": 7}
    return subprocess.Popen(
        [sys.executable, "run_suite.py", *arguments],
        cwd=ROOT,
        env={
            **os.environ,
            **{f"SLURM_{name}": str(value) for name, value in step.items()},
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
        },
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def free_port():
    with socket.socket() as free:
        free.bind(("", 0))
        return free.getsockname()[1]


@pytest.mark.slow
def test_commands_that_slurm_has_started_train_together_and_resume_after_a_killed_rank(tmp_path):
    out, port = tmp_path / "out", free_port()
    arguments = ("--methods", "dense,sdgp", *ARGUMENTS[:-2], "--epochs", "4", "--out", str(out))
    commands = [started_by_slurm(rank, *arguments, port=port) for rank in (0, 1)]
    deadline = time.monotonic() + 240
    while not any(out.glob("trials/dense-*/checkpoint.pt")):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    os.kill(ranks_of(out)[1], signal.SIGKILL)
    assert [command.wait() for command in commands] == [1, 1]
    (path,) = out.glob("trials/dense-*/trial.json")
    record = json.loads(path.read_text())
    assert (record["status"], record["message"]) == ("error", "rank 1 was killed by signal 9")
    port = free_port()
    commands = [started_by_slurm(rank, *arguments, port=port) for rank in (0, 1)]
    assert [command.wait() for command in commands] == [0, 0]
    assert json.loads(path.read_text())["status"] == "done"
    assert json.loads(path.read_text())["spec"]["processes"] == 2


@pytest.mark.slow
def test_a_killed_command_ends_its_trial_and_those_that_follow_within_a_minute_each(tmp_path):
    out, port = tmp_path / "out", free_port()
    arguments = ("--methods", "dense,sdgp,prunetrain", *ARGUMENTS[:-2], "--epochs", "40", "--out", str(out))
    first, second = (started_by_slurm(rank, *arguments, port=port) for rank in (0, 1))
    deadline = time.monotonic() + 200
    while not any(out.glob("trials/dense-*/checkpoint.pt")):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    second.kill()
    killed = time.monotonic()
    while first.poll() is None:
        assert time.monotonic() - killed < 100  # each trial less than a minute, the later ones much less
        time.sleep(0.1)
    assert first.returncode == 1
    records = [json.loads(path.read_text()) for path in out.glob("trials/*/trial.json")]
    assert len(records) == 3
    assert {(one["status"], one["message"]) for one in records} == {("error", "rank 1: its command does not answer")}
    assert not ranks_of(out)


@pytest.mark.slow
def test_the_other_commands_end_with_one_line_when_that_of_rank_0_is_killed(tmp_path):
    out, port = tmp_path / "out", free_port()
    arguments = ("--methods", "dense", *ARGUMENTS[:-2], "--epochs", "40", "--out", str(out))
    first, second = (started_by_slurm(rank, *arguments, port=port) for rank in (0, 1))
    deadline = time.monotonic() + 200
    while not any(out.glob("trials/dense-*/checkpoint.pt")):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    first.kill()
    assert second.communicate(timeout=30)[1] == "pdt: the command of rank 0 has ended\n"
    assert second.returncode == 1
    deadline = time.monotonic() + 10
    while ranks_of(out):
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.slow
def test_a_command_is_waited_for_that_starts_later_than_that_of_rank_0(tmp_path):
    out, port = tmp_path / "out", free_port()
    arguments = ("--methods", "dense", *ARGUMENTS[:-2], "--epochs", "1", "--out", str(out))
    first = started_by_slurm(0, *arguments, port=port)
    for line in first.stderr:
        if "waiting" in line:
            assert line == "pdt: waiting for the command of rank 1 of Slurm to start, up to 10 minutes\n"
            break
    second = started_by_slurm(1, *arguments, port=port)
    first.communicate()
    assert [first.returncode, second.wait()] == [0, 0]
    assert record_of(out)["status"] == "done"


PLUGIN = """
import atexit, json, os
from suite.registry import register

if os.environ.get("PDT_RANK") == "1":
    {of_rank_1}

@register("callback", "seen")
class Seen:
    def on_trial(self, trial, record):
        written = json.loads((trial.folder / "trial.json").read_text())
        found = [[one["status"], one["message"]] for one in (written, record)]
        (trial.folder / "seen.json").write_text(json.dumps(found))
"""


def run_with(plugin, of_rank_1, out):
    """Run a trial of two ranks, the second of which executes a line; return the exit status and the folder."""
    plugin.write_text(PLUGIN.format(of_rank_1=of_rank_1))
    more = ("--methods", "dense", "--epochs", "1", "--plugin", str(plugin), "--log", "seen", "--out", str(out))
    answer = subprocess.run(
        [sys.executable, "run_suite.py", *ARGUMENTS, *more], cwd=ROOT, capture_output=True, text=True, check=False
    )
    (folder,) = out.glob("trials/*")
    return answer.returncode, folder


@pytest.mark.slow
def test_a_rank_that_fails_when_it_ends_does_not_undo_the_trial(tmp_path):
    status, folder = run_with(tmp_path / "late.py", "atexit.register(lambda: os._exit(3))", tmp_path / "out")
    assert status == 0
    record = json.loads((folder / "trial.json").read_text())
    assert (record["status"], record["message"]) == ("done", "")
    assert set(record["files"]) == {"model.pt", "epochs.jsonl", "layers.csv"}
    message = "rank 1 ended with exit status 3, after the trial was done; its result is kept"
    assert message in (folder / "log.txt").read_text()


@pytest.mark.slow
def test_callbacks_are_told_the_cause_that_the_record_has(tmp_path):
    """Rank 0 itself only sees that the connection has ended."""
    wrong = "from suite.engine.training.trainer import Trainer; Trainer.fit = lambda self: 1 / 0"
    status, folder = run_with(tmp_path / "wrong.py", wrong, tmp_path / "out")
    assert status == 1
    cause = ["error", "rank 1: ZeroDivisionError: division by zero"]
    assert json.loads((folder / "seen.json").read_text()) == [cause, cause]


@pytest.mark.slow
def test_a_wrong_command_ends_on_all_ranks_with_the_same_status():
    for arguments, words in (
        (("--methods", "denes"), "did you mean 'dense'"),
        (("--methods", "dense", "--nproc-per-trial", "3"), "Slurm has started 2 processes, all of which train each"),
        (("--methods", "dense", "--jobs", "2"), "which train one trial at a time"),
    ):
        port = free_port()
        commands = [started_by_slurm(rank, *arguments, port=port) for rank in (0, 1)]
        said = [command.communicate()[1] for command in commands]
        assert [command.returncode for command in commands] == [2, 2]
        assert words in said[0]
        assert not said[1].strip()


def test_an_allocation_is_read_from_the_environment(monkeypatch):
    for name in ("WORLD_SIZE", "RANK", "LOCAL_RANK", "SLURM_STEP_NUM_TASKS", "PDT_RANK", "PDT_ALLOCATION"):
        monkeypatch.delenv(name, raising=False)
    assert Allocation.of_environment() is None
    monkeypatch.setenv("SLURM_NTASKS", "8")  # a batch script, outside of a step
    assert Allocation.of_environment() is None
    for name, value in {"WORLD_SIZE": "4", "RANK": "3", "LOCAL_RANK": "1", "MASTER_ADDR": "here"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UsageError, match="the environment of torchrun or Slurm is incomplete: 'MASTER_PORT'"):
        Allocation.of_environment()
    monkeypatch.setenv("MASTER_PORT", "29500")
    found = Allocation.of_environment()
    assert (found.rank, found.size, found.local_rank, found.address, found.port) == (3, 4, 1, "here", 29500)
    monkeypatch.setenv("PDT_RANK", "1")
    assert Allocation.of_environment() is None


def test_the_cause_is_what_the_other_failures_follow_from():
    lost = Failure(0, "error", "RuntimeError: Connection closed by peer", lost_others=True)
    own = Failure(1, "oom", "not enough memory")
    assert cause([lost, own]) == own
    assert own.in_words() == "rank 1: not enough memory"
    assert cause([lost]) == lost
    assert Failure(1, "error", "rank 1 was killed by signal 9").in_words() == "rank 1 was killed by signal 9"


def test_what_cannot_work_is_one_line():
    for arguments, words in (
        (["--nproc-per-trial", "two"], "nproc-per-trial"),
        (["--nproc-per-trial", "2", "--set", "recipe.execution=compile"], "take eager, or one process per trial"),
        (["--nproc-per-trial", "4", "--batch-size", "2"], "a batch of 2 is too small for 4 processes"),
    ):
        answer = pdt("--task", "digits", "--preset", "smoke", "--methods", "dense", *arguments)
        assert answer.returncode == 2
        assert words in answer.stderr
        assert len(answer.stderr.strip().splitlines()) == 1
