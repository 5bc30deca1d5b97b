"""The local engine with real processes: they crash, are killed, run too long, and none outlives its parent."""

import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from suite.recipe import Recipe
from suite.runs.engines import local
from suite.runs.engines.local import LocalEngine, environment, trial_command
from suite.runs.folder.store import read_record, write_record
from suite.runs.progress import (
    Position,
)
from suite.runs.spec import TrialSpec

ROOT = Path(__file__).resolve().parents[2]

# What a trial's process does, by the first letters of its method's name.
CHILD = textwrap.dedent(
    """
    import ctypes, json, os, signal, subprocess, sys, time
    from pathlib import Path
    from suite.runs.engines.lifeline import watch_parent
    from suite.runs.progress import ProgressFile
    from suite.runs.folder.store import read_record, write_record
    from suite.runs.spec import TrialSpec

    watch_parent()
    folder = Path(sys.argv[1])
    record = read_record(folder)
    spec = TrialSpec.from_json(record["spec"])
    assert record["status"] == "running"
    assert sys.stdin.read() == ""
    with open(folder / "starts", "a") as file:
        file.write(f"{os.getpid()} {time.time()}\\n")

    def grandchild():
        process = subprocess.Popen(["sleep", "300"])
        (folder / "pids").write_text(f"{os.getpid()} {process.pid}")

    if spec.method == "done":
        ProgressFile(folder).write(1, 3, 0.5)
        with open(folder / "epochs.jsonl", "a") as file:
            for epoch in (1, 2, 3):
                record = {"epoch": epoch, "train_loss": 0.5, "test_accuracy": 0.25, "train_time_s": 100.0}
                file.write(json.dumps(record) + "\\n")
        time.sleep(0.3)
        threads = int(os.environ["OMP_NUM_THREADS"])
        write_record(folder, spec, "done", result={"test_accuracy": 0.75}, provenance={"threads": threads})
    elif spec.method == "diverged":
        write_record(folder, spec, "diverged", "the loss is nan")
        sys.exit(1)
    elif spec.method == "crash":
        grandchild()
        raise RuntimeError("no luck today")
    elif spec.method == "silent":
        os._exit(3)
    elif spec.method == "killed":
        grandchild()
        os.kill(os.getpid(), signal.SIGKILL)
    elif spec.method == "done_then_killed":
        write_record(folder, spec, "done")
        os.kill(os.getpid(), signal.SIGKILL)
    elif spec.method == "sleep":
        grandchild()
        time.sleep(300)
    elif spec.method == "stuck":
        grandchild()
        ctypes.PyDLL(None).sleep(300)  # holds the interpreter's lock: no thread of this process can run
    """
)

# A command that runs trials and can be killed.
DRIVER = textwrap.dedent(
    """
    import sys
    from pathlib import Path
    from suite.runs.engines.local import LocalEngine
    from suite.runs.progress import Lines
    from suite.runs.spec import TrialSpec
    from suite.runs.folder.store import read_record
    from rich.console import Console
    import json

    child, folders = sys.argv[1], [Path(folder) for folder in sys.argv[2:]]
    trials = [(TrialSpec.from_json(json.loads((folder / "spec.json").read_text())), folder) for folder in folders]
    engine = LocalEngine(jobs=len(trials), command=lambda folder: [sys.executable, child, str(folder)])
    try:
        engine.run(trials, Lines(len(trials), Console()))
    except KeyboardInterrupt:
        sys.exit(130)
    """
)


def spec(method, seed=0):
    recipe = vars(Recipe(epochs=3, batch_size=4, learning_rate=0.1))
    copy = {"kind": "original", "checksum": "ab" * 32, "path": "", "note": ""}
    return TrialSpec(
        method=method,
        task="digits",
        model="resnet9",
        preset="smoke",
        recipe=recipe,
        seed=seed,
        device="cpu",
        dtype="float32",
        data_copy=copy,
    )


class Recorder:
    """What the engine told."""

    def __init__(self):
        self.told = []

    def started(self, trial):
        self.told.append(("started", trial.method))

    def position(self, trial, position):
        self.told.append(("position", position))

    def epoch(self, trial, record):
        self.told.append(("epoch", record["epoch"]))

    def ended(self, trial, record, seconds):
        self.told.append(("ended", trial.method, record["status"], record["message"]))


@pytest.fixture
def child(tmp_path):
    path = tmp_path / "child.py"
    path.write_text(CHILD)
    return path


def run(child, tmp_path, *methods, jobs=1, timeout=None):
    trials = [(one, tmp_path / one.trial_id) for one in (spec(method, seed) for seed, method in enumerate(methods))]
    recorder = Recorder()
    LocalEngine(jobs, timeout, lambda folder: [sys.executable, str(child), str(folder)]).run(trials, recorder)
    records = [read_record(folder) for _, folder in trials]
    return records, recorder.told, [folder for _, folder in trials]


