"""Trials as processes of this machine, a few at a time, each on its own cores or GPUs; and what every engine does."""

from __future__ import annotations

import contextlib
import json
import os
import pkgutil
import signal
import subprocess
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from suite import files
from suite.engine.cost.hardware import CORES, available_cores, physical_cores
from suite.errors import UsageError, in_words
from suite.registry import register
from suite.trials.folder.records import REMOVED_NOTHING, RUNNING, lacking, read_record, write_record
from suite.trials.process import PLACE, ProgressFile, environment, forked, start_process, trial_command
from suite.trials.progress import EpochReader, ProgressListener
from suite.trials.spec import TrialSpec

POLL_INTERVAL = 0.1
_GPUS = "CUDA_VISIBLE_DEVICES"


@dataclass
class Running:
    """A trial that an engine has started.

    Attributes:
        trial, folder: The trial and its folder.
        number: The lowest number, from 0, that no other running trial had as it started.
        epochs: Reads the epochs that end.
        began: When it was started, by `time.monotonic`.
        handle: What `Engine.start` has returned.
    """

    trial: TrialSpec
    folder: Path
    number: int
    epochs: EpochReader
    began: float = field(default_factory=time.monotonic)
    handle: Any = None


class Engine(ABC):
    """Runs trials, a few at a time, each after those that it depends on."""

    @abstractmethod
    def slots(self, waiting: Sequence[tuple[TrialSpec, Path]]) -> int:
        """Return how many trials may run at present."""

    @abstractmethod
    def start(self, trial: TrialSpec, folder: Path, number: int) -> Any:
        """Start a trial, and return what the other methods find as `Running.handle`.

        Args:
            number: As in `Running`.

        Raises:
            UsageError, OSError: It cannot be started.
        """

    @abstractmethod
    def end(self, item: Running) -> dict[str, Any] | None:
        """Return the record of a trial, or its status and message, if it has ended or has to; otherwise `None`."""

    @abstractmethod
    def kill(self, item: Running) -> Any:
        """End a trial at once."""

    def run(self, trials: Sequence[tuple[TrialSpec, Path]], progress: ProgressListener) -> None:
        """Run trials until each has ended and has its status in `trial.json`. A failed trial does not stop the others.

        A file error does not stop the others either. A trial ends with an error if its folder is removed while it runs,
        or if its record does not fit on the disk.

        Raises:
            KeyboardInterrupt: The user typed Ctrl-C, and all trials were killed. The same command continues later.
        """
        waiting, running = deque(trials), list[Running]()
        try:
            while waiting or running:
                slots = self.slots(waiting)
                while len(running) < slots and (ready := _next_ready(waiting, running)):
                    waiting.remove(ready)
                    trial, folder = ready
                    number = min({*range(len(running) + 1)} - {item.number for item in running})
                    item = Running(trial, folder, number, EpochReader(folder))
                    status, reason = "skipped", why_skipped(trial, folder)
                    if not reason:
                        try:
                            item.handle = self.start(trial, folder, item.number)
                            running.append(item)
                        except (OSError, UsageError) as error:
                            status, reason = "error", f"cannot be started: {in_words(error)}"
                    progress.started(trial)
                    if reason:
                        progress.ended(trial, record_end(trial, folder, status, reason), 0.0)
                time.sleep(POLL_INTERVAL)
                for item in list(running):
                    record = self.end(item)
                    if position := ProgressFile(item.folder).read():
                        progress.position(item.trial, position)
                    for epoch in item.epochs.read():
                        progress.epoch(item.trial, epoch)
                    if record is not None:
                        running.remove(item)
                        with contextlib.suppress(OSError):  # only the progress bar reads this file
                            (item.folder / ProgressFile.NAME).unlink(missing_ok=True)
                        progress.ended(item.trial, record, time.monotonic() - item.began)
        finally:
            # No trial may keep running after Ctrl-C or an error in this process.
            for item in running:
                self.kill(item)
                written = read_record(item.folder)
                if written is None or written.status == RUNNING:
                    record_end(item.trial, item.folder, "error", "interrupted; the same command continues it")


