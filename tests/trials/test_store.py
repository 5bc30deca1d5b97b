"""Tests of a suite's folder: atomic records, the lock (held by real processes), and the remaining trials."""

import csv
import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from small_trials import untrained as spec
from small_trials import write_export
from suite.trials.folder.results import write_results

from suite.errors import UsageError
from suite.trials.folder import packed
from suite.trials.folder.records import FILES, read_record, without_home, write_json, write_record
from suite.trials.folder.store import Store
from suite.trials.folder.table import COLUMNS
from suite.trials.spec import SuiteSpec

ROOT = Path(__file__).resolve().parents[2]
MACHINE = {"hardware_id": "h1234567", "hardware": {"threads": 2}, "software": {"torch": "2.15.0+cu132"}}
SUITE = SuiteSpec(
    methods="dense", tasks="digits", preset="smoke", seeds=(0,), device="cpu", dtype="float32", data_root="/d"
)


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "out")


def put(store, trial, status, message="", **more):
    folder = store.trial_folder(trial.trial_id)
    folder.mkdir(parents=True, exist_ok=True)
    if status == "done":
        for name in FILES:
            (folder / name).write_text("x")
    write_record(folder, trial, status, message, **more)
    return folder


def holder(folder):
    """Start a process that holds the lock of a folder until it is killed."""
    script = "import sys, time; from suite.trials.folder.store import Store; from pathlib import Path\n"
    script += "with Store(Path(sys.argv[1])).lock(): print('held', flush=True); time.sleep(100)"
    command = [sys.executable, "-c", script, str(folder)]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "held\n"
    return process


def test_what_json_does_not_have_becomes_null(tmp_path):
    write_json(tmp_path / "x.json", {"loss": float("nan"), "list": [float("inf"), 1.5], 3: (1, 2)})
    assert json.loads((tmp_path / "x.json").read_text()) == {"loss": None, "list": [None, 1.5], "3": [1, 2]}


def test_the_lock_names_its_holder_and_ends_with_a_killed_process(store):
    first = holder(store.folder)
    try:
        assert store.is_locked()
        with pytest.raises(UsageError, match=f"in use by process {first.pid}") as caught, store.lock():
            pass
        assert str(store.folder) in str(caught.value)
    finally:
        first.send_signal(signal.SIGKILL)
        first.wait()
    with store.lock():
        assert store.is_locked()
    assert not store.is_locked()


