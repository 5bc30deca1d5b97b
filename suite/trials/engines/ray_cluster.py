"""Trials as tasks of a Ray cluster. Only this module imports Ray, and only if a command uses this engine.

A task runs one trial in its own process (`suite.trials.engines.ray_worker`), which ends with the task's worker. The
tasks belong to the command, so Ray ends them if the command is killed. As with other engines, the records say which
trials are done.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import secrets
import socket
import sys
import tempfile
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from suite import files
from suite.engine.cost.hardware import available_cores, threads_of_environment
from suite.errors import UsageError, in_words
from suite.registry import register
from suite.trials.engines.exit_with_parent import die_with
from suite.trials.engines.local import end_unstarted, environment, next_ready, record_end, show, status_of, why_skipped
from suite.trials.engines.ray_worker import TEMPORARY, Ended, Job, read_content, run_job, write_content
from suite.trials.folder.records import RUNNING
from suite.trials.invocation import FLAG_PREFIXES, ROOT
from suite.trials.progress import EpochReader, ProgressListener
from suite.trials.spec import TrialSpec

log = logging.getLogger(__name__)

POLL_INTERVAL = 0.1
NODES_INTERVAL = 5.0  # seconds between two lists of the cluster's machines
OBJECT_STORE_BYTES = 256 * 2**20  # a cluster on this machine stores only what the command sends
TOKEN = ".shared-"
_OURS = ("PDT_CHOICES", "PDT_COMMAND_LINE")
_OF_THE_MACHINE = ("CUDA_VISIBLE_DEVICES", "LD_PRELOAD")


@dataclass
class _Task:
    trial: TrialSpec
    folder: Path
    reference: Any
    epochs: EpochReader
    began: float = field(default_factory=time.monotonic)


@register("engine", "ray")
class RayEngine:
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
        self._closing = contextlib.ExitStack()
        self._ray = connect(address, self._closing)

    def run(self, trials: Sequence[tuple[TrialSpec, Path]], progress: ProgressListener) -> None:
        """Run trials until each has ended and has its status in `trial.json`. A failed trial does not stop the others.

        Raises:
            KeyboardInterrupt: The user typed Ctrl-C, and the tasks were cancelled. The same command continues later.
            UsageError: No machine of the cluster has what a trial needs.
        """
        running: list[_Task] = []
        token: Path | None = None
        try:
            if trials:
                token = write_token(trials[0][1].parent)
                self._run(deque(trials), running, token, progress)
        finally:
            for task in running:
                with contextlib.suppress(Exception):  # the cluster may be gone
                    self._ray.cancel(task.reference, force=True)
                if status_of(task.folder) == RUNNING:
                    record_end(task.trial, task.folder, "error", "interrupted; the same command continues it")
            if token is not None:
                token.unlink(missing_ok=True)
            self._closing.close()

    def _run(
        self, waiting: deque[tuple[TrialSpec, Path]], running: list[_Task], token: Path, progress: ProgressListener
    ) -> None:
        total, slots, look = len(waiting), 0, 0.0
        needs: dict[str, float] = {}
        while waiting or running:
            if time.monotonic() >= look:
                nodes, look = self._ray.nodes(), time.monotonic() + NODES_INTERVAL
                if trial := next((trial for trial, _ in waiting), None):
                    needs = self._needs(nodes, trial, needs)
                before, slots = slots, sum(fits(node, needs) for node in nodes)
                if before and not slots:
                    log.warning("--engine ray: the machines of the cluster are down; trials wait until one is up again")
            while len(running) < slots and (ready := next_ready(waiting, [item.folder.name for item in running])):
                waiting.remove(ready)
                if reason := why_skipped(*ready):
                    end_unstarted(*ready, "skipped", reason, progress)
                    continue
                try:
                    running.append(self._submit(*ready, token, needs, total))
                except (OSError, UsageError) as error:
                    text = in_words(error) if isinstance(error, OSError) else str(error)
                    end_unstarted(*ready, "error", f"cannot be started: {text}", progress)
                    continue
                progress.started(ready[0])
            if running:
                self._ray.wait([item.reference for item in running], timeout=POLL_INTERVAL)
            else:
                time.sleep(POLL_INTERVAL)  # the cluster has no machine at present
            for item in list(running):
                show(item.trial, item.folder, item.epochs, progress)
                if self._ray.wait([item.reference], timeout=0)[0]:
                    self._finish(item, progress)
                    running.remove(item)

    def _needs(
        self, nodes: Sequence[Mapping[str, Any]], trial: TrialSpec, earlier: dict[str, float]
    ) -> dict[str, float]:
        """Return the resources that a task declares. They stay the same while the machines that had them are down.

        Raises:
            UsageError: No machine has ever had the resources of a trial.
        """
        try:
            return task_needs(nodes, trial, self.jobs)
        except UsageError:
            if not earlier:
                raise
            return earlier

    def _submit(self, trial: TrialSpec, folder: Path, token: Path, needs: Mapping[str, float], total: int) -> _Task:
        job = Job(trial, folder, token, token.read_text(encoding="ascii"), own_variables(), self.timeout)
        names = (folder.name, *trial.depends_on.values())
        # A worker that sees the output folder ignores the content that is sent.
        sent = {name: read_content(folder.parent / name) for name in names if (folder.parent / name).is_dir()}
        files.make_folder(folder)
        epochs = EpochReader(folder)
        remote = self._ray.remote(_run_on_node).options(
            name=trial.trial_id,
            num_cpus=needs["CPU"],
            num_gpus=needs.get("GPU", 0),
            max_retries=1,
            retry_exceptions=False,
            scheduling_strategy="SPREAD",
        )
        return _Task(trial, folder, remote.remote(job, needs, total, sent), epochs)

    def _finish(self, item: _Task, progress: ProgressListener) -> None:
        seconds = time.monotonic() - item.began
        try:
            ended: Ended = self._ray.get(item.reference)
            record, seconds = ended.record, ended.seconds
            if ended.content is not None:
                write_content(item.folder, ended.content)
        except self._ray.exceptions.RayError as error:
            record = record_end(item.trial, item.folder, "error", self._in_words(error))
        except (OSError, UsageError) as error:
            text = in_words(error) if isinstance(error, OSError) else str(error)
            record = record_end(item.trial, item.folder, "error", f"what its worker sent is not written: {text}")
        show(item.trial, item.folder, item.epochs, progress)  # epochs that came with the end, or just before it
        progress.ended(item.trial, record, seconds)

    def _in_words(self, error: Exception) -> str:
        """Return in one line why a task has no result."""
        found = self._ray.exceptions
        cause = getattr(error, "cause", None)
        lines = str(cause or error).strip().splitlines() or [type(error).__name__]
        if isinstance(error, found.RayTaskError):
            return f"its Ray task failed: {lines[0] if isinstance(cause, UsageError) else lines[-1]}"[:300]
        died = (found.WorkerCrashedError, found.NodeDiedError, found.LocalRayletDiedError, found.OutOfMemoryError)
        return f"{'its Ray worker died twice' if isinstance(error, died) else 'its Ray task failed'}: {lines[0]}"[:300]


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
    if address == "local":
        os.environ.setdefault("RAY_AUTH_MODE", "token")
        # A cluster that never leaves the machine has the loopback address, and its servers listen on that address
        # alone. Ray does so by default on Windows and macOS only. It reads this variable at its import.
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    _keep_password_private(create=address == "local")
    import ray  # an optional package, which reads these variables at its import

    if ray.is_initialized():
        return ray
    options: dict[str, Any] = {"address": address}
    if address == "local":
        options |= {
            "num_cpus": available_cores(),
            "object_store_memory": OBJECT_STORE_BYTES,
            "include_dashboard": False,
            # Everyone could write to the files and sockets in Ray's default folder.
            "_temp_dir": str(closing.enter_context(files.temporary_folder(TEMPORARY))),
        }
    elif address != "auto":
        _check_reachable(address)
    variables = {"PYTHONPATH": environment(1)["PYTHONPATH"]} if "PYTHONPATH" in environment(1) else {}
    try:
        # Ray's workers first import from the folder in which Ray starts.
        with contextlib.chdir(ROOT):
            ray.init(**options, log_to_driver=False, logging_level=logging.ERROR, runtime_env={"env_vars": variables})
    except (ConnectionError, RuntimeError, ValueError) as error:
        closing.close()
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        if address == "auto" and isinstance(error, ConnectionError):
            reason = "no Ray cluster is running"  # Ray's message names options that the suite does not have
        raise UsageError(
            f"--ray-address {address}: {reason.rstrip('.')}; start a cluster with 'ray start --head', or type "
            "--ray-address local"
        ) from error
    closing.callback(ray.shutdown)
    return ray


def _keep_password_private(create: bool) -> None:
    """Let only the user read the file with the password of Ray's clusters. Ray itself lets everyone read it.

    Args:
        create: Whether to make the file if there is none.

    Raises:
        UsageError: The file cannot be made.
    """
    if os.environ.get("RAY_AUTH_TOKEN") or os.environ.get("RAY_AUTH_TOKEN_PATH"):
        return
    path = Path.home() / ".ray" / "auth_token"
    try:
        if path.exists():
            path.chmod(0o600)
        elif create:
            path.parent.mkdir(mode=0o700, exist_ok=True)
            descriptor, made = tempfile.mkstemp(dir=path.parent)  # with mode 0600
            with os.fdopen(descriptor, "w", encoding="ascii") as file:
                file.write(secrets.token_hex(32))
            with contextlib.suppress(FileExistsError):  # another command was faster
                os.link(made, path)
            Path(made).unlink()
    except OSError as error:
        raise UsageError(f"--engine ray: the file of its password cannot be kept private: {in_words(error)}") from error


def _check_reachable(address: str) -> None:
    """Check that a server listens at an address, because Ray itself waits for minutes.

    Raises:
        UsageError: No server listens.
    """
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=10).close()
    except OSError as error:
        raise UsageError(
            f"--ray-address {address}: no Ray cluster answers there ({error.strerror or error}); 'ray start --head' "
            "prints the address of the cluster that it starts"
        ) from error


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


def write_token(folder: Path) -> Path:
    """Write a file that shows workers whether they share a folder with this machine; remove files of killed commands.

    Args:
        folder: Folder of the trials.
    """
    files.make_folder(folder)
    for path in folder.glob(f"{TOKEN}*"):
        path.unlink(missing_ok=True)
    path = folder / f"{TOKEN}{secrets.token_hex(8)}"
    files.write(path, secrets.token_hex(16))
    return path


def _run_on_node(job: Job, needs: Mapping[str, float], total: int, sent: Mapping[str, dict[str, bytes]]) -> Ended:
    import ray  # an optional package

    # Ray repeats the trial if a node is killed. The worker on that node would otherwise train on.
    if sys.platform == "linux" and not die_with(os.getppid()):
        raise RuntimeError("the node of this worker has ended")
    node_id = ray.get_runtime_context().get_node_id()
    (node,) = [node for node in ray.nodes() if node["NodeID"] == node_id]
    return run_job(job, max(1, min(total, fits(node, needs))), sent)
