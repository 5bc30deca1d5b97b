"""Callbacks in a trial's process: when they are called, what a failing one does, and the event files of TensorBoard."""

import dataclasses
import json
import sys
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from small_trials import spec
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from trials_here import let_run_here

import suite
from suite import registry
from suite.cli import main as cli
from suite.errors import UsageError
from suite.registry import register
from suite.trials import trial as module
from suite.trials.callbacks.calls import CallbackTrial, Calls, read_callbacks
from suite.trials.callbacks.listening import CallingListener
from suite.trials.callbacks.tensorboard import FOLDER, TensorBoard, scalars
from suite.trials.folder.records import RUNNING, read_record, write_record
from suite.trials.spec import TrialSpec
from suite.trials.trial_run import TrialRun

SMALL = {"model": "resnet9[width=0.0625]", "train_images": 32, "test_images": 20, "batch_size": 16, "epochs": 3}
CALLED = []


@register("callback", "keeps_calls")
class KeepsCalls:
    """Keeps what it is called with."""

    def on_epoch(self, trial, record):
        CALLED.append((trial.trial_id, record["epoch"]))

    def on_trial(self, trial, record):
        CALLED.append((trial.trial_id, record["status"], record["result"].get("test_accuracy")))


@register("callback", "fails_late")
class FailsLate:
    """Fails after the second epoch."""

    def on_epoch(self, trial, record):
        CALLED.append(record["epoch"])
        if record["epoch"] == 2:
            sys.exit("no\nmore")


@register("callback", "fails_at_the_end")
class FailsAtTheEnd:
    """Fails when the trial has ended."""

    def on_trial(self, trial, record):
        raise ZeroDivisionError("division by zero")


@pytest.fixture(autouse=True)
def forget_calls():
    CALLED.clear()


def trial_with(*callbacks, **changes):
    return dataclasses.replace(spec("dense", **(SMALL | changes)), callbacks=callbacks)


def run_process(folder, trial, monkeypatch):
    """Run `main` of the trial's process here, and return its exit status."""
    folder.mkdir(parents=True, exist_ok=True)
    write_record(folder, trial, RUNNING)
    monkeypatch.setattr(sys, "argv", ["trial", str(folder)])
    return module.main()


def test_callbacks_are_called_after_each_epoch_and_at_the_end(tmp_path, monkeypatch):
    """Among them TensorBoard, whose event files have every number of the records; none of it is training time."""
    spans, append_record = [], TrialRun._append_record

    def append(self, record, clock):
        before = dict(clock.seconds)
        append_record(self, record, clock)
        spans.append({name for name, seconds in clock.seconds.items() if seconds != before[name]})

    monkeypatch.setattr(TrialRun, "_append_record", append)
    trial = trial_with("keeps_calls", "tensorboard")
    folder = tmp_path / trial.trial_id
    assert run_process(folder, trial, monkeypatch) == 0
    record = read_record(folder)
    ended = (trial.trial_id, "done", record.result["test_accuracy"])
    assert [*((trial.trial_id, epoch) for epoch in (1, 2, 3)), ended] == CALLED
    assert "callbacks_failed" not in record.provenance
    assert spans == [{"io"}] * 3
    data = record.provenance["data"]
    assert (data["classes"], data["train_images"], data["test_images"]) == (10, 32, 20)
    assert 2 <= data["largest_test_class"] <= 20

    records = [json.loads(line) for line in (folder / "epochs.jsonl").read_text().splitlines()]
    found = points(folder)
    assert found.keys() == {tag for tag, _ in scalars(records[0])}
    for tag in ("loss/train_loss", "accuracy/test_accuracy", "time/train_time_s", "flops_train/executed"):
        assert [step for step, _ in found[tag]] == [1, 2, 3]
    rates = [record["learning_rate"] for record in records]
    assert [value for _, value in found["training/learning_rate"]] == pytest.approx(rates)
    layer = next(iter(records[-1]["layers"]))
    facts = records[-1]["layers"][layer]
    assert found[f"channels_out/{layer}"][-1] == (3, facts["out"])
    assert found[f"weight_density/{layer}"][-1] == (3, pytest.approx(facts["weight_density"]))
    assert found[f"density_wgrad/{layer}"][-1] == (3, pytest.approx(facts["density"][2]))