def test_a_lock_that_may_only_be_read_shows_whether_it_is_held(store, monkeypatch):
    with store.lock():
        pass
    modes, real_open = [], open
    monkeypatch.setattr("suite.trials.folder.store.os.access", lambda path, mode: False)
    monkeypatch.setattr(
        "builtins.open", lambda path, mode="r", **more: (modes.append(mode), real_open(path, mode, **more))[1]
    )
    assert not store.is_locked()
    with store.lock():
        assert store.is_locked()
    assert {mode for mode in modes if "b" in mode} == {"rb"}


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EINVAL])
def test_a_folder_without_file_locks_is_used_with_one_warning(store, monkeypatch, caplog, number):
    def missing(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("fcntl.flock", missing)
    with store.lock(), store.writing():
        assert not store.is_locked()
    assert caplog.text.count("\n") == 1
    assert f"{store.folder}: its file system has no locks ({os.strerror(number)})" in caplog.text


@pytest.mark.parametrize("use", [Store.lock, Store.writing])
def test_a_read_only_folder_is_to_be_copied(store, monkeypatch, use):
    def refused(path, flags):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    monkeypatch.setattr("suite.files.open_descriptor", refused)
    with pytest.raises(UsageError, match=f"{store.folder} is read-only, copy it and name the copy"), use(store):
        pass


def test_folders_that_are_not_ours(tmp_path):
    (tmp_path / "file").write_text("x")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("x")
    (tmp_path / "empty").mkdir()
    (tmp_path / "killed").mkdir()
    (tmp_path / "killed" / ".lock").write_text("1")
    before = sorted(tmp_path.rglob("*"))
    for name, expected in (("file", "is a file"), ("file/below", "is a file"), ("full", r"contains 'thesis.tex'")):
        with pytest.raises(UsageError, match=expected):
            Store(tmp_path / name).check()
    for name in ("empty", "killed", "absent/below"):
        Store(tmp_path / name).check()
    assert sorted(tmp_path.rglob("*")) == before


def test_suite_json_remembers_every_command(store):
    with store.lock():
        store.add_command(SUITE, "run_suite.py one", {"time_utc": "t1"})
        store.add_command(SUITE, "run_suite.py two", {"time_utc": "t2"})
    store.check()
    content = json.loads((store.folder / "suite.json").read_text())
    assert content["command_line"] == "run_suite.py two"
    assert content["provenance"] == {"time_utc": "t2"}
    assert [entry["command_line"] for entry in content["commands"]] == ["run_suite.py one", "run_suite.py two"]
    (store.folder / "suite.json").write_text("{")
    with pytest.raises(UsageError, match="is damaged"):
        store.add_command(SUITE, "three", {})


def test_which_trials_are_chosen(store):
    statuses = ["done", "diverged", "oom", "timeout", "error", "running", "damaged", "absent"]
    trials = [spec(seed) for seed in range(len(statuses))]
    for trial, status in zip(trials, statuses, strict=True):
        if status != "absent":
            folder = put(store, trial, status if status != "damaged" else "done")
            if status == "damaged":
                (folder / "trial.json").write_text('{"spec": {')

    def chosen(only):
        return [statuses[trial.seed] for trial, _ in store.choose(trials, only)]

    assert store.status(trials[5].trial_id) == "error"  # its process has ended, since this one has the lock
    assert chosen("missing") == statuses[1:]
    assert chosen("failed") == ["diverged", "oom", "timeout", "error", "running", "damaged"]
    assert chosen("all") == statuses
    assert store.trial_folders() == []


def test_an_exported_trial_is_done_unless_another_one_needs_its_model(store, caplog):
    first = spec(0)
    second = spec(1, method="ssl", depends_on={"dense": first.trial_id})
    folder = store.trial_folder(first.trial_id)
    write_export(folder, first)
    assert store.choose([first], "missing") == []
    assert store.status(first.trial_id) == "done"
    assert [trial for trial, _ in store.choose([first, second], "missing")] == [first, second]
    assert f"{first.trial_id} is run again: another trial needs its model" in caplog.text
    put(store, second, "done")
    assert store.choose([first, second], "missing") == []
    third = spec(2, method="ssl", depends_on={"ssl": second.trial_id})
    assert [trial for trial, _ in store.choose([first, second, third], "missing")] == [third]
    for content, reason in (
        (packed.pack(b"y"), "does not have the checksum"),
        (b"no gzip file", "cannot be read"),
        (None, "missing"),
    ):
        if content is None:
            (folder / "layers.csv.gz").unlink()
        else:
            (folder / "layers.csv.gz").write_bytes(content)
        assert [trial for trial, _ in store.choose([first], "missing")] == [first]
        assert f"{first.trial_id} is run again: layers.csv.gz" in caplog.messages[-1]
        assert reason in caplog.messages[-1]
    (folder / "layers.csv.gz").write_bytes(packed.pack(b"x"))
    assert store.status(first.trial_id) == "done"
    (folder / "model.pt").write_text("x")  # no export has one: the other files are lost
    assert store.status(first.trial_id) == "error"


@pytest.mark.parametrize("content", [
    b"", b"[]", b"\xff\xfe", b'{"status": "done"}', b"[" * 100_000, b'{"x": ' + b"9" * 5000 + b"}",
])  # fmt: skip
def test_a_damaged_record_is_a_trial_with_an_error(store, content):
    folder = put(store, spec(0), "done")
    put(store, spec(1), "done")
    (folder / "trial.json").write_bytes(content)
    record = read_record(folder)
    assert set(record) == {"status", "message"}
    assert record["status"] == "error"
    assert record["message"].startswith("damaged record: ")
    rows = {row["trial_id"]: row for row in write_results(store)}
    assert rows[folder.name]["status"] == "error"
    assert rows[folder.name]["message"] == record["message"]
    assert rows[spec(1).trial_id]["status"] == "done"


def test_the_table_has_the_columns_of_the_interface(store):
    result = {
        "test_accuracy": 0.5,
        "train_time_s": 1.25,
        "params": 10,
        "train_flops_dense": 3 * 10**18,
        "val_accuracy": None,
    }
    first = spec(0, method="sdgp", variant="n=2,m=4", parameters={"m": 4, "n": 2})
    put(store, first, "done", result=result, provenance=MACHINE)
    put(store, spec(1), "error", 'a "quoted", line')
    put(store, spec(2), "running")
    write_results(store)
    with open(store.folder / "results.csv", newline="") as file:
        rows = {row["trial_id"]: row for row in csv.DictReader(file)}
    row = rows[first.trial_id]
    assert list(row) == list(COLUMNS)
    expected = {"method": "sdgp", "variant": "n=2,m=4", "parameters": '{"m":4,"n":2}', "seed": "0", "status": "done"}
    expected |= {"data_copy": "original-abababab", "hardware_id": "h1234567", "epochs": "3", "batch_size": "4"}
    expected |= {"test_accuracy": "0.5", "params": "10", "train_flops_dense": str(3 * 10**18), "val_accuracy": ""}
    expected |= {"threads": "2", "torch": "2.15"}
    assert {key: row[key] for key in expected} == expected
    assert row["test_loss"] == ""
    assert rows[spec(1).trial_id]["message"] == 'a "quoted", line'
    assert rows[spec(2).trial_id]["status"] == "error"


def test_a_trial_that_runs_now_has_no_row(store):
    put(store, spec(0), "running")
    with store.lock():
        assert write_results(store) == []


def part(name):
    """Return the name under which a file is written before it is renamed."""
    return f".{name}.0123456789abcdef.part"


def test_files_of_a_killed_writer_block_no_one_and_are_removed(store):
    trial = store.trial_folder("dense-digits-resnet9-s0-01234567")
    trial.mkdir(parents=True)
    (store.folder / "figures").mkdir()
    (store.folder / "mine").mkdir()
    left = [store.folder / part("suite.json"), store.folder / "figures" / part("g-1.svg")]
    left += [trial / part(name) for name in ("trial.json", "checkpoint.pt")]
    kept = [store.folder / ".gitignore", trial / "notes.txt", store.folder / "mine" / part("x")]
    kept += [store.folder / ".film.mp4.abcd.part", trial / part("epochs.jsonl")]
    for path in (*left, *kept):
        path.write_text("half")
        os.utime(path, (0, 0))
    os.utime(kept[-1])  # another process writes to it
    (store.folder / "suite.json").write_text("{}")
    with store.lock():
        pass
    assert not any(path.exists() for path in left)
    assert all(path.exists() for path in kept)


def test_a_folder_in_which_only_half_of_suite_json_was_written_may_be_used(tmp_path):
    (tmp_path / part("suite.json")).write_text("half")
    Store(tmp_path).check()
    (tmp_path / ".film.mp4.abcd.part").write_text("somebody else's")
    with pytest.raises(UsageError, match=r"contains '\.film\.mp4\.abcd\.part' but no"):
        Store(tmp_path).check()


def test_a_folder_of_suites_names_one_of_them(tmp_path):
    (tmp_path / "cifar10-01234567").mkdir()
    (tmp_path / "cifar10-01234567" / "suite.json").write_text("{}")
    with pytest.raises(UsageError, match="choose an empty folder or a suite, such as cifar10-01234567"):
        Store(tmp_path).check()


def test_a_lock_that_is_held_for_a_moment_is_waited_for(store):
    store.folder.mkdir(parents=True)
    reader = open(store.folder / ".lock", "a")  # noqa: SIM115
    fcntl.flock(reader, fcntl.LOCK_SH)
    threading.Timer(0.3, reader.close).start()
    with store.lock():
        assert reader.closed


def test_the_table_says_how_steps_were_executed(store):
    for seed, execution in ((0, "cuda_graph"), (1, None)):
        recipe = {**spec().recipe, "execution": execution}
        if execution is None:
            del recipe["execution"]  # a record that was written before the option existed
        put(store, spec(seed, recipe=recipe), "done")
    assert [row["execution"] for row in sorted(write_results(store), key=lambda row: row["seed"])] == [
        "cuda_graph",
        "eager",
    ]


def test_the_home_folder_is_left_out_of_an_exported_record(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    content = {"status": "done", "spec": {"data_copy": {"path": str(tmp_path / "data" / "x.npz"), "note": "ü"}}}
    plain = {"path": "~/data/x.npz", "note": "ü"}
    for digest in ({"sha256": packed.digest(content)}, {"sha256": "of a record that was changed"}, {}):
        found = json.loads(without_home(json.dumps({**content, **digest}).encode()))
        assert found["spec"]["data_copy"] == plain
        rest = {name: value for name, value in found.items() if name != "sha256"}
        assert found.keys() - rest.keys() == digest.keys()
        # An export does not make a record valid that is not.
        assert (found.get("sha256") == packed.digest(rest)) == (digest.get("sha256") == packed.digest(content))
    for other in (b"{", b"[]", json.dumps({"spec": {"data_copy": {"path": "/elsewhere"}}}).encode()):
        assert without_home(other) == other
