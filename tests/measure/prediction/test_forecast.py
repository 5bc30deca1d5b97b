"""What `plan` probes, what it predicts, and what it prints; the probes run in this process, or are replaced."""

import dataclasses
import json

import pytest
from small_trials import spec, write_export

from suite.cli import main as cli
from suite.measure.prediction import forecast as module
from suite.measure.prediction.forecast import forecast, seconds_here, threads_of
from suite.measure.prediction.probe import probe
from suite.measure.prediction.render import KINDS, notes, table, totals
from suite.trials.engines import local
from suite.trials.engines.subprocess_call import SubprocessResult
from suite.trials.folder.records import RUNNING, write_record
from suite.trials.folder.store import Store

SMALL = ["--task", "digits", "--preset", "smoke", "--device", "cpu", "--dtype", "float32", "--epochs", "2"]
SMALL += ["--set", "recipe.train_images=80", "--set", "recipe.test_images=20", "--batch-size", "16"]
SMALL += ["--probe-steps", "2"]

RESULT = {
    "start_s": 1.0,
    "check_s": 0.5,
    "compile_s": 30.0,
    "reconfigure_s": 0.5,
    "save_s": 0.1,
    "epoch_start_s": 0.25,
    "evaluation": [{"images": 360, "per_image": 0.01}],
    "epochs": 1,
    "epochs_left": 3,
    "steady": True,
    "peak_memory_bytes": 1000,
    "params": 10,
    "images": 256,
    "threads": 1,
    "dense_per_image": [1.0],
    "stages": [
        {"epoch": 1, "step_s": 2.0, "timed_steps": 2, "batch_size": 64, "images": 64, "total_steps": 4, "params": 10}
        | {"flops": {"dense": 100.0, "executed": 50.0}}
    ],
}


class Probes:
    """Stands for probes: answers with `RESULT`, and keeps the trials that were probed."""

    def __init__(self, **changes):
        self.trials, self.changes = [], changes

    def __call__(self, trial, folder):
        self.trials.append(trial)
        return {**RESULT, **self.changes}


def forecast_of(trials, folder, probe, only="missing", jobs=1):
    return forecast(trials, folder, only, jobs, probe, lambda line: None)


def test_each_setting_is_probed_once(tmp_path):
    probes = Probes()
    trials = [spec("dense", seed=seed, epochs=epochs) for seed in (0, 1) for epochs in (4, 8)]
    trials.append(spec("dense", batch_size=32))
    found = forecast_of(trials, tmp_path / "none", probes)
    assert len(probes.trials) == 2
    assert probes.trials[0].recipe["epochs"] == 8
    assert [one.prediction.train_s for one in found] == [35, 70, 35, 70, 35]
    assert not (tmp_path / "none").exists()


def test_each_probe_is_announced_with_the_number_of_probes(tmp_path):
    def announced(steady, *trials):
        lines = []
        forecast(trials, tmp_path, "missing", 1, Probes(steady=steady), lines.append)
        return [line.partition(":")[0] for line in lines]

    different = spec("dense", batch_size=32)
    assert announced(True, spec("dense"), spec("dense", seed=1), different) == ["probe 1 of 2", "probe 2 of 2"]
    several = (spec("dense", epochs=4), spec("dense", epochs=8), different)
    assert announced(True, *several) == ["probe 1 of at most 3", "probe 2 of 2"]
    assert announced(False, *several) == ["probe 1 of at most 3", "probe 2 of at most 3", "probe 3 of at most 3"]


def test_epochs_are_a_setting_of_their_own_unless_the_method_is_steady(tmp_path):
    probes = Probes(steady=False)
    forecast_of([spec("dense", epochs=4), spec("dense", epochs=8)], tmp_path, probes)
    assert len(probes.trials) == 2


def test_the_prediction_is_the_probe_times_the_numbers_of_steps_and_batches(tmp_path):
    (one,) = forecast_of([spec("dense", epochs=4)], tmp_path, Probes())
    known = one.prediction
    assert (known.steps, known.flops_dense, known.flops_executed) == (16, 1600.0, 800.0)
    # Four steps of 2 s per epoch, its start, and what the probe's only epoch took to ask for a reconfiguration.
    assert known.train_s == pytest.approx(4 * (4 * 2.0 + 0.25 + 0.5))
    assert known.eval_s == pytest.approx(4 * 360 * 0.01)
    # Autotuning (`compile_s`) is stored by the probe; a start, four checkpoints and six batches of evaluation are not.
    assert known.other_s == pytest.approx(1.0 + 0.5 + 4 * 0.1 + 6 * 500 * 0.01)
    assert one.wall_s == known.train_s + known.eval_s + known.other_s
    assert seconds_here([one, one], 1) == pytest.approx(2 * one.wall_s)
    (seldom,) = forecast_of([spec("dense", epochs=4, eval_every=3)], tmp_path, Probes())
    assert seldom.prediction.eval_s == pytest.approx(2 * 360 * 0.01)


