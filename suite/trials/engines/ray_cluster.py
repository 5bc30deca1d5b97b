"""Trials as tasks of a Ray cluster. Only this module imports Ray, and only if a command uses this engine.

A task runs one trial in its own process, in the output folder if its machine sees it, otherwise in a temporary folder.
The process ends with the task's worker. The tasks belong to the command, so Ray ends them if the command is killed. As
with other engines, the records say which trials are done.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import secrets
import socket
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from suite import files
from suite.engine.cost.hardware import available_cores, threads_of_environment
from suite.errors import UsageError, in_words
from suite.registry import ROOT, register
from suite.trials.engines.local import Engine, LocalEngine, Place, Running, record_end
from suite.trials.process import FLAG_PREFIXES, ProgressFile, die_with, environment
from suite.trials.progress import ProgressListener
from suite.trials.spec import TrialSpec

log = logging.getLogger(__name__)

NODES_INTERVAL = 5.0  # seconds between two lists of the cluster's machines
OBJECT_STORE_BYTES = 256 * 2**20  # a cluster on this machine stores only what the command sends
LONGEST_TEMPORARY = 21
"""Bytes of the path of temporary files and of the user's number: a socket's path has 103 on macOS, of which Ray and the
rest of our folder's name take 82."""
TOKEN = ".shared-"
TEMPORARY = "pdt-ray-"
"""Beginning of the names of temporary folders."""
EARLIER_WORKER_S = 60.0
"""Seconds to wait until an earlier process of the same trial, for example of a killed command, has ended."""
_OURS = ("PDT_CHOICES", "PDT_COMMAND_LINE")
_OF_THE_MACHINE = ("CUDA_VISIBLE_DEVICES", "LD_PRELOAD")

Content = dict[str, bytes]
"""Files of a folder by their path in it."""


@dataclass(frozen=True)
class Job:
    """A trial for a worker.

    Attributes:
        folder: Its folder on the machine of the command.
        token: File that the command has made. A worker sees it if the output folder is shared.
        variables: Environment variables of the command that trials read.
        timeout: Seconds after which the trial is killed; `None` for no limit.
    """

    spec: TrialSpec
    folder: Path
    token: Path
    variables: Mapping[str, str]
    timeout: float | None


class Ended(ProgressListener):
    """What a worker sends back: a listener that keeps only how its trial ended.

    The command reads the progress from the shared folder.

    Attributes:
        record: The trial's record, or its status and message.
        seconds: How long the trial took.
        content: Files of the trial's folder; `None` if the worker has written to the output folder itself.
    """

    record: dict[str, Any]
    seconds: float
    content: Content | None = None

    def ended(self, trial: TrialSpec, record: dict[str, Any], seconds: float) -> None:
        self.record, self.seconds = record, seconds


@register("engine", "ray")
class RayEngine(Engine):
    """Trials as tasks of a Ray cluster (--ray-address).

    Args:
        jobs: Number of trials that run at the same time on the smallest machine; larger machines run more.
        timeout: Seconds after which a trial is killed; `None` for no limit.
        address: `auto` for the running cluster, `local` for a new one on this machine, or `HOST:PORT`.

    Raises:
        UsageError: Ray is not installed, or the cluster cannot be reached.
    """

    def __init__(self, jobs: int = 1, timeout: float | None = None, address: str = "auto") -> None:
        self.jobs, self.timeout = jobs, timeout
        self._slots, self._look = 0, 0.0
        self._needs: dict[str, float] = {}
        self._closing = contextlib.ExitStack()
        self._ray = connect(address, self._closing)

    def run(self, trials: Sequence[tuple[TrialSpec, Path]], progress: ProgressListener) -> None:
        """Run trials as `Engine.run` does.

        Raises:
            UsageError: No machine of the cluster has what a trial needs.
        """
        self._total = len(trials)
        with self._closing:
            if trials:
                self._token = make_token(trials[0][1].parent)
                self._closing.callback(self._token.unlink, missing_ok=True)
            super().run(trials, progress)

    def slots(self, waiting: Sequence[tuple[TrialSpec, Path]]) -> int:
        if time.monotonic() >= self._look:
            nodes, self._look = self._ray.nodes(), time.monotonic() + NODES_INTERVAL
            if not self._needs:
                self._needs = task_needs(nodes, waiting[0][0], self.jobs)
            before, self._slots = self._slots, sum(fits(node, self._needs) for node in nodes)
            if before and not self._slots:
                log.warning("--engine ray: the machines of the cluster are down; trials wait until one is up again")
        return self._slots

    def start(self, trial: TrialSpec, folder: Path, number: int) -> Any:
        job = Job(trial, folder, self._token, own_variables(), self.timeout)
        names = (folder.name, *trial.depends_on.values())
        # A worker that sees the output folder ignores the content that is sent.
        sent = {name: read_content(folder.parent / name) for name in names if (folder.parent / name).is_dir()}
        folder.mkdir(parents=True, exist_ok=True)
        declared = {"num_cpus": self._needs["CPU"], "num_gpus": self._needs.get("GPU", 0), "max_retries": 1}
        remote = self._ray.remote(_run_on_node).options(name=folder.name, scheduling_strategy="SPREAD", **declared)
        return remote.remote(job, self._needs, self._total, sent)

    def end(self, item: Running) -> dict[str, Any] | None:
        if not self._ray.wait([item.handle], timeout=0)[0]:
            return None
        try:
            ended: Ended = self._ray.get(item.handle)
            item.began = time.monotonic() - ended.seconds
            if ended.content is not None:
                write_content(item.folder, ended.content)
            return ended.record
        except self._ray.exceptions.RayError as error:
            # That of a task ends with what the task raised; the others begin with what happened.
            line = -1 if isinstance(error, self._ray.exceptions.RayTaskError) else 0
            reason = f"its Ray task failed: {(str(error).strip().splitlines() or [type(error).__name__])[line]}"[:300]
        except (OSError, UsageError) as error:
            reason = f"what its worker sent is not written: {in_words(error)}"
        return record_end(item.trial, item.folder, "error", reason)

    def kill(self, item: Running) -> None:
        with contextlib.suppress(Exception):  # the cluster may be gone
            self._ray.cancel(item.handle, force=True)