def test_a_callback_that_fails_does_not_end_the_trial_and_is_named(tmp_path, monkeypatch, capsys):
    trial = trial_with("fails_late", "fails_at_the_end", "keeps_calls")
    folder = tmp_path / trial.trial_id
    assert run_process(folder, trial, monkeypatch) == 0
    record = read_record(folder)
    assert record.done
    assert record.provenance["callbacks_failed"] == [
        "callback fails_late failed at epoch 2: SystemExit: no more",
        "callback fails_at_the_end failed at the end of the trial: ZeroDivisionError: division by zero",
    ]
    epochs = [call for call in CALLED if isinstance(call, int)]
    assert epochs == [1, 2]  # it is not called again
    assert CALLED[-1][:2] == (trial.trial_id, "done")
    assert "ZeroDivisionError" in capsys.readouterr().err


def test_a_trial_that_fails_has_its_end_reported(tmp_path, monkeypatch):
    trial = dataclasses.replace(trial_with("keeps_calls"), depends_on={"dense": "dense-missing"})
    assert run_process(tmp_path / trial.trial_id, trial, monkeypatch) == 1
    assert [call[:2] for call in CALLED] == [(trial.trial_id, "error")]


def test_callbacks_are_no_part_of_a_trials_identity():
    plain, logged = trial_with(), trial_with("tensorboard")
    assert plain.hash == logged.hash
    assert TrialSpec.from_json(json.loads(json.dumps(logged.to_json()))) == logged
    earlier = plain.to_json()
    del earlier["callbacks"]
    assert TrialSpec.from_json(earlier) == plain


@pytest.mark.parametrize(
    ("text", "words"), [("keeps_calls,keeps_calls", "occurs twice"), ("tensorbord", "did you mean 'tensorboard'")]
)
def test_wrong_callbacks_are_refused(text, words, monkeypatch):
    monkeypatch.setattr(registry, "names", lambda kind: ["keeps_calls", "tensorboard"])
    with pytest.raises(UsageError, match=words):
        read_callbacks(text)


class Takes:
    """Callbacks with other arguments than those of a call."""

    def fine(self, trial, record, more=None): ...
    def short(self, trial): ...
    def long(self, trial, record, more): ...


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ({"on_epoch": Takes.fine, "on_trial": staticmethod(lambda *both: None)}, None),
        ({"on_epoch": Takes.short}, r"on_epoch\(self, trial\) has to be on_epoch\(self, trial, record\)"),
        ({"on_trial": Takes.long}, r"on_trial\(self, trial, record, more\) has to be"),
        ({"on_trial": staticmethod(lambda trial: None)}, r"on_trial\(trial\) has to be on_trial\(trial, record\)"),
        ({"on_trial": Takes.fine, "__init__": Takes.short}, "is made without arguments"),
        ({}, "has neither on_epoch nor on_trial"),
    ],
)
def test_hooks_with_other_arguments_are_refused_before_any_trial(members, words, monkeypatch):
    monkeypatch.setattr(registry, "names", lambda kind: ["own"])
    monkeypatch.setattr(registry, "get", lambda kind, name: type("Own", (), members))
    if words is None:
        assert read_callbacks("own") == ("own",)
        return
    with pytest.raises(UsageError, match=words):
        read_callbacks("own")


def test_a_function_with_other_arguments_is_refused_by_suite_run():
    with pytest.raises(UsageError, match=r"on_trial\(record\) has to be on_trial\(trial, record\)"):
        suite.run(["--task", "digits"], on_trial=lambda record: None)


