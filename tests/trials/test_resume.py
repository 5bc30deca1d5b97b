"""Killed trials and commands, with real processes: the others finish, and the same command continues bit for bit."""

import itertools
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import psutil
import pytest
import torch
from trials_here import run_here

import reports
from kernels.prune import cpu as prune_on_cpu
from suite import checkpoint, registry
from suite.cli import main as cli
from suite.engine.network import model_files
from suite.engine.network.planned_layer import PlannedLayer
from suite.errors import UsageError
from suite.task import DataCopy
from suite.trials.engines.local import LocalEngine
from suite.trials.spec import TrialSpec
from suite.trials.trial_run import TrialRun

ROOT = Path(__file__).parents[2]
NAMES = ("dense", "sdgp", "prunetrain")
SDGP = "sdgp[backend=masked]"  # what it would choose by measurement need not be the same in two commands
PRUNETRAIN = "prunetrain[gating=true,dynamic_batch=start]"  # everything that a reconfiguration may change
METHODS = f"dense,{SDGP},{PRUNETRAIN}"
TIMES = ("train_time_s", "eval_time_s", "reconfigure_time_s")
EPOCHS = 6  # long enough to be killed during training; PruneTrain reconfigures from the second epoch
IMAGES = 320


def arguments(out, methods=METHODS, images=IMAGES):
    recipe = ("--epochs", str(EPOCHS), "--set", f"recipe.train_images={images}", "--set", "recipe.test_images=64")
    return ["--methods", methods, "--task", "digits", "--preset", "smoke", *recipe, "--out", str(out)]


def run(out, methods=METHODS, images=IMAGES, report=False):
    """Run a command and its trials in this process, which changes no result, and return the command's exit status."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalEngine, "run", run_here)
        if not report:  # its figures take longer than a trial
            patch.setattr(reports, "write_report", lambda folder, *options, **more: reports.Written([], ()))
        return cli.main(arguments(out, methods, images))


def start(out, methods=METHODS):
    """Start a command as a process that can be killed, and whose trials are processes."""
    command = [sys.executable, str(ROOT / "run_suite.py"), *arguments(out, methods)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment)


def fork(*what, **variables):
    """Let a fork of this process, which has imported torch already, `run` a command, and return the fork's id."""
    pid = os.fork()
    if pid == 0:
        status = 70
        try:
            os.environ.update(variables)
            if variables.get("PDT_CPU_KERNEL") == "0":
                prune_on_cpu.load.cache_clear()  # this process may have loaded the kernel
            status = run(*what)
        finally:
            os._exit(status)
    return pid


def kill_fork(pid, out, method, after):
    """Kill a fork while a method trains in it."""
    wait_for(lambda: epochs_done(out, method) >= after)
    os.kill(pid, signal.SIGKILL)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL


def trial(out, method):
    return next((out / "trials").glob(f"{method}-*"))


def provenance(out, method):
    return json.loads((trial(out, method) / "trial.json").read_text())["provenance"]


def records(folder):
    """Return the records of a trial's epochs without their times."""
    lines = (folder / "epochs.jsonl").read_text(encoding="utf-8").splitlines()
    return [{k: v for k, v in json.loads(line).items() if k not in TIMES} for line in lines]


def train_times(folder):
    lines = (folder / "epochs.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line)["train_time_s"] for line in lines]


def wait_for(condition, seconds=120):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.02)


def epochs_done(out, method):
    found = list((out / "trials").glob(f"{method}-*/epochs.jsonl"))
    return len(found[0].read_text(encoding="utf-8").splitlines()) if found else 0


def trial_process(folder):
    """Return the process that trains in a folder, without its guardian and compilers."""
    for process in psutil.process_iter(["cmdline"]):
        if process.info["cmdline"] and str(folder) in process.info["cmdline"] and process.children():
            return process
    return None


def kill_trial(out, method, after):
    wait_for(lambda: epochs_done(out, method) >= after)
    os.kill(trial_process(trial(out, method)).pid, signal.SIGKILL)


def kill_command(running, out, method, after):
    """Kill a command while a method trains, and check that none of its processes survives."""
    wait_for(lambda: epochs_done(out, method) >= after)
    family = [*psutil.Process(running.pid).children(recursive=True)]
    assert family
    running.kill()
    running.wait()
    _, alive = psutil.wait_procs(family, timeout=20)
    assert not alive


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """Folder of a command that was not interrupted."""
    out = tmp_path_factory.mktemp("undisturbed") / "out"
    assert run(out) == 0
    return out


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """Folder whose command was killed while SDGP trained: dense is done, and SDGP has a checkpoint."""
    out = tmp_path_factory.mktemp("killed") / "out"
    assert run(out, "dense") == 0
    kill_command(start(out), out, "sdgp", 3)
    return out


