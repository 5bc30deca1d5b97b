"""Trials of several processes: started by the command, ended together, resumed."""

import json
import subprocess
import sys
import time
from pathlib import Path
from random import Random

import forks
import psutil
import pytest
from engine_children import wait_until
from toy_suite import assert_one_line

from suite.cli import main as cli
from suite.cli.options import read_run_options
from suite.cli.run import _of_allocation
from suite.errors import UsageError
from suite.trials.ranks import in_allocation
from suite.trials.ranks.allocation import Allocation
from suite.trials.ranks.processes import Failure, cause

ROOT = Path(__file__).parents[2]
ARGUMENTS = ("--task", "digits", "--preset", "smoke", "--dtype", "float32", "--nproc-per-trial", "2")


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


def with_torchrun(*arguments, **options):
    """Start a command twice, as the two ranks of this machine."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "run_suite.py"]
    return forks.STARTED([*command, *arguments], cwd=ROOT, text=True, **options)  # with a command line of its own


def epochs_in(folder):
    return sum(1 for path in folder.glob("trials/*/epochs.jsonl") for _ in path.open())


def processes_of(folder):
    """Return the processes that name a folder in their command line: commands, trials and ranks."""
    return [one for one in psutil.process_iter(["cmdline"]) if str(folder) in " ".join(one.info["cmdline"] or ())]


def rank_of(folder, number):
    """Return the process of a rank of the trial in a folder."""
    for one in sorted(processes_of(folder), key=lambda one: one.pid):  # the guardian that a rank has forked is later
        if "suite.trials.trial" in one.info["cmdline"] and one.environ().get("PDT_RANK") == str(number):
            return one
    raise AssertionError(f"rank {number} does not run")


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.skipif(sys.platform != "linux", reason="processes end with torchrun on Linux only")
def test_no_process_survives_a_kill_and_the_same_command_resumes_to_equal_weights(tmp_path):
    """Killed in turn: a rank, the command of rank 0, and torchrun itself; each at a random time of the training."""
    arguments = ("--methods", "prunetrain", *ARGUMENTS[:-2], "--epochs", "12")
    out, whole, random = tmp_path / "out", tmp_path / "whole", Random(0)
    for number in range(3):
        ended = epochs_in(out)
        running = with_torchrun(*arguments, "--out", str(out), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_until(lambda ended=ended: epochs_in(out) > ended + 1, 240, running)
        time.sleep(random.uniform(0, 2))
        agent = psutil.Process(running.pid)
        victim = (
            rank_of(out, 1),
            next(one for one in agent.children() if one.environ().get("RANK") == "0"),
            agent,
        )[number]
        victim.kill()
        assert running.wait(60) != 0
        wait_until(lambda: not processes_of(out), 45)  # torchrun waits 30 seconds for what it has asked to end
    for folder in (out, whole):
        assert with_torchrun(*arguments, "--out", str(folder), stdout=subprocess.DEVNULL).wait(900) == 0
    (resumed,), (undisturbed,) = (list(folder.glob("trials/*/model.pt")) for folder in (out, whole))
    assert resumed.read_bytes() == undisturbed.read_bytes()
    epochs = [json.loads(line)["epoch"] for line in resumed.with_name("epochs.jsonl").open()]
    assert epochs == list(range(1, 13))


PLUGIN = """
import atexit, os
from suite.registry import register

if os.environ.get("PDT_RANK") == "1":
    atexit.register(lambda: os._exit(3))

@register("callback", "nothing")
class Nothing:
    def on_trial(self, trial, record):
        pass
"""


@pytest.mark.slow
def test_a_rank_that_fails_when_it_ends_does_not_undo_the_trial(tmp_path, started_programs):
    plugin, out = tmp_path / "late.py", tmp_path / "out"
    plugin.write_text(PLUGIN)
    more = ("--methods", "dense", "--epochs", "1", "--plugin", str(plugin), "--log", "nothing", "--out", str(out))
    assert subprocess.run([sys.executable, "run_suite.py", *ARGUMENTS, *more], cwd=ROOT, check=False).returncode == 0
    (folder,) = out.glob("trials/*")
    record = json.loads((folder / "trial.json").read_text())
    assert (record["status"], record["message"]) == ("done", "")
    assert set(record["files"]) == {"model.pt", "epochs.jsonl", "layers.csv"}
    message = "rank 1 ended with exit status 3, after the trial was done; its result is kept"
    assert message in (folder / "log.txt").read_text()


@pytest.mark.slow
def test_a_wrong_command_under_torchrun_is_one_line_of_rank_0():
    wrong = with_torchrun("--methods", "denes", stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    said = wrong.communicate()[1]
    assert wrong.returncode == 1
    assert said.count("did you mean 'dense'") == 1


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        (("--nproc-per-trial", "3"), "--nproc-per-trial 3: torchrun has started 2 processes, which train one trial"),
        (("--jobs", "2"), "--jobs 2: torchrun has started 2 processes, which train one trial at a time"),
        (("--engine", "ray"), "--engine ray: torchrun has started 2 processes"),
    ],
)
def test_options_that_torchrun_decides_are_refused(typed, words):
    with pytest.raises(UsageError, match=words):
        _of_allocation(read_run_options(typed), Allocation(0, 2, 0, "here", 29500))


def test_an_allocation_is_read_from_the_environment(monkeypatch):
    for name in ("WORLD_SIZE", "RANK", "LOCAL_RANK", "SLURM_STEP_NUM_TASKS", "PDT_RANK"):
        monkeypatch.delenv(name, raising=False)
    assert not in_allocation()
    monkeypatch.setenv("SLURM_NTASKS", "8")  # a batch script, outside of a step
    assert not in_allocation()
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "2")
    assert in_allocation()
    for name, value in {"WORLD_SIZE": "4", "RANK": "3", "LOCAL_RANK": "1", "MASTER_ADDR": "here"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UsageError, match="several times without torchrun; let srun start torchrun once"):
        Allocation.of_environment()
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    monkeypatch.setenv("MASTER_PORT", "29500")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert Allocation.of_environment() == Allocation(3, 4, 1, "here", 29500)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert Allocation.of_environment().one_machine
    assert in_allocation()
    monkeypatch.setenv("PDT_RANK", "1")
    assert not in_allocation()


def test_the_cause_is_what_the_other_failures_follow_from():
    lost = Failure(0, "error", "RuntimeError: Connection closed by peer", lost_others=True)
    own = Failure(1, "oom", "not enough memory")
    assert cause([lost, own]) == own
    assert own.in_words() == "rank 1: not enough memory"
    assert cause([lost]) == lost
    assert Failure(1, "error", "rank 1 was killed by signal 9").in_words() == "rank 1 was killed by signal 9"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["two"], "nproc-per-trial"),
        (["2", "--set", "recipe.execution=compile"], "take eager, or one process per trial"),
        (["4", "--batch-size", "2"], "a batch of 2 is too small for 4 processes"),
    ],
)
def test_what_cannot_work_is_one_line(arguments, words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["--task", "digits", "--preset", "smoke", "--nproc-per-trial", *arguments]) == 2
    assert_one_line(capsys.readouterr().err, words)
