"""Trials with damaged records or files do not count as done, and a line states the reason."""

import json
import logging
import os
import shutil

import pytest
import torch
from small_trials import untrained as spec

from suite.errors import UsageError
from suite.trials.folder import packed
from suite.trials.folder.records import damage, model_damage, read_record, write_record
from suite.trials.folder.store import Store
from suite.trials.search import read_tuned
from suite.trials.spec import TrialSpec

RESULT = {"test_accuracy": 0.75, "test_loss": 0.5, "train_time_s": 2.0, "params": 10}


def finished(out, trial):
    """Folder of a finished trial."""
    folder = out / "trials" / trial.trial_id
    folder.mkdir(parents=True)
    torch.save({"tensors": {"weight": torch.arange(1000.0) + trial.seed}}, folder / "model.pt")
    epochs = [{"epoch": epoch, "test_accuracy": 0.75, "test_loss": 0.5} for epoch in (1, 2)]
    (folder / "epochs.jsonl").write_text("".join(json.dumps(epoch) + "\n" for epoch in epochs))
    (folder / "layers.csv").write_text(f"epoch,layer\n1,conv{trial.seed}\n")
    write_record(folder, trial, "done", result=RESULT, provenance={"x": 1})
    return folder


@pytest.fixture
def two(tmp_path):
    return [finished(tmp_path, spec(seed)) for seed in (0, 1)]


def rewritten(folder, change):
    """Change the record, and remove its checksum if the change does."""
    record = json.loads((folder / "trial.json").read_text())
    change(record)
    (folder / "trial.json").write_text(json.dumps(record))


def of_another_trial(folder):
    other = next(path for path in folder.parent.iterdir() if path != folder)
    shutil.copyfile(other / "trial.json", folder / "trial.json")


def edited_by_hand(folder):
    rewritten(folder, lambda record: record["result"].update(test_accuracy=0.76))


def without_model(folder):
    (folder / "model.pt").unlink()


def with_a_flipped_bit(folder):
    content = bytearray((folder / "model.pt").read_bytes())
    content[len(content) // 2] ^= 1
    (folder / "model.pt").write_bytes(content)


def with_empty_layers(folder):
    (folder / "layers.csv").write_bytes(b"")


DAMAGES = [of_another_trial, edited_by_hand, without_model, with_a_flipped_bit, with_empty_layers]


@pytest.mark.parametrize("change", DAMAGES)
def test_a_damaged_trial_is_run_again_and_the_line_says_why(two, tmp_path, caplog, change):
    store, trials = Store(tmp_path), [spec(0), spec(1)]
    assert store.choose(trials, "missing") == []
    change(two[0])
    with caplog.at_level(logging.WARNING):
        assert store.choose(trials, "missing") == store.choose(trials, "failed") == [(trials[0], two[0])]
    (line, _) = [record.getMessage() for record in caplog.records]
    assert line.startswith(f"{two[0].name} is run again: ")
    assert line.count("\n") == 0


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("test_accuracy", -0.1),
        ("test_accuracy", float("nan")),
        ("test_accuracy", True),
        ("test_accuracy", "0.5"),
        ("params", 2**63),
        ("train_time_s", -1.0),
        ("train_time_s", [1.0]),
    ],
)
def test_values_that_cannot_be(two, field, value):
    write_record(two[0], spec(0), "done", result=RESULT | {field: value})
    if isinstance(value, float) and value != value:
        rewritten(two[0], lambda record: record["result"].update({field: value}))
    record = read_record(two[0])
    assert record["status"] == "error"
    assert record["message"].startswith("damaged record: ")


def test_text_that_utf8_or_a_terminal_does_not_take_is_replaced_where_a_record_is_read(tmp_path):
    trial = spec(0, plugins=("/home/\udcff/x.py",))
    folder = finished(tmp_path, trial)
    write_record(folder, trial, "done", "\ud800\x1b[2J\0", result=RESULT, provenance={"\udcff": ["\x9b"]})
    record = read_record(folder)
    read = TrialSpec.from_json(record["spec"])
    assert (read.hash, read.plugins) == (trial.hash, ("/home/\ufffd/x.py",))
    assert record["message"] == "\ufffd\ufffd[2J\ufffd"
    assert record["provenance"] == {"\ufffd": ["\ufffd"]}
    assert damage(folder, record) == ""
    # The process of the trial, which opens the path, reads it as it was written.
    assert json.loads((folder / "trial.json").read_bytes())["spec"]["plugins"] == ["/home/\udcff/x.py"]


