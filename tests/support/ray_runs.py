"""Commands that run trials on a real Ray cluster of this machine, and processes of the cluster that can be killed."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import forks
import psutil

from suite.trials.folder.records import read_record

ROOT = Path(__file__).resolve().parents[2]


def options(out, seeds, epochs):
    """Return the options of a command with a trial per seed."""
    return [
        *("--methods", "dense", "--task", "digits", "--preset", "smoke", "--model", "resnet9[width=0.0625]"),
        *("--device", "cpu", "--dtype", "float32", "--seeds", str(seeds), "--epochs", str(epochs)),
        *("--jobs", "2", "--engine", "ray", "--ray-address", "local", "--out", str(out)),
    ]


def start(log, arguments):
    """Start a command in a session of its own, and return its process."""
    variables = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    variables["OMP_NUM_THREADS"] = "1"
    with open(log, "ab") as file:
        return forks.STARTED(  # workers are found by their command lines
            [sys.executable, str(ROOT / "run_suite.py"), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            cwd=ROOT,
            env=variables,
        )


def descendants(pid):
    """Return the processes that a process, or one of its descendants, has started."""
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def in_use(process):
    """Return whether a process is a trial, or a worker of one, that has not ended."""
    try:
        names = process.cmdline()
        ours = "suite.trials.trial" in names or process.name().startswith("ray::dense")
        return ours and process.status() != psutil.STATUS_ZOMBIE
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return False


def end(processes):
    """Kill the processes of a cluster that have not ended by themselves; Ray's agents take a minute."""
    _, alive = psutil.wait_procs(processes, timeout=5)
    for process in alive:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(alive, timeout=20)


def epochs(folder):
    """Return the numbers in the epoch records of a trial."""
    path = folder / "epochs.jsonl"
    return [json.loads(line)["epoch"] for line in path.read_text().splitlines()] if path.is_file() else []


def in_training(out):
    """Return the folders of the trials that have trained some of their 30 epochs, and will train for a while."""
    folders = sorted((out / "trials").glob("dense-*"))
    return [one for one in folders if 3 <= len(epochs(one)) <= 15 and read_record(one).status == "running"]


def starts(folder):
    """Return how often a trial was started."""
    return len(re.findall(r"^--- 2", (folder / "log.txt").read_text(), re.MULTILINE))


def kill(process):
    process.send_signal(signal.SIGKILL)
    process.wait(timeout=60)
