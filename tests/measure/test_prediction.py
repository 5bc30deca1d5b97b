"""What `plan` probes, what it predicts, and what it prints; the probes run in this process, or are replaced."""

import dataclasses
import io
import json

import pytest
from rich.console import Console
from small_trials import put, put_export, spec

from suite.cli import main as cli
from suite.measure import prediction as module
from suite.measure import probe as probes
from suite.measure.calls import SubprocessResult
from suite.measure.prediction import lines, predict, table, total_s
from suite.trials import process
from suite.trials.folder.records import RUNNING, write_record
from suite.trials.folder.store import Store

SMALL = ["--task", "digits", "--preset", "smoke", "--device", "cpu", "--dtype", "float32", "--epochs", "2"]
SMALL += ["--model", "resnet9[width=0.0625]", "--batch-size", "16"]
SMALL += ["--set", "recipe.train_images=80", "--set", "recipe.test_images=20"]

RESULT = {
    "epochs": 4, "visited": 4, "steps": 16, "train_s": 30.0, "eval_s": 4.0, "other_s": 1.0, "flops_dense": 1600.0,
    "flops_executed": 800.0, "memory_bytes": 1_000_000, "shrinks": False, "leaves_out": False, "late": False,
    "threads": 1,
    "stages": [{"step_s": 2.0}, {"step_s": 1.0}],
}  # fmt: skip


class Probes:
    """Stands for processes: answers with `RESULT`, and keeps the trials that were probed."""

    def __init__(self, monkeypatch, busy_cores=0.0, **changes):
        self.trials, self.threads, self.busy_cores, self.changes = [], [], busy_cores, changes
        monkeypatch.setattr(module, "call_in_subprocess", self)

    def __call__(self, function, arguments, device, plugins, threads, arithmetic):
        self.trials.append(module.TrialSpec.from_json(arguments["spec"]))
        self.threads.append(threads)
        return SubprocessResult({**RESULT, **self.changes}, "here", self.busy_cores)


def predicted(trials, folder, only="missing", jobs=1):
    return predict(trials, folder, only, jobs, Console(quiet=True))


def test_each_kind_of_trial_is_probed_once(tmp_path, monkeypatch):
    made = Probes(monkeypatch)
    trials = [spec("dense", seed=seed) for seed in (0, 1)] + [spec("sdgp"), spec("dense", model="mlp")]
    console = Console(file=io.StringIO())
    kinds = predict(trials, tmp_path / "none", "missing", 1, console)
    assert [(one.method, one.seed) for one in made.trials] == [("dense", 0), ("sdgp", 0), ("dense", 0)]
    assert [len(kind.runs) for kind in kinds] == [2, 1, 1]
    said = console.file.getvalue().splitlines()
    assert said[0] == "measurement 1/3: steps of dense, 4 epochs, resnet9[width=0.125] on digits, float32"
    assert said[1].startswith("measurement 2/3: steps of sdgp, 4 epochs, resnet9[width=0.125] on digits, float32; ")
    assert not (tmp_path / "none").exists()


def test_lengths_learning_rates_and_controls_are_kinds_of_their_own(tmp_path, monkeypatch):
    made = Probes(monkeypatch)
    shorter = [spec("dense", seed=seed, epochs=epochs) for epochs in (4, 3, 2) for seed in (0, 1)]
    assert module._names(predicted(shorter, tmp_path)) == ["dense, 4 epochs", "dense, 3 epochs", "dense, 2 epochs"]
    assert [one.recipe["epochs"] for one in made.trials] == [4, 3, 2]
    trials = [spec("dense"), *(spec(f"sdgp[recipe.learning_rate={rate}]", learning_rate=rate) for rate in (0.1, 0.2))]
    trials.append(dataclasses.replace(spec("dense", seed=1), control=True))
    assert [kind.name for kind in predicted(trials, tmp_path)][::3] == ["dense", "dense (control)"]


def test_what_exists_is_not_probed(tmp_path, monkeypatch):
    made = Probes(monkeypatch)
    done, failed, new = (spec("dense", seed=seed) for seed in range(3))
    store = Store(tmp_path)
    for trial, status in ((done, "done"), (failed, "error")):
        place = put(tmp_path, trial, status, result={"train_time_s": 7.0})
    (tmp_path / "trials" / done.trial_id / "model.pt").unlink()

    def seeds(only):
        (kind,) = predicted([done, failed, new], tmp_path, only)
        return [one.seed for one in kind.runs]

    # A record without its files is damaged, and the trial runs again.
    assert [seeds(only) for only in ("missing", "failed", "all")] == [[0, 1, 2], [0, 1], [0, 1, 2]]
    assert len(made.trials) == 3
    # A trial of a command that runs now is running.
    write_record(place, failed, RUNNING)
    with store.lock():
        assert [seeds(only) for only in ("missing", "failed")] == [[0, 1, 2], [0]]


def test_an_exported_trial_runs_again_if_another_one_needs_its_model(tmp_path, monkeypatch):
    made = Probes(monkeypatch)
    first = spec("dense")
    second = dataclasses.replace(spec("sdgp"), depends_on={"dense": first.trial_id})
    put_export(tmp_path, first)
    (kind,) = predicted([first], tmp_path)
    assert (kind.runs, kind.is_known, kind.trial_s, made.trials) == ((), False, 0.0, [])
    assert [len(kind.runs) for kind in predicted([first, second], tmp_path)] == [1, 1]
    assert lines([kind], 0.0, 1) == ["nothing to run: all trials are done"]