def test_a_missing_library_is_one_line_before_any_trial(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr("importlib.util.find_spec", lambda name, find=registry.importlib.util.find_spec: (
        None if name == "tensorboard" else find(name)
    ))  # fmt: skip
    out = tmp_path / "out"
    assert cli.main(["--task", "digits", "--preset", "smoke", "--log", "tensorboard", "--out", str(out)]) == 2
    assert "pip install -e '.[tensorboard]'" in capsys.readouterr().err
    assert not out.exists()


def points(folder):
    """Return the steps and values of each tag in the event files of a trial, as TensorBoard reads them."""
    found = EventAccumulator(str(folder / FOLDER)).Reload()
    return {tag: [(event.step, event.value) for event in found.Scalars(tag)] for tag in found.Tags()["scalars"]}


def test_a_resumed_trial_has_one_point_per_epoch(tmp_path):
    trial = CallbackTrial.of(spec("dense"), tmp_path)
    first, second = TensorBoard(), TensorBoard()
    for epoch in (1, 2, 3):
        first.on_epoch(trial, {"epoch": epoch, "train_loss": 10.0 + epoch})
    # Killed here; the checkpoint was of epoch 1.
    for epoch in (2, 3, 4):
        second.on_epoch(trial, {"epoch": epoch, "train_loss": 20.0 + epoch})
    second.on_trial(trial, {})
    assert points(tmp_path)["loss/train_loss"] == [(1, 11.0), (2, 22.0), (3, 23.0), (4, 24.0)]


def test_numbers_that_are_missing_or_infinite_have_no_point():
    record = {"epoch": 1, "train_loss": float("nan"), "test_loss": None, "val_loss": 1, "layers": {}}
    assert list(scalars(record)) == [("loss/val_loss", 1.0)]


def test_what_a_callback_changes_in_a_record_stays_with_it(tmp_path):
    record = {"epoch": 1, "layers": {"first": 1}}

    def on_epoch(trial, given):
        given["layers"].clear()

    calls = Calls(
        ["clears"], CallbackTrial.of(spec("dense"), tmp_path), lambda name: SimpleNamespace(on_epoch=on_epoch)
    )
    calls.epoch(record)
    assert calls.failures == []
    assert record == {"epoch": 1, "layers": {"first": 1}}


def test_functions_are_called_in_the_process_of_the_command(tmp_path, caplog):
    first, second = spec("dense"), spec("dense", seed=1)
    seen = []

    def on_epoch(trial, record):
        seen.append((trial.trial_id, record["epoch"]))
        if trial.seed == 0:
            raise ValueError("not this one")

    def on_trial(trial, record):
        seen.append((trial.trial_id, record["status"]))

    shown = Mock()
    listener = CallingListener(shown, tmp_path, {"on_epoch": on_epoch, "on_trial": on_trial})
    for trial in (first, second):
        listener.started(trial)
        listener.epoch(trial, {"epoch": 1})
        listener.epoch(trial, {"epoch": 2})
        listener.ended(trial, {"status": "error", "message": "killed"}, 3.0)
    names = [first.trial_id, second.trial_id]
    assert seen == [
        (names[0], 1),
        (names[0], "error"),
        (names[1], 1),
        (names[1], 2),
        (names[1], "error"),
    ]
    assert [call[0] for call in shown.method_calls] == ["started", "epoch", "epoch", "ended"] * 2
    assert "callback on_epoch failed at epoch 1: ValueError: not this one" in caplog.text


def test_a_suite_that_runs_from_python_calls_functions(tmp_path, monkeypatch):
    let_run_here(monkeypatch)
    seen = []
    options = ["--methods", "dense", "--task", "digits", "--preset", "smoke", "--device", "cpu", "--epochs", "1"]
    options += ["--set", "recipe.train_images=32", "--batch-size", "16", "--out", str(tmp_path / "out")]
    assert suite.run(options, on_trial=lambda trial, record: seen.append((trial.label, record["status"]))) == 0
    assert seen == [("dense", "done")]