def test_a_checkpoint_that_a_killed_process_left_in_a_finished_trial_is_removed(two, tmp_path):
    for folder in two:
        (folder / "checkpoint.pt").write_text("x")
    write_record(two[1], spec(1), "error", "killed by signal 9")
    assert [folder for _, folder in Store(tmp_path).choose([spec(0), spec(1)], "missing")] == [two[1]]
    assert [(folder / "checkpoint.pt").exists() for folder in two] == [False, True]


def test_a_file_that_its_record_does_not_know_is_not_taken_on_trust(two):
    rewritten(two[0], lambda record: record["files"].pop("layers.csv"))
    record = json.loads((two[0] / "trial.json").read_text())
    assert damage(two[0], record) == "layers.csv is missing"


def test_a_record_without_its_own_checksum_or_in_the_folder_of_another_hash_is_damaged(two):
    rewritten(two[0], lambda record: record.pop("sha256"))
    assert read_record(two[0]).message == "damaged record: it has no sha256"
    other = two[1].with_name(two[1].name[:-8] + "0" * 8)
    two[1].rename(other)
    assert "it belongs to dense-digits" in read_record(other).message


@pytest.mark.parametrize(("change", "reason"), [
    (lambda record: record["result"].update(test_accuracy=10**400), "its test_accuracy is 10000000000000000000, which"),
    (lambda record: record["files"].update({"layers.csv": [0.5]}), "its files do not have size and checksum of layers"),
    (lambda record: record["spec"].pop("hash"), "it has no spec with a hash"),
    (lambda record: record.update(result=[1]), "its result is not an object"),
    (lambda record: record.update(message=0.5), "its message is not a string"),
    (lambda record: record["spec"].update(device_index="0.5"), "its device_index is 0.5"),
    (lambda record: record["spec"].update(callbacks="x"), "its callbacks are not a list of strings"),
    (lambda record: record["spec"].update(replaced=3), "not a trial's spec"),
    (lambda record: record["spec"].update(control={"x": [None]}), "its control is neither true nor false"),
    (lambda record: record["spec"].update(recipe_source=3), "its recipe_source is not a string"),
])  # fmt: skip
def test_a_value_of_another_type_is_damage_whatever_the_checksum_says(two, change, reason):
    record = json.loads((two[0] / "trial.json").read_bytes())
    change(record)
    (two[0] / "trial.json").write_text(json.dumps(record | {"sha256": packed.digest(record)}))
    assert read_record(two[0]).message.startswith(f"damaged record: {reason}")


def test_what_is_unpacked_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(packed, "LARGEST", 1000)
    for size in (1000, 1001):
        (tmp_path / "x.gz").write_bytes(packed.pack(bytes(size)))
        (tmp_path / "x").write_bytes(bytes(size))
        for name in ("x", "x.gz"):
            if size == 1000:
                assert packed.read(tmp_path / name) == bytes(size)
            else:
                with pytest.raises(OSError, match="is larger than 1000 bytes"):
                    packed.read(tmp_path / name)


def test_a_tuning_whose_choice_does_not_exist_is_one_line(tmp_path):
    content = {
        "version": 1, "budget": 1, "search_seed": 0, "seeds": [0], "task": "t", "model": "m", "preset": "p",
        "validation_images": 1, "split_seed": 0,
        "methods": [{"method": "dense", "space": [], "settings": [], "chosen": 3}],
    }  # fmt: skip
    (tmp_path / "tune.json").write_text(json.dumps(content))
    with pytest.raises(UsageError, match=r"tune.json is damaged: dense has no setting 3$"):
        read_tuned(tmp_path)


def test_a_pipe_in_place_of_a_model_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "model.pt")
    found = model_damage(tmp_path, {"files": {"model.pt": {"size": 1, "sha256": "0" * 64}}})
    assert found.startswith("model.pt cannot be read: ")