def alive(pid):
    """Whether a process computes; a dead one that nobody has waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_until(condition, seconds=20):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def pids_of(folder):
    wait_until(lambda: (folder / "pids").is_file() and (folder / "pids").read_text().count(" ") == 1)
    return [int(pid) for pid in (folder / "pids").read_text().split()]


def group_members(group):
    """Processes of a process group; after its leader's death the guardian would be one."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(fields[2]) == group and fields[0] not in ("Z", "X"):
            found.append(int(path.parent.name))
    return found


def test_every_end_has_its_status_and_stops_no_other(child, tmp_path):
    methods = ("crash", "killed", "silent", "diverged", "done_then_killed", "done")
    records, told, folders = run(child, tmp_path, *methods, jobs=2)
    ends = [(record["status"], record["message"]) for record in records]
    assert ends == [
        ("error", "RuntimeError: no luck today"),
        ("error", "killed by signal 9"),
        ("error", "exit status 3; log.txt is empty"),
        ("diverged", "the loss is nan"),
        ("done", ""),
        ("done", ""),
    ]
    assert records[-1]["result"] == {"test_accuracy": 0.75}
    assert sorted(item[1:3] for item in told if item[0] == "ended") == sorted(
        (method, end[0]) for method, end in zip(methods, ends, strict=True)
    )
    assert [item[1] for item in told if item[0] == "epoch"] == [1, 2, 3]
    assert ("position", Position(1, 3, 0.5)) in told
    assert "Traceback" in (folders[0] / "log.txt").read_text()
    # What crashed trials had started is gone with them, their guardians too.
    for folder in folders[:2]:
        leader, grandchild = pids_of(folder)
        wait_until(lambda grandchild=grandchild: not alive(grandchild))
        wait_until(lambda leader=leader: not group_members(leader))


def test_a_trial_that_takes_too_long_is_killed_with_all_it_started(child, tmp_path):
    records, _, folders = run(child, tmp_path, "sleep", "done", timeout=2)
    assert (records[0]["status"], records[0]["message"]) == ("timeout", "killed after 2 s (--timeout)")
    assert records[1]["status"] == "done"
    for pid in pids_of(folders[0]):
        wait_until(lambda pid=pid: not alive(pid))


def test_two_at_a_time(child, tmp_path, monkeypatch):
    monkeypatch.setattr(local, "available_cores", lambda: 7)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    records, told, _ = run(child, tmp_path, "done", "done", "done", jobs=2)
    assert [item[0] for item in told[:2]] == ["started", "started"]
    assert [item[0] for item in told].index("ended") < [i for i, item in enumerate(told) if item[0] == "started"][2]
    assert [record["provenance"]["threads"] for record in records] == [3, 3, 3]


def test_a_resumed_trial_keeps_its_files_and_its_first_log(child, tmp_path):
    _, told, (folder,) = run(child, tmp_path, "done")
    _, again, _ = run(child, tmp_path, "done")
    assert (folder / "log.txt").read_text().count("--- 2") == 2
    assert [item[1] for item in told if item[0] == "epoch"] == [item[1] for item in again if item[0] == "epoch"]
    assert not (folder / "progress.json").exists()


def drive(tmp_path, child, *methods):
    driver = tmp_path / "driver.py"
    driver.write_text(DRIVER)
    folders = []
    for seed, method in enumerate(methods):
        folders.append(tmp_path / spec(method, seed).trial_id)
        folders[-1].mkdir()
        (folders[-1] / "spec.json").write_text(json.dumps(spec(method, seed).to_json()))
    command = [sys.executable, str(driver), str(child), *map(str, folders)]
    process = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.DEVNULL)
    return process, folders


def test_no_process_outlives_a_killed_parent(child, tmp_path):
    process, folders = drive(tmp_path, child, "sleep", "stuck")
    pids = [pid for folder in folders for pid in pids_of(folder)]
    groups = [pids_of(folder)[0] for folder in folders]
    assert all(alive(pid) for pid in pids)
    assert all(len(group_members(group)) == 3 for group in groups)  # the trial, its guardian, its grandchild
    process.send_signal(signal.SIGKILL)
    process.wait()
    for pid in pids:
        wait_until(lambda pid=pid: not alive(pid))
    for group in groups:
        wait_until(lambda group=group: not group_members(group))
    assert read_record(folders[0])["status"] == "running"  # which the next command takes for an error, and runs again


def test_ctrl_c_kills_all_and_leaves_records(child, tmp_path):
    process, folders = drive(tmp_path, child, "sleep", "sleep")
    pids = [pid for folder in folders for pid in pids_of(folder)]
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=20) == 130
    for pid in pids:
        wait_until(lambda pid=pid: not alive(pid))
    for folder in folders:
        record = read_record(folder)
        assert record["status"] == "error"
        assert record["message"].startswith("interrupted")


