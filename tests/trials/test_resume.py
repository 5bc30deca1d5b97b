"""Killed trials and commands, with real processes: the others finish, and the same command continues bit for bit."""

import dataclasses
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import torch
from engine_children import alive, wait_until
from trials_here import let_run_here

from kernels.prune import cpu as prune_on_cpu
from suite.cli import main as cli
from suite.engine.network import model_files
from suite.errors import UsageError
from suite.trials.folder.records import read_record
from suite.trials.trial_run import TrialRun

ROOT = Path(__file__).parents[2]
NAMES = ("dense", "sdgp", "prunetrain")
SDGP = "sdgp[backend=masked]"  # what it would choose by measurement need not be the same in two commands
PRUNETRAIN = "prunetrain[gating=true,dynamic_batch=start,ratio=0.8]"  # everything that a reconfiguration may change
METHODS = f"dense,{SDGP},{PRUNETRAIN}"
TIMES = ("train_time_s", "eval_time_s", "reconfigure_time_s")
EPOCHS = 4  # PruneTrain reconfigures from the second epoch
IMAGES = 96

# A callback that kills, between the record of an epoch and its checkpoint, the trial or the command that runs it.
KILLS = """
import os, signal, time
from suite.registry import register

@register("callback", "kills")
class Kills:
    def on_epoch(self, trial, record):
        for one in os.environ["KILLS"].split(","):
            method, epoch, victim = one.split()
            if trial.trial_id.startswith(method) and record["epoch"] == int(epoch):
                (trial.folder / "pid").write_text(str(os.getpid()))
                os.kill(os.getpid() if victim == "trial" else os.getppid(), signal.SIGKILL)
                time.sleep(60)
"""


def arguments(out, methods=METHODS, kills=None):
    """Return a command line; `kills` is a path for the file of the callback that kills."""
    more = []
    if kills:
        kills.write_text(KILLS)
        more = ["--plugin", str(kills), "--log", "kills"]
    small = ("--preset", "smoke", "--model", "resnet9[width=0.0625]", "--batch-size", "32", "--epochs", str(EPOCHS))
    images = ("--set", f"recipe.train_images={IMAGES}", "--set", "recipe.test_images=64")
    return ["--methods", methods, "--task", "digits", *small, *images, *more, "--out", str(out)]


def run(out, methods=METHODS, kills=None):
    """Run a command and its trials in this process, which changes no result, and return the command's exit status."""
    with pytest.MonkeyPatch.context() as patch:
        let_run_here(patch)
        return cli.main(arguments(out, methods, kills))


def fork(out, methods, kills=None, when="", **variables):
    """Let a fork of this process, which has imported torch already, `run` a command, and return its exit status."""
    pid = os.fork()
    if pid == 0:
        status = 70
        try:
            os.environ.update({"KILLS": when, **variables})
            prune_on_cpu.load.cache_clear()  # this process may have loaded the kernel
            status = run(out, methods, kills)
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def trial(out, method):
    return next((out / "trials").glob(f"{method}-*"))


def provenance(out, method):
    return json.loads((trial(out, method) / "trial.json").read_text())["provenance"]


def records(folder):
    return [json.loads(line) for line in (folder / "epochs.jsonl").read_text(encoding="utf-8").splitlines()]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """Folder of a command that was not interrupted."""
    out = tmp_path_factory.mktemp("undisturbed") / "out"
    assert run(out) == 0
    return out


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """Folder of a command whose first trial was killed, and that was itself killed while its second trial ran."""
    folder = tmp_path_factory.mktemp("killed")
    command = [sys.executable, str(ROOT / "run_suite.py"), *arguments(folder / "out", kills=folder / "kills.py")]
    variables = os.environ | {"KILLS": "dense 3 trial,sdgp 3 command"}
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=variables, check=False)
    assert done.returncode == -signal.SIGKILL
    return folder / "out"


@pytest.fixture
def copy(killed, tmp_path):
    return Path(shutil.copytree(killed, tmp_path / "out"))


def test_a_killed_trial_is_named_and_no_trial_survives_its_command(killed):
    assert not list((killed / "trials").glob("prunetrain-*"))
    (dense, sdgp) = (read_record(trial(killed, method)) for method in NAMES[:2])
    assert (dense.status, dense.message, sdgp.status) == ("error", "killed by signal 9", "running")
    wait_until(lambda: not alive(int((trial(killed, "sdgp") / "pid").read_text())))


