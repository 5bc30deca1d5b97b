"""Killed trials and killed runs, with real processes: the rest finishes, and the same command goes on bit for bit."""

import itertools
import json
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

from suite import registry
from suite.errors import UsageError
from suite.network import model_files
from suite.network.planned_layer import PlannedLayer
from suite.runs.spec import TrialSpec
from suite.runs.trial import Trial
from suite.task import DataCopy

ROOT = Path(__file__).parents[2]
NAMES = ("dense", "sdgp", "prunetrain")
PRUNETRAIN = "prunetrain[gating=true,dynamic_batch=start]"  # all that a reconfiguration may change
METHODS = f"dense,sdgp,{PRUNETRAIN}"
TIMES = ("train_time_s", "eval_time_s", "reconfigure_time_s")
# Long enough to be killed in the middle; PruneTrain reconfigures from the second epoch on.
OPTIONS = ("--task", "digits", "--preset", "smoke", "--epochs", "8", "--set", "recipe.train_images=640")


def command(out, methods=METHODS):
    return [sys.executable, str(ROOT / "run_suite.py"), "--methods", methods, *OPTIONS, "--out", str(out)]


def run(out, methods=METHODS):
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run(command(out, methods), capture_output=True, text=True, timeout=280, env=environment)


def start(out, methods=METHODS, **variables):
    environment = os.environ | {"OMP_NUM_THREADS": "1"} | variables
    return subprocess.Popen(
        command(out, methods), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment
    )


def trial(out, method):
    return next((out / "trials").glob(f"{method}-*"))


def records(folder):
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
    """The process that trains in a folder, guardian and compilers apart."""
    for process in psutil.process_iter(["cmdline"]):
        if process.info["cmdline"] and str(folder) in process.info["cmdline"] and process.children():
            return process
    return None


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    out = tmp_path_factory.mktemp("undisturbed") / "out"
    done = run(out)
    assert done.returncode == 0, done.stdout + done.stderr
    return out


def assert_same_results(out, undisturbed):
    for method in NAMES:
        ours, theirs = trial(out, method), trial(undisturbed, method)
        assert ours.name == theirs.name
        assert records(ours) == records(theirs)
        assert [record["epoch"] for record in records(ours)] == list(range(1, 9))
        assert all(before < after for before, after in itertools.pairwise(train_times(ours)))  # summed over attempts
        one, other = (model_files.load(folder / "model.pt") for folder in (ours, theirs))
        assert one["architecture"] == other["architecture"]
        for name, tensor in other["tensors"].items():
            assert torch.equal(one["tensors"][name], tensor), (method, name)
        assert (ours / "layers.csv").read_text() == (theirs / "layers.csv").read_text()
        assert not (ours / "checkpoint.pt").exists()
    left, right = (pd.read_csv(folder / "results.csv") for folder in (out, undisturbed))
    exact = [c for c in left if c.startswith(("test_", "best_", "train_flops", "inference_flops", "params", "nonzero"))]
    pd.testing.assert_frame_equal(left[["trial_id", "status", *exact]], right[["trial_id", "status", *exact]])


@pytest.mark.parametrize(("method", "epochs"), [("dense", 2), ("prunetrain", 3)])
def test_killed_trial_is_named_and_the_rest_finish(method, epochs, undisturbed, tmp_path):
    out = tmp_path / "out"
    running = start(out)
    wait_for(lambda: epochs_done(out, method) >= epochs)
    victim = trial_process(trial(out, method))
    os.kill(victim.pid, signal.SIGKILL)
    assert running.wait(timeout=200) == 1
    table = pd.read_csv(out / "results.csv").set_index("method")
    assert table.loc[method, "status"] == "error"
    assert table.loc[method, "message"] == "killed by signal 9"
    assert (table.drop(method)["status"] == "done").all()
    assert "killed by signal 9" in (out / "report.md").read_text(encoding="utf-8")
    if method == "prunetrain":
        assert any(record["reconfigured"] for record in records(trial(out, method)))
    assert run(out).returncode == 0
    assert "resumed after epoch" in (trial(out, method) / "log.txt").read_text(encoding="utf-8")
    assert_same_results(out, undisturbed)


@pytest.mark.parametrize("method", ["sdgp", "prunetrain"])
def test_killed_run_leaves_no_process_and_goes_on_where_it_was(method, undisturbed, tmp_path):
    out = tmp_path / "out"
    running = start(out)
    wait_for(lambda: epochs_done(out, method) >= 3)
    family = [*psutil.Process(running.pid).children(recursive=True)]
    assert family
    running.kill()
    running.wait()
    _, alive = psutil.wait_procs(family, timeout=20)
    assert not alive
    dense = trial(out, "dense") / "trial.json"
    before = dense.stat().st_mtime_ns
    assert run(out).returncode == 0
    assert dense.stat().st_mtime_ns == before, "a finished trial ran again"
    assert_same_results(out, undisturbed)


def test_times_and_rates_of_a_trial_belong_together(undisturbed):
    table = pd.read_csv(undisturbed / "results.csv")
    assert (table["samples_per_s"] * table["train_time_s"]).tolist() == pytest.approx([8 * 640] * 3)
    assert (table["wall_time_s"] > table["train_time_s"] + table["eval_time_s"]).all()
    assert (table["reconfigure_time_s"] < table["train_time_s"]).all()
    assert (table["peak_rss_bytes"] > table["peak_memory_bytes"]).all()


def test_same_command_again_runs_nothing(undisturbed):
    before = {path: path.stat().st_mtime_ns for path in (undisturbed / "trials").rglob("*")}
    assert run(undisturbed).returncode == 0
    assert {path: path.stat().st_mtime_ns for path in (undisturbed / "trials").rglob("*")} == before