def connect(address: str, closing: contextlib.ExitStack) -> Any:
    """Connect with a cluster, and return the module `ray`.

    Args:
        address: As in `RayEngine`.
        closing: Stack that receives what must be undone at the end.

    Raises:
        UsageError: Ray is not installed, or there is no such cluster.
    """
    if importlib.util.find_spec("ray") is None:
        raise UsageError("--engine ray: the package ray is not installed; install it with pip install -e '.[ray]'")
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    options: dict[str, Any] = {"address": address}
    if address == "local":
        os.environ.setdefault("RAY_AUTH_MODE", "token")
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))  # everyone could read the file that Ray makes
        # A cluster that never leaves the machine has the loopback address, and its servers listen on that address
        # alone. Ray does so by default on Windows and macOS only. It reads this variable at its import.
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
        options |= {"num_cpus": available_cores(), "object_store_memory": OBJECT_STORE_BYTES}
        options |= {"include_dashboard": False}
    import ray  # an optional package, which reads these variables at its import

    if ray.is_initialized():
        return ray
    variables = {name: value for name, value in environment(1).items() if name == "PYTHONPATH"}
    try:
        if address == "local":
            # Everyone could write to the files and sockets in Ray's default folder.
            options["_temp_dir"] = str(closing.enter_context(files.temporary_folder(TEMPORARY, socket_folder())))
        elif address != "auto":  # Ray itself waits for minutes
            host, _, port = address.rpartition(":")
            socket.create_connection((host, int(port)), timeout=10).close()
        # Ray's workers first import from the folder in which Ray starts.
        with contextlib.chdir(ROOT):
            ray.init(**options, log_to_driver=False, logging_level=logging.ERROR, runtime_env={"env_vars": variables})
    except (OSError, OverflowError, RuntimeError, ValueError) as error:
        closing.close()
        text = getattr(error, "strerror", None) or str(error).strip() or type(error).__name__
        reason = text.splitlines()[0].rstrip(".")
        if address == "auto" and isinstance(error, ConnectionError):
            reason = "no Ray cluster is running"  # Ray's message names options that the suite does not have
        raise UsageError(
            f"--ray-address {address}: {reason}; start a cluster with 'ray start --head', which prints its address, or "
            "type --ray-address local"
        ) from error
    closing.callback(ray.shutdown)
    return ray


def socket_folder() -> str:
    """Return the folder of temporary files, or /tmp if paths of Ray's sockets in that folder would be too long."""
    folder = tempfile.gettempdir()
    return folder if len(os.fsencode(folder)) + len(str(os.getuid())) <= LONGEST_TEMPORARY else "/tmp"