def test_a_trial_that_waits_for_another_is_measured_as_dense_training(tmp_path, monkeypatch):
    made = Probes(monkeypatch)
    other = spec("prunetrain")
    trial = dataclasses.replace(spec("oneshot"), depends_on={"prunetrain": other.trial_id})
    kinds = predicted([other, trial], tmp_path)
    assert [one.method for one in made.trials] == ["prunetrain", "dense"]
    assert kinds[1].notes == (
        f"measured as dense training, which costs at least as much: it depends on {other.trial_id}, which is not done",
    )
    # The second starts when the first has ended.
    assert total_s(kinds, [other, trial], 2) == pytest.approx(70.0)


def test_trials_start_in_order_as_soon_as_a_job_has_ended(tmp_path, monkeypatch):
    Probes(monkeypatch)
    trials = [spec("dense", seed=seed) for seed in range(3)]
    kinds = predicted(trials, tmp_path)
    assert kinds[0].trial_s == 35.0
    assert [total_s(kinds, trials, jobs) for jobs in (1, 2, 3, 4)] == [105.0, 70.0, 35.0, 35.0]
    assert total_s([], [], 2) == 0.0


def test_a_probe_that_fails_is_named_and_the_others_count(tmp_path, monkeypatch):
    trials = [spec("dense"), spec("sdgp")]

    def call(function, arguments, *more):
        if arguments["spec"]["method"] == "sdgp":
            raise RuntimeError("no memory")
        return SubprocessResult(RESULT, "here", 0.0)

    monkeypatch.setattr(module, "call_in_subprocess", call)
    kinds = predicted(trials, tmp_path)
    assert lines(kinds, total_s(kinds, trials, 1), 1) == [
        "sdgp: not predicted: no memory",
        "2 of 2 trials to run: about 35 s, projected from measured steps, without 1 that could not be measured",
    ]
    assert [len(list(column.cells)) for column in table(kinds).columns] == [2] * 9


def test_notes_say_what_the_numbers_leave_out(tmp_path, monkeypatch):
    Probes(monkeypatch, busy_cores=3.2, shrinks=True, late=True, visited=1)
    kinds = predicted([spec("dense"), spec("prunetrain")], tmp_path)
    bound, late, disturbed, end = lines(kinds, 70.0, 2)
    assert bound.startswith("dense; prunetrain: the network keeps its size here")
    assert late.startswith("dense; prunetrain: for lack of time, 3 later epochs were not looked at")
    assert "other programs used 3.2 cores" in disturbed
    assert end == "2 of 2 trials to run: about 1 min 10 s with --jobs 2, projected from measured steps"
    cells = {column.header: next(iter(column.cells)) for column in table(kinds).columns}
    assert cells == {
        "trial": "dense", "to run": "1 of 1", "epochs": "4", "ms a step": "2e+03, 1e+03", "training": "at most 30 s",
        "in all": "at most 35 s", "FLOPs dense": "1.6e+03", "FLOPs executed": "at most 800", "memory": "at most 1.0 MB",
    }  # fmt: skip


def test_rows_name_what_differs(tmp_path, monkeypatch):
    Probes(monkeypatch)
    kinds = predicted([spec("sdgp[n=1,m=4]"), spec("dense", model="mlp")], tmp_path)
    assert list(table(kinds).columns[0].cells) == [
        r"sdgp\[n=1,m=4], resnet9\[width=0.125] on digits, float32",
        "dense, mlp on digits, float32",
    ]
    assert list(table(kinds[:1]).columns[0].cells) == [r"sdgp\[n=1,m=4]"]


def test_threads_are_those_of_the_engine(tmp_path, monkeypatch):
    monkeypatch.setattr(process, "available_cores", lambda: 16)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    made = Probes(monkeypatch)
    for processes in (1, 4, 64):
        predicted([dataclasses.replace(spec("dense"), processes=processes)], tmp_path, jobs=2)
    for typed in ("3,1", "", "many"):
        monkeypatch.setenv("OMP_NUM_THREADS", typed)
        predicted([spec("dense")], tmp_path, jobs=2)
    predict([spec("dense")], tmp_path, "missing", 2, Console(quiet=True), threads=1)
    assert made.threads == [8, 2, 1, 3, 8, 8, 1]


@pytest.fixture
def probes_here(monkeypatch):
    """Run probes in this process."""

    def call(function, arguments, device, plugins, threads, arithmetic):
        assert function == module.FUNCTION
        found = json.loads(json.dumps(probes.probe(**arguments)))
        return SubprocessResult(found, "here", 0.0)

    monkeypatch.setattr(probes, "STEPS", 3)
    monkeypatch.setattr(module, "call_in_subprocess", call)


def test_plan_prints_a_table_or_json_and_writes_nothing(tmp_path, monkeypatch, capsys, probes_here):
    out = tmp_path / "out"
    command = ["plan", "--methods", "dense,prunetrain", *SMALL, "--out", str(out)]
    assert cli.main([*command, "--json"]) == 0
    printed = capsys.readouterr()
    assert "measurement 2/2: steps of prunetrain" in printed.err
    found = json.loads(printed.out)
    assert not out.exists()
    dense, pruned = found["trials"]
    assert [len(kind["to_run"]) for kind in found["trials"]] == [1, 1]
    assert (dense["epochs"], dense["steps"], dense["shrinks"]) == (2, 10, False)
    assert dense["flops_dense"] == pruned["flops_dense"] > 0
    assert pruned["shrinks"]
    assert found["total_s"] == pytest.approx(dense["trial_s"] + pruned["trial_s"])
    Probes(monkeypatch, shrinks=True)
    assert cli.main(command) == 0
    text = capsys.readouterr().out
    assert "at most" in text
    assert "prunetrain: the network keeps its size" in text
    assert "2 of 2 trials to run" in text