def test_record_written_after_the_last_checkpoint_is_cut_off(undisturbed, tmp_path):
    """A kill between an epoch's record and its checkpoint leaves one line too many."""
    out = tmp_path / "out"
    running = start(out, PRUNETRAIN)
    wait_for(lambda: epochs_done(out, "prunetrain") >= 2)
    running.kill()
    running.wait()
    wait_for(lambda: trial_process(trial(out, "prunetrain")) is None)
    path = trial(out, "prunetrain") / "epochs.jsonl"
    path.write_text(path.read_text() + path.read_text().splitlines()[-1] + "\n")
    assert run(out, PRUNETRAIN).returncode == 0
    assert records(trial(out, "prunetrain")) == records(trial(undisturbed, "prunetrain"))


def test_final_model_opens_without_the_run(undisturbed, tmp_path):
    source = trial(undisturbed, "prunetrain")
    alone = tmp_path / "model.pt"
    alone.write_bytes((source / "model.pt").read_bytes())
    model = model_files.load_model(alone)
    table = pd.read_csv(undisturbed / "results.csv").set_index("method")
    assert sum(p.numel() for p in model.parameters()) == table.loc["prunetrain", "params"]
    assert table.loc["prunetrain", "params"] < table.loc["prunetrain", "params_dense"]
    assert not any(isinstance(layer, PlannedLayer) for layer in model.modules())
    # The model that results.csv describes: its accuracy on the test set, computed anew.
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


@pytest.fixture(scope="module")
def interrupted(undisturbed, tmp_path_factory):
    """A folder whose one trial was killed after its second epoch."""
    out = tmp_path_factory.mktemp("interrupted") / "out"
    running = start(out, "dense")
    wait_for(lambda: epochs_done(out, "dense") >= 3)
    running.kill()
    running.wait()
    wait_for(lambda: trial_process(trial(out, "dense")) is None)
    return out


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
def test_damaged_files_of_an_attempt_give_one_line_that_says_what_to_do(damage, interrupted, tmp_path):
    folder = tmp_path / "trial"
    shutil.copytree(trial(interrupted, "dense"), folder)
    damage(folder)
    spec = TrialSpec.from_json(json.loads((folder / "trial.json").read_text())["spec"])
    with pytest.raises(UsageError, match=r"cannot be resumed .*checkpoint\.pt to train from the beginning"):
        Trial(spec, folder).run({}, {})


def test_resume_with_other_threads_is_noted(interrupted, tmp_path):
    out = tmp_path / "out"
    shutil.copytree(interrupted, out)
    environment = os.environ | {"OMP_NUM_THREADS": "2"}
    done = subprocess.run(command(out, "dense"), capture_output=True, text=True, timeout=280, env=environment)
    assert done.returncode == 0
    record = json.loads((trial(out, "dense") / "trial.json").read_text())
    assert any("number of threads was 1 until" in note for note in record["provenance"]["resumed_elsewhere"])
    (attempt,) = record["provenance"]["attempts"]
    assert attempt["until_epoch"] >= 2
    report = (out / "report.md").read_text(encoding="utf-8")
    assert "One trial was interrupted and went on later" in report
    assert "number of threads was 1 until" in report.partition("## Can I trust it?")[0]


def test_a_trial_that_began_with_plain_torch_goes_on_with_it(tmp_path):
    out = tmp_path / "out"
    running = start(out, "sdgp", PDT_CPU_KERNEL="0")
    wait_for(lambda: epochs_done(out, "sdgp") >= 2)
    running.kill()
    running.wait(timeout=60)
    wait_for(lambda: trial_process(trial(out, "sdgp")) is None)
    done = run(out, "sdgp")
    assert done.returncode == 0, done.stdout + done.stderr
    provenance = json.loads((trial(out, "sdgp") / "trial.json").read_text())["provenance"]
    assert provenance["attempts"]
    assert provenance["pruning"] == {"cpu": "reference"}
    assert provenance["kernels"] == "prune_nm: plain torch, as when the trial began"
    assert "resumed_elsewhere" not in provenance


def test_trial_without_its_model_is_not_done(undisturbed, tmp_path):
    out = tmp_path / "out"
    shutil.copytree(undisturbed, out)
    (trial(out, "sdgp") / "model.pt").unlink()
    assert run(out).returncode == 0
    assert_same_results(out, undisturbed)


def test_flipped_bit_in_a_model_is_noticed(undisturbed, tmp_path):
    content = bytearray((trial(undisturbed, "dense") / "model.pt").read_bytes())
    content[len(content) // 2] ^= 1
    (tmp_path / "model.pt").write_bytes(content)
    with pytest.raises(UsageError, match="damaged"):
        model_files.load_model(tmp_path / "model.pt")


def test_files_that_are_no_models_are_refused_in_one_line(undisturbed, tmp_path):
    for content in (b"", b"text"):
        (tmp_path / "model.pt").write_bytes(content)
        with pytest.raises(UsageError, match="damaged, or not a file of tensors"):
            model_files.load_model(tmp_path / "model.pt")
    torch.save({"x": 1}, tmp_path / "model.pt")
    with pytest.raises(UsageError, match="not a model of this suite"):
        model_files.load_model(tmp_path / "model.pt")
    with pytest.raises(UsageError, match="no such file"):
        model_files.load_model(tmp_path / "nothing.pt")


def test_trial_left_by_a_killed_command_is_named_by_the_next(interrupted, tmp_path):
    out = tmp_path / "out"
    shutil.copytree(interrupted, out)
    assert run(out, "sdgp").returncode == 0
    table = pd.read_csv(out / "results.csv").set_index("method")
    assert table.loc["dense", "status"] == "error"
    assert table.loc["sdgp", "status"] == "done"
