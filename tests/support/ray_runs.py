"""Commands that run trials on a real Ray cluster of this machine, and processes of the cluster that can be killed."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil

from suite.trials.folder.store import read_record

ROOT = Path(__file__).resolve().parents[2]

# Two nodes, whose processes end with the standard input of this program.
NODES = """
import os, sys
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
from ray.cluster_utils import Cluster

cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
cluster.add_node(num_cpus=1)
print("address", cluster.address, flush=True)
sys.stdin.read()
cluster.shutdown()
"""

# A command whose workers do not see its output folder.
NOT_SHARED = """
import sys
from suite.trials.engines import ray_cluster
from suite.trials.engines.ray_worker import Job

ray_cluster.Job = lambda *fields: Job(*fields[:3], "not what the file holds", *fields[4:])
from suite.cli.main import main

sys.exit(main(sys.argv[1:]))
"""


def options(out, address, seeds, epochs, jobs=2):
    """Return the options of a command with a trial per seed."""
    return [
        *("--methods", "dense", "--task", "digits", "--preset", "smoke", "--model", "resnet9[width=0.0625]"),
        *("--device", "cpu", "--dtype", "float32", "--seeds", str(seeds), "--epochs", str(epochs)),
        *("--jobs", str(jobs), "--engine", "ray", "--ray-address", address, "--out", str(out)),
    ]


def start(log, arguments, shared=True):
    """Start a command in a session of its own, and return its process."""
    program = [str(ROOT / "run_suite.py")] if shared else ["-c", NOT_SHARED]
    variables = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    variables["OMP_NUM_THREADS"] = "1"  # two nodes of this machine would not know of each other's threads
    variables["PYTHONHASHSEED"] = "0"  # lets forks.py start Python: workers are found by their command lines
    with open(log, "ab") as file:
        return subprocess.Popen(
            [sys.executable, *program, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            cwd=ROOT,
            env=variables,
        )


@contextlib.contextmanager
def two_nodes():
    """Start a cluster of two nodes in processes of their own; yield its address, and the process that holds it."""
    process = subprocess.Popen(
        [sys.executable, "-c", NODES],
        env={**os.environ, "PYTHONHASHSEED": "0"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )

    def answer(word):
        for line in process.stdout:
            if line.startswith(word):
                return line.removeprefix(word).strip()
        raise AssertionError("the cluster has ended")

    started = set()
    try:
        address = answer("address")
        started = set(descendants(process.pid))
        yield address, process.pid
    finally:
        started |= set(descendants(process.pid))
        process.stdin.close()
        process.wait(timeout=60)
        end(started)


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


def workers(pid):
    """Return the workers below a process that train a trial."""
    found = []
    for process in descendants(pid):
        with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
            if "suite.trials.trial" in process.cmdline() and process.parent().name().startswith("ray::"):
                found.append(process.parent())
    return found


def epochs(folder):
    """Return the numbers in the epoch records of a trial."""
    path = folder / "epochs.jsonl"
    return [json.loads(line)["epoch"] for line in path.read_text().splitlines()] if path.is_file() else []


def in_training(out):
    """Return the folders of the trials that have trained some of their 30 epochs, and will train for a while."""
    folders = sorted((out / "trials").glob("dense-*"))
    return [
        one for one in folders if 3 <= len(epochs(one)) <= 15 and (read_record(one) or {}).get("status") == "running"
    ]


def starts(folder):
    """Return how often a trial was started."""
    return len(re.findall(r"^--- 2", (folder / "log.txt").read_text(), re.MULTILINE))


def kill(process):
    process.send_signal(signal.SIGKILL)
    process.wait(timeout=60)