def test_reconfigurations_of_the_probe_stand_for_as_many_epochs_as_it_ran(tmp_path):
    (one,) = forecast_of([spec("dense", epochs=4)], tmp_path, Probes(steady=False, epochs=2, epochs_left=2))
    assert one.prediction.train_s == pytest.approx(4 * (4 * 2.0 + 0.25 + 0.5 / 2))


def test_a_smaller_last_batch_counts_as_its_share(tmp_path):
    (one,) = forecast_of([spec("dense", epochs=4, drop_last=False)], tmp_path, Probes(images=32 + 4 * 64))
    assert one.prediction.train_s == pytest.approx(4 * (4.5 * 2.0 + 0.25 + 0.5))


def test_what_exists_is_not_probed(tmp_path):
    done, failed, new = (spec("dense", seed=seed) for seed in range(3))
    store = Store(tmp_path)
    for trial, status in ((done, "done"), (failed, "error")):
        place = store.trial_folder(trial.trial_id)
        place.mkdir(parents=True)
        write_record(place, trial, status, result={"train_time_s": 7.0})
    # A record without its files is damaged, and the trial runs again.
    found = forecast_of([done, failed, new], tmp_path, Probes())
    assert [(one.status, one.runs) for one in found] == [("error", True), ("error", True), ("", True)]
    found = forecast_of([done, failed, new], tmp_path, Probes(), only="failed")
    assert [one.runs for one in found] == [True, True, False]


def test_an_exported_trial_runs_again_if_another_one_needs_its_model(tmp_path):
    first = spec("dense")
    second = dataclasses.replace(spec("dense", seed=1), depends_on={"dense": first.trial_id})
    write_export(Store(tmp_path).trial_folder(first.trial_id), first)
    assert [(one.status, one.runs) for one in forecast_of([first], tmp_path, Probes())] == [("done", False)]
    found = forecast_of([first, second], tmp_path, Probes())
    assert [(one.status, one.runs) for one in found] == [("error", True), ("", True)]


def test_a_trial_of_a_command_that_runs_now_is_running(tmp_path):
    trial = spec("dense")
    store = Store(tmp_path)
    place = store.trial_folder(trial.trial_id)
    place.mkdir(parents=True)
    write_record(place, trial, RUNNING)
    assert store.status(trial.trial_id) == "error"
    with store.lock():
        (found,) = forecast_of([trial], tmp_path, Probes())
    assert found.status == RUNNING


def test_a_trial_that_waits_for_another_is_predicted_as_dense_training(tmp_path):
    other = spec("prunetrain")
    trial = module.dataclasses.replace(spec("oneshot"), depends_on={"prunetrain": other.trial_id})
    probes = Probes()
    found = forecast_of([other, trial], tmp_path, probes)
    assert {trial.method for trial in probes.trials} == {"prunetrain", "dense"}
    assert found[1].prediction.is_bound
    assert "it depends on prunetrain, which is not done" in found[1].prediction.notes[-1]
    # The second starts when the first has ended.
    assert seconds_here(found, 2) == pytest.approx(found[0].wall_s + found[1].wall_s)


def test_a_probe_that_fails_is_named_and_the_others_count(tmp_path):
    def probe(trial, folder):
        return {"error": "no memory"} if trial.method == "sdgp" else RESULT

    found = forecast_of([spec("dense"), spec("sdgp")], tmp_path, probe)
    assert notes(found) == ["sdgp: not predicted: no memory"]
    assert "without 1 trial that could not be probed" in totals(found, 1.0, 1)


def test_disturbed_probes_are_marked(tmp_path):
    found = forecast_of([spec("dense")], tmp_path, Probes(busy_cores=3.2))
    assert any("other programs kept 3.2 cores busy" in line for line in notes(found))
    assert "(modelled, from disturbed times)" in totals(found, 1.0, 1)


def cells(found):
    return {column.header: list(column.cells) for column in table(found).columns}