def task_needs(nodes: Sequence[Mapping[str, Any]], trial: TrialSpec, jobs: int) -> dict[str, float]:
    """Return the resources that the task of a trial declares.

    Args:
        nodes: Machines of the cluster, as `ray.nodes()` returns them.
        trial: The trial. All trials of a command have the same device and number of processes.
        jobs: Number of trials at a time on the smallest machine.

    Raises:
        UsageError: No machine has these resources.
    """
    gpus = trial.processes if trial.device == "cuda" else 0
    machines = [node["Resources"] for node in nodes if node["Alive"]]
    able = [machine["CPU"] for machine in machines if machine.get("CPU", 0) > 0 and machine.get("GPU", 0) >= gpus]
    if not able:
        what = f"a CPU and {gpus} GPU(s)" if gpus else "a CPU"
        raise UsageError(f"--engine ray: none of the {len(machines)} machines of the cluster has {what} for a trial")
    cpus = min(able)
    share = -(-cpus // jobs) if cpus >= jobs else int(10_000 * cpus / jobs) / 10_000  # Ray rounds to four decimals
    return {"CPU": share, **({"GPU": gpus} if gpus else {})}


def fits(node: Mapping[str, Any], needs: Mapping[str, float]) -> int:
    """Return how many tasks a machine of the cluster runs at a time."""
    if not node["Alive"]:
        return 0
    return int(min(node["Resources"].get(name, 0) / amount + 1e-6 for name, amount in needs.items()))


def own_variables() -> dict[str, str]:
    """Return the variables of this process that trials read, except those that describe this machine."""
    names = [name for name in os.environ if name.startswith(FLAG_PREFIXES) and name not in _OF_THE_MACHINE]
    variables = environment(1)
    if not threads_of_environment():
        del variables["OMP_NUM_THREADS"]  # the number for this machine
    return {name: variables[name] for name in (*names, *_OURS) if name in variables}


def make_token(folder: Path) -> Path:
    """Make a file that shows workers whether they share a folder with this machine; remove files of killed commands.

    Args:
        folder: Folder of the trials.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.glob(f"{TOKEN}*"):
        path.unlink(missing_ok=True)
    token = folder / f"{TOKEN}{secrets.token_hex(8)}"
    token.touch()
    return token


def _run_on_node(job: Job, needs: Mapping[str, float], total: int, sent: Mapping[str, Content]) -> Ended:
    """Run a trial on the machine of this worker, next to as many others as the machine has room for."""
    import ray  # an optional package

    # Ray repeats the trial if a node is killed. The worker on that node would otherwise train on.
    if not die_with(os.getppid()):
        raise RuntimeError("the node of this worker has ended")
    node_id = ray.get_runtime_context().get_node_id()
    (node,) = [node for node in ray.nodes() if node["NodeID"] == node_id]
    return run_job(job, max(1, min(total, fits(node, needs))), sent)


def run_job(job: Job, at_a_time: int, sent: Mapping[str, Content]) -> Ended:
    """Run a trial on this machine.

    Args:
        at_a_time: Number of such trials that this machine runs at a time.
        sent: Content of the folders of the trial and of those that it depends on, by trial.

    Raises:
        UsageError: An earlier process of the same trial does not end.
    """
    if job.token.is_file():  # the output folder is shared
        job.folder.mkdir(parents=True, exist_ok=True)
        try:  # The log is locked, so that no file is added. On another machine, a killed command's processes end later.
            lock = files.lock(job.folder / "log.txt", EARLIER_WORKER_S)
        except TimeoutError:
            raise UsageError(f"another process has trained it for {EARLIER_WORKER_S:.0f} s") from None
        with lock:
            return _run(job, job.folder, at_a_time)
    with files.temporary_folder(TEMPORARY) as parent:
        for name, content in sent.items():
            write_content(parent / name, content)
        ended = _run(job, parent / job.spec.trial_id, at_a_time)
        ended.content = read_content(parent / job.spec.trial_id)
        return ended


def _run(job: Job, folder: Path, at_a_time: int) -> Ended:
    threads = max(1, available_cores() // (at_a_time * job.spec.processes))
    place = Place(shared_with=at_a_time - 1 if job.spec.device == "cpu" else 0)  # Ray gives each task its own GPUs
    variables = {"OMP_NUM_THREADS": str(threads), **job.variables}  # Ray's own value counts hardware threads
    ended = Ended()
    LocalEngine(1, job.timeout, place=place, variables=variables).run([(job.spec, folder)], ended)
    return ended


def read_content(folder: Path) -> Content:
    """Return the files of a folder and its subfolders, without temporary files."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.is_symlink() and path.suffix != ".part" and path.name != ProgressFile.NAME
    }


def write_content(folder: Path, content: Content) -> None:
    """Replace the files of a folder, each atomically and the record last. Other files are removed.

    Raises:
        OSError: A file cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    old = set(read_content(folder)) - set(content)
    for name in sorted(content, key=lambda name: (name == "trial.json", name)):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        files.write(folder / name, content[name])
    for name in old:
        (folder / name).unlink(missing_ok=True)