def _next_ready(waiting: Sequence[tuple[TrialSpec, Path]], running: Sequence[Running]) -> tuple[TrialSpec, Path] | None:
    """Return the first trial whose dependencies have all ended; `None` if every trial has to wait."""
    ahead = {folder.name for _, folder in waiting} | {item.folder.name for item in running}
    return next((item for item in waiting if not ahead & set(item[0].depends_on.values())), None)


def record_end(trial: TrialSpec, folder: Path, status: str, message: str) -> dict[str, Any]:
    """Write the record of how a trial ended, and return it. If writing fails, the message says so."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_record(folder, trial, status, message)
    except (OSError, UsageError) as error:
        message = f"{message}; its record cannot be written: {in_words(error)}"
    return {"status": status, "message": message}


def why_skipped(trial: TrialSpec, folder: Path) -> str:
    """Return why a trial cannot be trained because of a trial that it depends on; empty if it can.

    A control of methods that removed nothing would repeat dense training (`REMOVED_NOTHING`).
    """
    results = {}
    for trial_id in trial.depends_on.values():
        record = read_record(folder.parent / trial_id)
        if record is None or not record.done or lacking(folder.parent / trial_id, record):
            return f"it depends on {trial_id}, which is not done"
        results[trial_id] = record.result
    counts = ("params", "inference_flops")
    # Some methods also depend on the dense training whose weights they start from. It removes nothing.
    whole = all(result.get(name) == result.get(f"{name}_dense") for result in results.values() for name in counts)
    if trial.control and results and whole:
        return f"it is a control of {' and '.join(results)}, which {REMOVED_NOTHING}"
    return ""


@dataclass(frozen=True)
class Place:
    """Where one of several trials runs.

    Attributes:
        cpus: Numbers of the logical CPUs that it may use; empty for all.
        gpus: GPUs that it may use, as in `CUDA_VISIBLE_DEVICES`; empty for all.
        shared_with: Largest number of other trials that use the same device at the same time. All cores of a machine
            count as one device, because they share memory bandwidth, caches and power.
    """

    cpus: tuple[int, ...] = ()
    gpus: tuple[str, ...] = ()
    shared_with: int = 0

    def variables(self) -> dict[str, str]:
        """Return the environment variables of a trial at this place, whose process takes it before it imports torch."""
        variables = {PLACE: json.dumps(asdict(self)), CORES: str(available_cores())}
        return variables | ({_GPUS: ",".join(self.gpus)} if self.gpus else {})


def places_for(trials: Sequence[TrialSpec], jobs: int) -> list[Place]:
    """Return the places of the trials that run at the same time. All trials have one device and number of processes.

    On a CPU, each has equally many physical cores, or all if there are too few. On GPUs, it has one for each process;
    if there are too few, trials share them.

    Args:
        trials: All trials of the command.
        jobs: Largest number of trials that run at the same time.

    Returns:
        `jobs` places, or as many as there are trials. A trial that runs alone may use all cores and GPUs.
    """
    count = min(jobs, len(trials))
    if count <= 1:
        return [Place()] * count
    trial = trials[0]
    if trial.device == "cpu":
        cores = physical_cores()
        each = len(cores) // count if available_cores() >= count else 0
        parts = [cores[index * each : (index + 1) * each] for index in range(count)]
        return [
            Place(cpus=tuple(sorted(cpu for core in part for cpu in core)), shared_with=count - 1) for part in parts
        ]
    gpus, size = [] if trial.device_index is not None else visible_gpus(), trial.processes
    groups = [tuple(gpus[i : i + size]) for i in range(0, len(gpus) - size + 1, size)] or [()]
    numbers = [index % len(groups) for index in range(count)]
    return [Place(gpus=groups[number], shared_with=numbers.count(number) - 1) for number in numbers]


def visible_gpus() -> list[str]:
    """Return the GPUs that torch finds, as in `CUDA_VISIBLE_DEVICES`."""
    count = forked(lambda: pkgutil.resolve_name("torch.cuda:device_count")())  # imports torch in a process that ends
    listed = [name.strip() for name in os.environ.get(_GPUS, "").split(",") if name.strip()]
    return listed[:count] if listed else [str(index) for index in range(count)]


@register("engine", "local")
class LocalEngine(Engine):
    """Trials as processes of this machine.

    The thread that calls `run` must outlive the trials: Linux kills a process when the thread that started it ends.

    Args:
        jobs: Number of trials that run at the same time, each on its own cores or GPUs.
        timeout: Seconds after which a trial is killed; `None` for no limit.
        place: Where the trials run; `None` gives each trial that runs at the same time a place of its own.
        variables: Environment variables of the trials' processes. They replace those of this process.
    """

    def __init__(
        self,
        jobs: int = 1,
        timeout: float | None = None,
        place: Place | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        self.jobs, self.timeout, self.place, self.variables = jobs, timeout, place, dict(variables or {})

    def run(self, trials: Sequence[tuple[TrialSpec, Path]], progress: ProgressListener) -> None:
        self._places = [self.place] * self.jobs if self.place else places_for([trial for trial, _ in trials], self.jobs)
        super().run(trials, progress)

    def slots(self, waiting: Sequence[tuple[TrialSpec, Path]]) -> int:
        return self.jobs

    def start(self, trial: TrialSpec, folder: Path, number: int) -> subprocess.Popen[bytes]:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / ProgressFile.NAME).unlink(missing_ok=True)
        write_record(folder, trial, RUNNING)
        files.append(folder / "log.txt", f"--- {datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ} {trial.trial_id} ---\n")
        variables = environment(self.jobs * trial.processes) | self._places[number].variables() | self.variables
        return start_process(trial_command(folder), folder, variables)

    def end(self, item: Running) -> dict[str, Any] | None:
        timed_out = item.handle.poll() is None
        if timed_out and (self.timeout is None or time.monotonic() - item.began < self.timeout):
            return None
        status = self.kill(item)
        record = read_record(item.folder)
        if record and record.status != RUNNING:
            return record.to_json()
        # The trial did not record how it ended.
        if not (item.folder / "trial.json").exists():
            return record_end(item.trial, item.folder, "error", "its folder or trial.json was removed while it ran")
        if timed_out:
            return record_end(item.trial, item.folder, "timeout", f"killed after {self.timeout:g} s (--timeout)")
        ended = f"killed by signal {-status}" if status < 0 else _last_line(item.folder / "log.txt")
        return record_end(item.trial, item.folder, "error", ended or f"exit status {status}; log.txt is empty")

    def kill(self, item: Running) -> int:
        """Kill the rest of a trial's process group, and return the exit status of its first process.

        This removes what the processes have half written, for example a checkpoint.
        """
        process: subprocess.Popen[bytes] = item.handle
        try:
            # The guardian (`suite.trials.process`) keeps the number of the group from being given to another one.
            os.killpg(process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            # The group is empty. macOS reports "not permitted" for a group of zombies.
            process.kill()
        status = process.wait()
        assert process.stdin
        process.stdin.close()
        for folder in (item.folder, item.folder / "stages"):
            for part in files.parts(folder):
                with contextlib.suppress(OSError):  # other trials go on
                    part.unlink()
        return status


def _last_line(log: Path) -> str:
    """Return the last non-empty line of a log, shortened for tables."""
    try:
        lines = log.read_text(errors="replace").splitlines()
    except OSError as error:
        return in_words(error)
    return next((line.strip()[:300] for line in reversed(lines) if line.strip() and not line.startswith("--- ")), "")
