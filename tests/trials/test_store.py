"""Tests of a suite's folder: atomic records, the lock (held by real processes), and the remaining trials."""

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
from small_trials import put, put_export
from small_trials import untrained as spec

from suite.errors import UsageError
from suite.trials.folder.records import pack, write_json
from suite.trials.folder.store import Store
from suite.trials.spec import SuiteSpec

ROOT = Path(__file__).resolve().parents[2]
SUITE = SuiteSpec(
    methods="dense", tasks="digits", preset="smoke", seeds=(0,), device="cpu", dtype="float32", data_root="/d"
)


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "out")


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
    with store.lock():
        assert not store.is_locked()
    assert caplog.text.count("\n") == 1
    assert f"{store.folder}: its file system has no locks ({os.strerror(number)})" in caplog.text


def test_a_read_only_folder_is_to_be_copied(store, monkeypatch):
    def refused(path, flags):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    monkeypatch.setattr("suite.files.no_link", refused)
    with pytest.raises(UsageError, match=f"{store.folder} is read-only, copy it and name the copy"), store.lock():
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


def test_the_folder_and_its_trials_may_be_links_and_a_link_to_nothing_is_refused(tmp_path):
    put(tmp_path / "disk", spec(0))
    (tmp_path / "disk" / "suite.json").write_text("{}")
    (tmp_path / "out").symlink_to(tmp_path / "disk")
    place = put(tmp_path / "elsewhere", spec(1))
    (tmp_path / "disk" / "trials" / place.name).symlink_to(place)
    store = Store(tmp_path / "out")
    store.check()
    with store.lock():
        assert (tmp_path / "disk" / ".lock").is_file()
        assert store.choose([spec(0), spec(1)], "missing") == []
        assert len(store.choose([spec(1)], "all")) == 1
    assert (place / "trial.json").is_file()
    assert not (tmp_path / "disk" / "trials" / place.name).exists()
    (tmp_path / "broken").symlink_to(tmp_path / "nothing")
    with pytest.raises(UsageError, match="is a symbolic link to nothing"):
        Store(tmp_path / "broken").check()


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
            folder = put(store.folder, trial, status if status != "damaged" else "done")
            if status == "damaged":
                (folder / "trial.json").write_text('{"spec": {')

    def chosen(only):
        return [statuses[trial.seed] for trial, _ in store.choose(trials, only)]

    assert store.state(trials[5].trial_id)[0] == "error"  # its process has ended, since this one has the lock
    assert chosen("missing") == statuses[1:]
    assert chosen("failed") == ["diverged", "oom", "timeout", "error", "running", "damaged"]
    assert chosen("all") == statuses
    assert store.trial_folders() == []


def test_an_exported_trial_is_done_unless_another_one_needs_its_model(store, caplog):
    first = spec(0)
    second = spec(1, method="ssl", depends_on={"dense": first.trial_id})
    folder = put_export(store.folder, first)
    assert store.choose([first], "missing") == []
    assert store.state(first.trial_id)[0] == "done"
    assert [trial for trial, _ in store.choose([first, second], "missing")] == [first, second]
    assert f"{first.trial_id} is run again: another trial needs its model" in caplog.text
    put(store.folder, second, "done")
    assert store.choose([first, second], "missing") == []
    third = spec(2, method="ssl", depends_on={"ssl": second.trial_id})
    assert [trial for trial, _ in store.choose([first, second, third], "missing")] == [third]
    for content, reason in (
        (pack(b"layer\n"), "has 6 bytes, not 11"),
        (b"no gzip file", "cannot be read"),
        (None, "layers.csv is missing"),
    ):
        if content is None:
            (folder / "layers.csv.gz").unlink()
        else:
            (folder / "layers.csv.gz").write_bytes(content)
        assert [trial for trial, _ in store.choose([first], "missing")] == [first]
        assert f"{first.trial_id} is run again: " in caplog.messages[-1]
        assert reason in caplog.messages[-1]
    (folder / "layers.csv.gz").write_bytes(pack(b"layer\nconv\n"))
    assert store.state(first.trial_id)[0] == "done"


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
