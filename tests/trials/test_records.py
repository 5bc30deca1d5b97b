"""Trials with damaged records or files do not count as done, and a line states the reason."""

import csv
import json
import logging
import shutil

import pytest
from small_trials import put
from small_trials import untrained as spec

from suite.errors import UsageError
from suite.trials.folder.reader import update_table
from suite.trials.folder.records import DamagedRecord, load_record, read_record, write_record
from suite.trials.folder.store import Store
from suite.trials.search import read_tuned

RESULT = {"test_accuracy": 0.75, "test_loss": 0.5, "train_time_s": 2.0, "params": 10}


@pytest.fixture
def two(tmp_path):
    return [put(tmp_path, spec(seed), result=RESULT) for seed in (0, 1)]


def changed(**parts):
    """Return a function that changes parts of a record."""

    def change(content):
        record = json.loads(content)
        for name, value in parts.items():
            record[name] = record[name] | value if isinstance(value, dict) else value
        return json.dumps(record).encode()

    return change


def result(**values):
    return changed(result=values)


@pytest.mark.parametrize(("change", "reason"), [
    (lambda content: b"", "Expecting value"),
    (lambda content: content[: len(content) // 2], ""),
    (lambda content: content[:-2], ""),
    (lambda content: b"\xff\xfe", ""),
    (lambda content: b"[" * 100_000, "it is nested too deeply"),
    (lambda content: b"[]", "Input should be a valid dictionary"),
    (lambda content: b'{"status": "done"}', "spec: Field required"),
    (changed(spec=[1]), "spec: "),
    (changed(spec={"recipe": 3}), "spec.recipe: Input should be a valid dictionary"),
    (changed(spec={"recipe": {**spec().recipe, "mixup": float("nan")}}), "Out of range float values"),
    (changed(spec={"device_index": "0.5"}), "spec.device_index: "),
    (changed(spec={"plugins": "x"}), "spec.plugins: "),
    (changed(spec={"seed": 7}), "it belongs to dense-digits-resnet9-s7-"),
    (changed(spec={"data_copy": {}}), "'checksum'"),
    (changed(status="finished"), "status: Input should be 'done', "),
    (changed(message=0.5), "message: Input should be a valid string"),
    (changed(provenance="x"), "provenance: Input should be a valid dictionary"),
    (changed(files={"model.pt": [0.5]}), "files.model.pt: "),
    (changed(result=[1]), "result: Input should be a valid dictionary"),
    (result(test_accuracy=-0.1), "test_accuracy is -0.1: not between 0 and 1"),
    (result(test_accuracy=1.5), "test_accuracy is 1.5: not between 0 and 1"),
    (result(test_accuracy=float("nan")), "test_accuracy is nan: not between 0 and 1"),
    (result(test_loss=float("inf")), "test_loss is inf: not between 0 and 1e+30"),
    (result(params=2**63), "params is 9"),
    (result(train_time_s=-1.0), "train_time_s is -1.0: "),
    (result(test_accuracy="0.5"), "result.test_accuracy.int: Input should be a valid integer; "),
    (result(test_accuracy=True), "result.test_accuracy.int: Input should be a valid integer; "),
    (result(train_time_s=[1.0]), "result.train_time_s.int: Input should be a valid integer; "),
])  # fmt: skip
def test_a_damaged_record_is_named_in_one_way_and_its_trial_trained_again(two, tmp_path, caplog, change, reason):
    path = two[0] / "trial.json"
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(DamagedRecord) as caught:
        load_record(two[0])
    said = str(caught.value)
    assert said.startswith(f"damaged record: {reason}") or f"Value error, {reason}" in said
    assert "\n" not in said
    assert read_record(two[0]) is None
    store = Store(tmp_path)
    assert store.choose([spec(0), spec(1)], "missing") == store.choose([spec(0)], "failed") == [(spec(0), two[0])]
    assert caplog.messages == [f"{two[0].name} is run again: {said}"] * 2
    assert [record.name for record in update_table(tmp_path)] == [two[1].name]
    with (tmp_path / "results.csv").open(newline="", encoding="utf-8") as file:
        rows = {row["trial_id"]: (row["status"], row["message"], row["test_accuracy"]) for row in csv.DictReader(file)}
    assert rows == {two[0].name: ("error", said, ""), two[1].name: ("done", "", "0.75")}


def test_a_record_in_the_folder_of_another_trial_is_damaged(two):
    shutil.copyfile(two[1] / "trial.json", two[0] / "trial.json")
    copy = two[1].with_name(f"copy-{two[1].name}")
    two[1].rename(copy)
    for folder in (two[0], copy):
        with pytest.raises(DamagedRecord, match=rf"^damaged record: it belongs to {two[1].name}$"):
            load_record(folder)


def test_what_is_written_is_read_and_what_cannot_be_is_found_there(two):
    """A plugin's task may return a percentage; its trial ends, and the record says what is wrong."""
    write_record(two[0], spec(0), "done", result={"test_loss": float("nan"), "val_accuracy": 1.0, "seeds_of_x": 3})
    record = read_record(two[0])
    assert (record.result, record.spec) == ({"test_loss": None, "val_accuracy": 1.0, "seeds_of_x": 3}, spec(0))
    assert {name: facts.size for name, facts in record.files.items()} == {
        name: (two[0] / name).stat().st_size for name in ("model.pt", "epochs.jsonl", "layers.csv")
    }
    write_record(two[0], spec(0), "error", "killed", {"test_accuracy": 75.0})
    with pytest.raises(DamagedRecord, match=r"test_accuracy is 75\.0: not between 0 and 1"):
        load_record(two[0])
    shutil.rmtree(two[0])
    with pytest.raises(FileNotFoundError):
        load_record(two[0])


def test_keys_of_earlier_records_are_ignored(two):
    path = two[0] / "trial.json"
    record = json.loads(path.read_text())
    record["files"]["model.pt"]["sha256"] = record["sha256"] = "0" * 64
    path.write_text(json.dumps({**record, "spec": {**record["spec"], "unknown": 1}}))
    assert Store(two[0].parents[1]).state(two[0].name)[0] == "done"


@pytest.mark.parametrize(("name", "content", "reason"), [
    ("model.pt", None, "model.pt is missing"),
    ("layers.csv", b"", "layers.csv has 0 bytes, not 11"),
    ("layers.csv", b"interval,in\n1", "layers.csv has 13 bytes, not 11"),
    ("epochs.jsonl", b'{"epoch": 1}', "epochs.jsonl has 12 bytes, not 26"),
])  # fmt: skip
def test_a_trial_whose_file_is_missing_or_cut_off_is_trained_again(two, tmp_path, caplog, name, content, reason):
    if content is None:
        (two[0] / name).unlink()
    else:
        (two[0] / name).write_bytes(content)
    with caplog.at_level(logging.WARNING):
        assert Store(tmp_path).choose([spec(0), spec(1)], "missing") == [(spec(0), two[0])]
    (line,) = caplog.messages
    assert line.startswith(f"{two[0].name} is run again: {reason}")


def test_a_file_that_its_record_does_not_know_is_not_taken_on_trust(two, tmp_path):
    path = two[0] / "trial.json"
    record = json.loads(path.read_text())
    del record["files"]["layers.csv"]
    path.write_text(json.dumps(record))
    assert Store(tmp_path).state(two[0].name) == ("error", "layers.csv is missing")


def test_text_that_utf8_or_a_terminal_does_not_take_is_replaced_where_a_record_is_read(tmp_path):
    trial = spec(0, plugins=("/home/\udcff/x.py",))
    folder = put(tmp_path, trial)
    write_record(folder, trial, "done", "\ud800\x1b[2J\0", RESULT, {"\udcff": ["\x9b"]})
    record = read_record(folder)
    assert (record.spec.hash, record.spec.plugins) == (trial.hash, ("/home/\ufffd/x.py",))
    assert record.message == "\ufffd\ufffd[2J\ufffd"
    assert record.provenance == {"\ufffd": ["\ufffd"]}
    assert Store(tmp_path).state(folder.name)[0] == "done"
    # The process of the trial, which opens the path, reads it as it was written.
    assert json.loads((folder / "trial.json").read_bytes())["spec"]["plugins"] == ["/home/\udcff/x.py"]


def test_a_checkpoint_that_a_killed_process_left_in_a_finished_trial_is_removed(two, tmp_path):
    for folder in two:
        (folder / "checkpoint.pt").write_text("x")
    write_record(two[1], spec(1), "error", "killed by signal 9")
    assert [folder for _, folder in Store(tmp_path).choose([spec(0), spec(1)], "missing")] == [two[1]]
    assert [(folder / "checkpoint.pt").exists() for folder in two] == [False, True]


def test_a_tuning_whose_choice_does_not_exist_is_one_line(tmp_path):
    content = {
        "version": 1, "budget": 1, "search_seed": 0, "seeds": [0], "task": "t", "model": "m", "preset": "p",
        "validation_images": 1, "split_seed": 0,
        "methods": [{"method": "dense", "space": [], "settings": [], "chosen": 3}],
    }  # fmt: skip
    (tmp_path / "tune.json").write_text(json.dumps(content))
    with pytest.raises(UsageError, match=r"tune.json is damaged: .*dense has no setting 3$"):
        read_tuned(tmp_path)