def test_a_command_that_is_killed_twice_continues_where_it_was(copy, undisturbed, tmp_path, caplog):
    assert fork(copy, METHODS, tmp_path / "kills.py", "prunetrain 4 trial") == -signal.SIGKILL
    assert any(record["reconfigured"] for record in records(trial(copy, "prunetrain"))[:3])
    dense = trial(copy, "dense") / "trial.json"
    before = dense.stat().st_mtime_ns
    (trial(copy, "sdgp") / "model.pt").unlink()  # a trial without its model is not done
    with caplog.at_level("INFO"):
        assert run(copy) == 0
    assert caplog.text.count("resumed after epoch 3") == 1
    assert dense.stat().st_mtime_ns == before, "a finished trial ran again"
    assert [len(provenance(copy, method).get("attempts", [])) for method in NAMES] == [1, 0, 1]
    (weights,) = {provenance(copy, method)["initial_weights"] for method in NAMES}
    assert len(weights) == 64
    for method in NAMES:
        ours, theirs = trial(copy, method), trial(undisturbed, method)
        assert ours.name == theirs.name
        without_times = [
            [{name: value for name, value in record.items() if name not in TIMES} for record in records(folder)]
            for folder in (ours, theirs)
        ]
        assert without_times[0] == without_times[1]
        assert [record["epoch"] for record in records(ours)] == list(range(1, EPOCHS + 1))
        times = [record["train_time_s"] for record in records(ours)]
        assert all(earlier < later for earlier, later in itertools.pairwise(times))  # sum over all attempts
        one, other = (model_files.load(folder / "model.pt") for folder in (ours, theirs))
        assert one["architecture"] == other["architecture"]
        for name, tensor in other["tensors"].items():
            assert torch.equal(one["tensors"][name], tensor), (method, name)
        assert (ours / "layers.csv").read_text() == (theirs / "layers.csv").read_text()
        assert not (ours / "checkpoint.pt").exists()
    left, right = (pd.read_csv(folder / "results.csv") for folder in (copy, undisturbed))
    exact = [c for c in left if c.startswith(("test_", "best_", "train_flops", "inference_flops", "params", "nonzero"))]
    pd.testing.assert_frame_equal(left[["trial_id", "status", *exact]], right[["trial_id", "status", *exact]])


def test_times_and_rates_of_a_trial_belong_together(undisturbed):
    table = pd.read_csv(undisturbed / "results.csv")
    assert (table["samples_per_s"] * table["train_time_s"]).tolist() == pytest.approx([EPOCHS * IMAGES] * 3)
    assert (table["wall_time_s"] > table["train_time_s"] + table["eval_time_s"]).all()
    assert (table["reconfigure_time_s"] < table["train_time_s"]).all()
    assert (table["peak_rss_bytes"] > table["peak_memory_bytes"]).all()


def truncate(folder):
    path = folder / "checkpoint.pt"
    path.write_bytes(path.read_bytes()[:1000])


def replace_by_another(folder):
    torch.save({"weights": torch.zeros(2)}, folder / "checkpoint.pt")


def lose_records(folder):
    (folder / "epochs.jsonl").unlink()


def repeat_a_record(folder):
    path = folder / "epochs.jsonl"
    path.write_text(path.read_text().splitlines()[0] + "\n" + path.read_text())


def take_that_of_another_trial(folder):
    state = torch.load(folder / "checkpoint.pt", weights_only=True)
    torch.save(state | {"trial": "ab" * 32}, folder / "checkpoint.pt")


DAMAGES = [truncate, replace_by_another, lose_records, repeat_a_record, take_that_of_another_trial]


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_files_of_an_attempt_give_one_line_that_says_what_to_do(damage, killed, tmp_path):
    folder = tmp_path / "trial"
    shutil.copytree(trial(killed, "dense"), folder)
    damage(folder)
    spec = dataclasses.replace(read_record(trial(killed, "dense")).spec, callbacks=(), plugins=())
    with pytest.raises(UsageError, match=r"cannot be resumed .*checkpoint\.pt to start from the beginning"):
        TrialRun(spec, folder).run()


def test_a_trial_continues_with_its_backend_and_notes_other_threads(tmp_path):
    out, kills = tmp_path / "out", tmp_path / "kills.py"
    assert fork(out, SDGP, kills, "sdgp 2 trial", PDT_CPU_KERNEL="0") == -signal.SIGKILL
    checkpoint_file = trial(out, "sdgp") / "checkpoint.pt"
    state = torch.load(checkpoint_file, weights_only=True)
    state["provenance"]["hardware"]["threads"] = 7
    torch.save(state, checkpoint_file)
    assert fork(out, SDGP) == 0
    found = provenance(out, "sdgp")
    (attempt,) = found["attempts"]
    assert attempt["until_epoch"] == 1
    assert found["pruning"] == {"cpu": "reference"}
    assert found["kernels"].startswith("prune_nm: plain torch, as ")
    assert found["resumed_elsewhere"] == [f"number of threads was 7 until epoch 1, then {torch.get_num_threads()}"]