@pytest.fixture
def copy(killed, tmp_path):
    shutil.copytree(killed, tmp_path / "out")
    return tmp_path / "out"


def assert_same_results(out, undisturbed, methods=NAMES):
    for method in methods:
        ours, theirs = trial(out, method), trial(undisturbed, method)
        assert ours.name == theirs.name
        assert records(ours) == records(theirs)
        assert [record["epoch"] for record in records(ours)] == list(range(1, EPOCHS + 1))
        assert all(before < after for before, after in itertools.pairwise(train_times(ours)))  # sum over all attempts
        one, other = (model_files.load(folder / "model.pt") for folder in (ours, theirs))
        assert one["architecture"] == other["architecture"]
        for name, tensor in other["tensors"].items():
            assert torch.equal(one["tensors"][name], tensor), (method, name)
        assert (ours / "layers.csv").read_text() == (theirs / "layers.csv").read_text()
        assert not (ours / "checkpoint.pt").exists()
    tables = (pd.read_csv(folder / "results.csv") for folder in (out, undisturbed))
    left, right = (table[table["method"].isin(methods)].reset_index(drop=True) for table in tables)
    assert len(left) == len(methods)
    exact = [c for c in left if c.startswith(("test_", "best_", "train_flops", "inference_flops", "params", "nonzero"))]
    pd.testing.assert_frame_equal(left[["trial_id", "status", *exact]], right[["trial_id", "status", *exact]])


def test_killed_trials_are_named_and_the_rest_finish(undisturbed, tmp_path, caplog):
    out = tmp_path / "out"
    methods = f"dense,{PRUNETRAIN}"
    running = start(out, methods)
    kill_trial(out, "dense", 2)
    assert running.wait(timeout=200) == 1
    table = pd.read_csv(out / "results.csv").set_index("method")
    assert table.loc["dense", ["status", "message"]].tolist() == ["error", "killed by signal 9"]
    assert table.loc["prunetrain", "status"] == "done"
    assert "killed by signal 9" in (out / "report.md").read_text(encoding="utf-8")
    assert any(record["reconfigured"] for record in records(trial(out, "prunetrain")))
    (trial(out, "prunetrain") / "model.pt").unlink()  # a trial without its model is not done
    with caplog.at_level(logging.INFO):
        assert run(out, methods) == 0
    assert caplog.text.count("resumed after epoch") == 1
    assert [len(provenance(out, method).get("attempts", [])) for method in ("dense", "prunetrain")] == [1, 0]
    (weights,) = {provenance(out, method)["initial_weights"] for method in ("dense", "prunetrain")}
    assert len(weights) == 64
    assert_same_results(out, undisturbed, ("dense", "prunetrain"))


def test_a_command_that_is_killed_twice_continues_where_it_was(copy, undisturbed):
    dense = trial(copy, "dense") / "trial.json"
    before = dense.stat().st_mtime_ns
    kill_fork(fork(copy), copy, "prunetrain", 3)
    # A kill between the record of an epoch and its checkpoint leaves one line too many.
    path = trial(copy, "prunetrain") / "epochs.jsonl"
    path.write_text(path.read_text() + path.read_text().splitlines()[-1] + "\n")
    assert run(copy) == 0
    assert dense.stat().st_mtime_ns == before, "a finished trial ran again"
    assert_same_results(copy, undisturbed)


def test_times_and_rates_of_a_trial_belong_together(undisturbed):
    table = pd.read_csv(undisturbed / "results.csv")
    assert (table["samples_per_s"] * table["train_time_s"]).tolist() == pytest.approx([EPOCHS * IMAGES] * 3)
    assert (table["wall_time_s"] > table["train_time_s"] + table["eval_time_s"]).all()
    assert (table["reconfigure_time_s"] < table["train_time_s"]).all()
    assert (table["peak_rss_bytes"] > table["peak_memory_bytes"]).all()


def test_same_command_again_runs_nothing(undisturbed):
    before = {path: path.stat().st_mtime_ns for path in (undisturbed / "trials").rglob("*")}
    assert run(undisturbed) == 0
    assert {path: path.stat().st_mtime_ns for path in (undisturbed / "trials").rglob("*")} == before


