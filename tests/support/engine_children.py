"""Processes for the tests of the local engine: a child that ends in a given way, and a command that can be killed."""

import contextlib
import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from unittest import mock

import psutil
from small_trials import untrained

from suite.trials.engines import local
from suite.trials.engines.local import LocalEngine
from suite.trials.folder.records import read_record
from suite.trials.progress import ProgressListener

ROOT = Path(__file__).resolve().parents[2]


# Program of a trial's process; its behaviour depends on the name of the method.
CHILD = textwrap.dedent(
    """
    import ctypes, json, os, signal, subprocess, sys, time
    from pathlib import Path
    from suite.trials.process import watch_parent
    from suite.trials.process import ProgressFile
    from suite.trials.folder.records import read_record, write_record

    watch_parent()
    folder = Path(sys.argv[1])
    record = read_record(folder)
    spec = record.spec
    assert record.status == "running"
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
        for place in (folder, folder / "stages"):
            place.mkdir(exist_ok=True)
            (place / f".1.pt.{'0' * 16}.part").touch()
        grandchild()
        time.sleep(300)
    elif spec.method == "stuck":
        grandchild()
        ctypes.PyDLL(None).sleep(300)  # holds the interpreter's lock: no thread of this process can run
    """
)


# Program that runs trials and can be killed.
DRIVER = """
import sys
from pathlib import Path
from engine_children import run

child, folder, *methods = sys.argv[1:]
try:
    run(child, Path(folder), *methods, jobs=len(methods))
except KeyboardInterrupt:
    sys.exit(130)
"""


def spec(method, seed=0, **recipe):
    return untrained(seed, method=method, recipe=untrained().recipe | recipe)


class Recorder(ProgressListener):
    """Records all calls."""

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


def runs(child):
    """Let engines start this program for each trial."""
    return mock.patch.object(local, "trial_command", lambda folder: [sys.executable, str(child), str(folder)])


def run(child, tmp_path, *methods, jobs=1, timeout=None):
    trials = [(one, tmp_path / one.trial_id) for one in (spec(method, seed) for seed, method in enumerate(methods))]
    recorder = Recorder()
    with runs(child):
        LocalEngine(jobs, timeout).run(trials, recorder)
    records = [read_record(folder) for _, folder in trials]
    return records, recorder.told, [folder for _, folder in trials]


def alive(pid):
    """Return whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_until(condition, seconds=20, process=None):
    """Wait until a function returns something true, and return it; fail if `process` ends before."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert process is None or process.poll() is None, "the command has ended"
        assert time.monotonic() < deadline, "the condition did not become true in time"
        time.sleep(0.02)
    return found


def pids_of(folder):
    wait_until(lambda: (folder / "pids").is_file() and (folder / "pids").read_text().count(" ") == 1)
    return [int(pid) for pid in (folder / "pids").read_text().split()]


def group_members(group):
    """Return the processes of a process group, to which the guardian of a dead leader would belong."""
    found = []
    for pid in psutil.pids():
        with contextlib.suppress(ProcessLookupError):
            if os.getpgid(pid) == group and alive(pid):
                found.append(pid)
    return found


def drive(tmp_path, child, *methods):
    """Start `run` as a process, and return it and the folders of its trials."""
    folders = [tmp_path / spec(method, seed).trial_id for seed, method in enumerate(methods)]
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(Path(__file__).parent)])}
    command = [sys.executable, "-c", DRIVER, str(child), str(tmp_path), *methods]
    return subprocess.Popen(command, env=variables, stdout=subprocess.DEVNULL), folders