def test_the_lifeline_leaves_other_processes_alone():
    script = "import os; from suite.runs.engines.lifeline import watch_parent; watch_parent(); print(os.getpid())"
    env = {key: value for key, value in os.environ.items() if key != "PDT_LIFELINE_PARENT"}
    run_by_hand = [sys.executable, "-c", script]
    subprocess.run(run_by_hand, cwd=ROOT, check=True, env=env, stdin=subprocess.DEVNULL, capture_output=True)
    wrong = subprocess.run(
        run_by_hand, cwd=ROOT, env={**env, "PDT_LIFELINE_PARENT": "1"}, capture_output=True, text=True
    )
    assert "does not lead a process group" in wrong.stderr


def test_a_parent_that_died_before_the_request_is_noticed():
    script = "from suite.runs.engines.lifeline import watch_parent; watch_parent(); import time; time.sleep(60)"
    env = {**os.environ, "PDT_LIFELINE_PARENT": "999999999"}
    command = [sys.executable, "-c", script]
    process = subprocess.Popen(command, cwd=ROOT, env=env, stdin=subprocess.PIPE, start_new_session=True)
    assert process.wait(timeout=20) == -signal.SIGKILL
    process.stdin.close()


def test_the_environment_of_a_trial(monkeypatch):
    monkeypatch.setattr(local, "available_cores", lambda: 4)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setenv("MALLOC_TOP_PAD_", "1")
    monkeypatch.setenv("PYTHONPATH", "/mine")
    found = environment(8)
    assert found["OMP_NUM_THREADS"] == "1"
    assert found["MALLOC_TOP_PAD_"] == "1"
    assert found["MALLOC_MMAP_THRESHOLD_"] == "4294967296"
    assert found["PYTHONPATH"].split(os.pathsep) == [str(ROOT), "/mine"]
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert environment(8)["OMP_NUM_THREADS"] == "3"


def test_a_trial_does_not_import_from_the_users_folder(tmp_path):
    (tmp_path / "tasks.py").write_text("raise SystemExit('the wrong tasks')")
    (tmp_path / "suite.py").write_text("raise SystemExit('the wrong suite')")
    command = trial_command(tmp_path)
    assert command[1:4] == ["-P", "-m", "suite.runs.trial"]
    probe = [*command[:2], "-c", "import suite, tasks; print(suite.__file__)"]
    answer = subprocess.run(probe, cwd=tmp_path, env=environment(1), capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == str(ROOT / "suite" / "__init__.py")


def test_a_status_that_is_none_is_refused(tmp_path):
    with pytest.raises(ValueError, match="no status"):
        write_record(tmp_path, spec("dense"), "finished")


def test_a_folder_that_is_removed_during_the_run_ends_that_trial_alone(child, tmp_path):
    """Of a trial that runs, and of one that is done."""
    trials = [spec(method, seed) for seed, method in enumerate(("sleep", "done", "done"))]
    folders = [tmp_path / trial.trial_id for trial in trials]

    class Removes(Recorder):
        def started(self, trial):
            super().started(trial)
            if trial == trials[0]:
                process, _ = pids_of(folders[0])
                shutil.rmtree(folders[0])
                os.kill(process, signal.SIGKILL)

        def ended(self, trial, record, seconds):
            super().ended(trial, record, seconds)
            if trial == trials[1]:
                shutil.rmtree(folders[1])

    shown = Removes()
    engine = LocalEngine(1, None, lambda folder: [sys.executable, str(child), str(folder)])
    engine.run(list(zip(trials, folders, strict=True)), shown)
    reason = "its folder or trial.json was removed while it ran"
    assert [item[1:] for item in shown.told if item[0] == "ended"] == [
        ("sleep", "error", reason),
        ("done", "done", ""),
        ("done", "done", ""),
    ]
    record = read_record(folders[0])
    assert (record["status"], record["message"]) == ("error", reason)
    assert not folders[1].exists()


def test_a_trial_that_cannot_be_started_or_recorded_stops_no_other(child, tmp_path):
    trials = [spec("done", seed) for seed in range(4)]
    folders = [tmp_path / trial.trial_id for trial in trials]
    folders[0].write_text("a file in its place")
    (folders[1] / "trial.json").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    folders[2].symlink_to(tmp_path / "elsewhere")
    recorder = Recorder()
    engine = LocalEngine(2, None, lambda folder: [sys.executable, str(child), str(folder)])
    engine.run(list(zip(trials, folders, strict=True)), recorder)
    ends = sorted((item for item in recorder.told if item[0] == "ended"), key=lambda item: item[2], reverse=True)
    assert [item[2] for item in ends] == ["error", "error", "error", "done"]
    messages = " | ".join(item[3] for item in ends[:3])
    for expected in ("File exists", "Is a directory", "is a symbolic link"):
        assert expected in messages
    assert list((tmp_path / "elsewhere").iterdir()) == []