def test_final_model_opens_without_the_run(undisturbed, tmp_path):
    source = trial(undisturbed, "prunetrain")
    alone = tmp_path / "model.pt"
    alone.write_bytes((source / "model.pt").read_bytes())
    model = checkpoint.load_model(alone)
    table = pd.read_csv(undisturbed / "results.csv").set_index("method")
    assert sum(p.numel() for p in model.parameters()) == table.loc["prunetrain", "params"]
    assert table.loc["prunetrain", "params"] < table.loc["prunetrain", "params_dense"]
    assert not any(isinstance(layer, PlannedLayer) for layer in model.modules())
    # Compute the accuracy of the final model on the test set again; results.csv must have the same value.
    record = json.loads((source / "trial.json").read_text())
    task = registry.get("task", "digits")()
    spec = TrialSpec.from_json(record["spec"])
    splits = task.load(DataCopy(**spec.data_copy), spec.make_recipe(), 0, torch.device("cpu"))
    correct = 0
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=spec.dtype == "bfloat16"):
        for images, labels in splits.test.epoch(0, 500):
            logits = model(images).float()
            if spec.recipe["flip_tta"]:
                logits += model(images.flip(3)).float()
            correct += (logits.argmax(1) == labels).sum().item()
    assert correct / splits.test.num_samples == pytest.approx(record["result"]["test_accuracy"], abs=1e-9)


def truncate(folder):
    path = folder / "checkpoint.pt"
    path.write_bytes(path.read_bytes()[:1000])


def empty(folder):
    (folder / "checkpoint.pt").write_bytes(b"")


def replace_by_another(folder):
    torch.save({"weights": torch.zeros(2)}, folder / "checkpoint.pt")


def lose_records(folder):
    (folder / "epochs.jsonl").unlink()


def damage_records(folder):
    path = folder / "epochs.jsonl"
    path.write_text("garbage\n" + path.read_text().split("\n", 1)[1])


def change_records(folder):
    path = folder / "epochs.jsonl"
    path.write_text(path.read_text().replace('"epoch": 1, ', '"epoch": 1, "more": 1, ', 1))


def take_that_of_another_trial(folder):
    state = torch.load(folder / "checkpoint.pt", weights_only=True)
    torch.save(state | {"trial": "ab" * 32}, folder / "checkpoint.pt")


def flip_a_bit(folder):
    path = folder / "checkpoint.pt"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


DAMAGES = [truncate, empty, replace_by_another, lose_records, damage_records, change_records, flip_a_bit]


@pytest.mark.parametrize("damage", [*DAMAGES, take_that_of_another_trial])
def test_damaged_files_of_an_attempt_give_one_line_that_says_what_to_do(damage, killed, tmp_path):
    folder = tmp_path / "trial"
    shutil.copytree(trial(killed, "sdgp"), folder)
    damage(folder)
    spec = TrialSpec.from_json(json.loads((folder / "trial.json").read_text())["spec"])
    with pytest.raises(UsageError, match=r"cannot be resumed .*checkpoint\.pt to start from the beginning"):
        TrialRun(spec, folder).run({}, {})


def test_a_trial_continues_with_its_backend_and_notes_other_threads(tmp_path):
    out = tmp_path / "out"
    what = (out, SDGP, 64)  # plain torch prunes slowly
    kill_fork(fork(*what, OMP_NUM_THREADS="1", PDT_CPU_KERNEL="0"), out, "sdgp", EPOCHS - 3)
    assert os.waitpid(fork(*what, True, OMP_NUM_THREADS="2"), 0)[1] == 0
    found = provenance(out, "sdgp")
    (attempt,) = found["attempts"]
    assert attempt["until_epoch"] >= EPOCHS - 4
    assert found["pruning"] == {"cpu": "reference"}
    assert found["kernels"].startswith("prune_nm: plain torch, as ")
    (note,) = found["resumed_elsewhere"]
    assert "number of threads was 1 until" in note
    report = (out / "report.md").read_text(encoding="utf-8")
    assert "One trial was interrupted" in report
    assert "number of threads was 1 until" in report.partition("## Can I trust these numbers?")[0]


def test_flipped_bit_in_a_model_is_noticed(undisturbed, tmp_path):
    content = bytearray((trial(undisturbed, "dense") / "model.pt").read_bytes())
    content[len(content) // 2] ^= 1
    (tmp_path / "model.pt").write_bytes(content)
    with pytest.raises(UsageError, match="damaged"):
        checkpoint.load_model(tmp_path / "model.pt")


def test_files_that_are_no_models_are_refused_in_one_line(undisturbed, tmp_path):
    for content in (b"", b"text"):
        (tmp_path / "model.pt").write_bytes(content)
        with pytest.raises(UsageError, match="damaged, or not a file of tensors"):
            checkpoint.load_model(tmp_path / "model.pt")
    torch.save({"x": 1}, tmp_path / "model.pt")
    with pytest.raises(UsageError, match="is not a model of this suite"):
        checkpoint.load_model(tmp_path / "model.pt")
    with pytest.raises(UsageError, match="no such file"):
        checkpoint.load_model(tmp_path / "nothing.pt")


def test_a_trial_left_by_a_killed_command_is_named_by_the_next(copy):
    assert run(copy, "dense") == 0
    table = pd.read_csv(copy / "results.csv").set_index("method")
    assert table.loc["dense", "status"] == "done"
    assert table.loc["sdgp", "status"] == "error"
    assert "did not end" in table.loc["sdgp", "message"]