def test_a_row_is_a_setting_with_its_seeds_and_states(tmp_path):
    trials = [spec("dense", seed=seed) for seed in (0, 1, 2)] + [spec("sdgp[n=1,m=4]", seed=0)]
    trials.append(dataclasses.replace(spec("sdgp[n=1,m=4]", seed=1), control=True))
    place = Store(tmp_path).trial_folder(trials[1].trial_id)
    place.mkdir(parents=True)
    write_record(place, trials[1], "error", "killed")
    found = cells(forecast_of(trials, tmp_path, Probes()))
    assert found["setting"] == ["dense", r"sdgp\[n=1,m=4]", r"sdgp\[n=1,m=4] (control)"]
    assert found["seeds"] == ["0, 1, 2", "0", "1"]
    assert found["in folder"] == ["2 new, 1 error", "new", "new"]


def test_learning_rates_are_rows_of_their_own(tmp_path):
    trials = [spec("dense"), *(spec(f"sdgp[recipe.learning_rate={rate}]") for rate in (0.1, 0.2))]
    found = cells(forecast_of(trials, tmp_path, Probes()))
    assert len(found["setting"]) == 3


def test_a_method_that_skips_nothing_is_named(tmp_path):
    trials = [spec("dense"), spec("sdgp")]
    assert not notes(forecast_of(trials, tmp_path, Probes()))  # half of the FLOPs are executed
    stage = {**RESULT["stages"][0], "flops": {"dense": 100.0, "executed": 100.0}}
    found = forecast_of(trials, tmp_path, Probes(stages=[stage]))
    assert notes(found) == ["sdgp: would skip nothing here: it executes at least 99.5 % of dense's FLOPs"]
    shrinking = forecast_of([spec("prunetrain")], tmp_path, Probes(stages=[stage]))
    assert not any("skip nothing" in line for line in notes(shrinking))


def test_threads_are_those_of_the_engine(monkeypatch):
    monkeypatch.setattr(local, "available_cores", lambda: 16)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    trial = spec("dense")
    assert threads_of(trial, 2) == 8
    assert threads_of(module.dataclasses.replace(trial, processes=4), 2) == 2
    assert threads_of(module.dataclasses.replace(trial, processes=64), 2) == 1
    monkeypatch.setenv("OMP_NUM_THREADS", "3,1")
    assert threads_of(trial, 2) == 3


@pytest.fixture
def probes_here(monkeypatch):
    """Run probes in this process."""

    def call(function, arguments, device, plugins=(), threads=None):
        assert function == module.FUNCTION
        return SubprocessResult(json.loads(json.dumps(probe(**arguments, device=device))), "here", 0.0)

    monkeypatch.setattr(module, "call_in_subprocess", call)


def test_plan_prints_a_table_or_json_and_writes_nothing(tmp_path, capsys, probes_here):
    out = tmp_path / "out"
    command = ["plan", "--methods", "dense,prunetrain", *SMALL, "--out", str(out)]
    assert cli.main([*command, "--json", "--cluster", "nodes=2,cpus=2"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert not out.exists()
    assert [trial["runs"] for trial in found["trials"]] == [True, True]
    dense, pruned = (trial["predicted"] for trial in found["trials"])
    assert (dense["epochs"], dense["steps"], dense["is_bound"]) == (2, 10, False)
    assert dense["flops_dense"] == pruned["flops_dense"] > 0
    assert pruned["is_bound"]
    assert found["cluster"]["total_s"] == pytest.approx(max(dense["wall_s"], pruned["wall_s"]))
    assert found["total_s"] == pytest.approx(dense["wall_s"] + pruned["wall_s"])
    assert {name for name in KINDS if name not in ("total_s", "communication_s")} <= dense.keys()
    assert cli.main(command) == 0
    text = capsys.readouterr().out
    assert "at most" in text
    assert "prunetrain: the network keeps its size" in text
    assert "2 of 2 trials to run" in text


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--probe-steps", "1"], "--probe-steps '1': expected an integer from 2"),
        (["--cluster", "nodes=2,gpus=2"], "the probe runs on cpu"),
        (["--cluster", "nodes=2"], "either gpus or cpus"),
        (["--stpes", "3"], "no option is called '--stpes'"),
    ],
)
def test_mistakes_are_one_line_before_any_probe(options, words, capsys, monkeypatch):
    monkeypatch.setattr(module, "call_in_subprocess", lambda *arguments: pytest.fail("probed"))
    base = SMALL[:-2] if "--probe-steps" in options else SMALL
    assert cli.main(["plan", "--methods", "dense", *base, *options]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert len([line for line in error.splitlines() if line.startswith("pdt: error")]) == 1
