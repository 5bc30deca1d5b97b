"""Trials as processes of this machine, a few at a time; and what every engine needs about ends and order of trials."""

from __future__ import annotations

import contextlib
import os
import signal
import site
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from suite import files
from suite.engine.cost.hardware import available_cores, threads_of_environment
from suite.errors import UsageError, in_words
from suite.registry import register
from suite.trials.engines.cpu_cores import Place, places_for
from suite.trials.engines.exit_with_parent import PARENT
from suite.trials.folder.records import RUNNING, lacking, read_record, write_record
from suite.trials.folder.table import REMOVED_NOTHING
from suite.trials.invocation import command_line
from suite.trials.progress import EpochReader, ProgressFile, ProgressListener
from suite.trials.spec import TrialSpec


def record_end(trial: TrialSpec, folder: Path, status: str, message: str) -> dict[str, Any]:
    """Write the record of how a trial ended, and return it. If writing fails, the message says so."""
    try:
        files.make_folder(folder)
        write_record(folder, trial, status, message)
    except (OSError, UsageError) as error:
        text = in_words(error) if isinstance(error, OSError) else str(error)
        return {"status": status, "message": f"{message}; its record cannot be written: {text}"}
    return {"status": status, "message": message}


def end_unstarted(trial: TrialSpec, folder: Path, status: str, message: str, progress: ProgressListener) -> None:
    """End a trial that was not started."""
    progress.started(trial)
    progress.ended(trial, record_end(trial, folder, status, message), 0.0)


def next_ready(waiting: Collection[tuple[TrialSpec, Path]], running: Iterable[str]) -> tuple[TrialSpec, Path] | None:
    """Return the first trial whose dependencies have all ended; `None` if every trial has to wait.

    Args:
        waiting: Trials that were not started, with their folders.
        running: Ids of the trials that are running.
    """
    ahead = {folder.name for _, folder in waiting} | set(running)
    return next((item for item in waiting if not ahead & set(item[0].depends_on.values())), None)


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


def status_of(folder: Path) -> str:
    """Return the status in `trial.json`. A missing or damaged record counts as running."""
    record = read_record(folder)
    return RUNNING if record is None else record.status


def show(trial: TrialSpec, folder: Path, epochs: EpochReader, progress: ProgressListener) -> None:
    """Report the position of a running trial, and the epochs that have ended since the last call."""
    position = ProgressFile(folder).read()
    if position is not None:
        progress.position(trial, position)
    for record in epochs.read():
        progress.epoch(trial, record)


POLL_INTERVAL = 0.1
LAST_BYTES = 4096  # end of the log that is searched for the last line

# By default, glibc maps each allocation above 128 KiB (later up to 32 MiB) separately and unmaps it when it is freed.
# Activations are larger, so every step would pay for new zeroed pages.
MALLOC: Final = {
    "MALLOC_MMAP_THRESHOLD_": str(2**32),
    "MALLOC_TRIM_THRESHOLD_": str(2**33),
    "MALLOC_TOP_PAD_": str(2**28),
}


def trial_command(folder: Path) -> list[str]:
    """Return the command that runs a trial. `-P` excludes modules in the user's folder from imports."""
    return [sys.executable, "-P", "-m", "suite.trials.trial", str(folder)]


@dataclass
class _Running:
    trial: TrialSpec
    folder: Path
    process: subprocess.Popen[bytes]
    epochs: EpochReader
    place: Place
    began: float = field(default_factory=time.monotonic)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began


@register("engine", "local")
class LocalEngine:
    """Trials as processes of this machine.

    Args:
        jobs: Number of trials that run at the same time, each on its own cores or GPUs.
        timeout: Seconds after which a trial is killed; `None` for no limit.
        command: Returns the command line that runs the trial of a folder.
        place: Where the trials run; `None` gives each trial that runs at the same time a place of its own.
        variables: Environment variables of the trials' processes. They replace those of this process.
    """

    def __init__(
        self,
        jobs: int = 1,
        timeout: float | None = None,
        command: Callable[[Path], list[str]] | None = None,
        place: Place | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        self.jobs, self.timeout, self.command = jobs, timeout, command or trial_command
        self.place, self.variables = place, dict(variables or {})

    def run(self, trials: Sequence[tuple[TrialSpec, Path]], progress: ProgressListener) -> None:
        """Run trials until each has ended and has its status in `trial.json`. A failed trial does not stop the others.

        A file error does not stop the others either. A trial ends with an error if its folder is removed while it runs,
        or if its record does not fit on the disk.

        The calling thread must outlive the trials, because Linux kills a process when the thread that started it ends.

        Raises:
            KeyboardInterrupt: The user typed Ctrl-C, and all processes were killed. The same command continues later.
        """
        waiting, running = deque(trials), list[_Running]()
        places = [self.place] * self.jobs if self.place else places_for([trial for trial, _ in trials], self.jobs)
        try:
            while waiting or running:
                while len(running) < self.jobs and (
                    ready := next_ready(waiting, {item.folder.name for item in running})
                ):
                    waiting.remove(ready)
                    if reason := why_skipped(*ready):
                        end_unstarted(*ready, "skipped", reason, progress)
                        continue
                    try:
                        running.append(self._start(*ready, places[0]))
                    except (OSError, UsageError) as error:
                        text = in_words(error) if isinstance(error, OSError) else str(error)
                        end_unstarted(*ready, "error", f"cannot be started: {text}", progress)
                        continue
                    places.pop(0)
                    progress.started(ready[0])
                time.sleep(POLL_INTERVAL)
                for item in list(running):
                    timed_out = self.timeout is not None and item.seconds >= self.timeout
                    ended = _has_ended(item.process)
                    show(item.trial, item.folder, item.epochs, progress)
                    if ended or timed_out:
                        self._finish(item, timed_out and not ended, progress)
                        running.remove(item)
                        places.insert(0, item.place)
        finally:
            # No trial may keep running after Ctrl-C or an error in this process.
            for item in running:
                _kill(item)
                if status_of(item.folder) == RUNNING:
                    record_end(item.trial, item.folder, "error", "interrupted; the same command continues it")

    def _start(self, trial: TrialSpec, folder: Path, place: Place) -> _Running:
        files.make_folder(folder)
        (folder / ProgressFile.NAME).unlink(missing_ok=True)
        write_record(folder, trial, RUNNING)
        reader = EpochReader(folder)
        with os.fdopen(files.open_descriptor(folder / "log.txt", os.O_WRONLY | os.O_APPEND), "ab") as log:
            log.write(f"--- {datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ} {trial.trial_id} ---\n".encode())
            log.flush()
            process = subprocess.Popen(
                self.command(folder),
                stdin=subprocess.PIPE,  # nothing writes to it: see suite.trials.engines.exit_with_parent
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=environment(self.jobs * trial.processes) | place.variables(available_cores()) | self.variables,
            )
        return _Running(trial, folder, process, reader, place)

    def _finish(self, item: _Running, timed_out: bool, progress: ProgressListener) -> None:
        status = _kill(item)
        record = read_record(item.folder)
        ended = {} if record is None else record.to_json()
        if record is None or record.status == RUNNING:
            # The trial did not record how it ended.
            is_removed = not (item.folder / "trial.json").exists()
            if is_removed:
                reason = "its folder or trial.json was removed while it ran"
            elif timed_out:
                reason = f"killed after {self.timeout:g} s (--timeout)"
            elif status < 0:
                reason = f"killed by signal {-status}"
            else:
                reason = _last_line(item.folder / "log.txt") or f"exit status {status}; log.txt is empty"
            timeout = timed_out and not is_removed
            ended = record_end(item.trial, item.folder, "timeout" if timeout else "error", reason)
        with contextlib.suppress(OSError):  # only the progress bar reads this file
            (item.folder / ProgressFile.NAME).unlink(missing_ok=True)
        progress.ended(item.trial, ended, item.seconds)


def environment(jobs: int) -> dict[str, str]:
    """Return the environment of a trial's process if `jobs` such processes share the machine.

    The user's variables take precedence.
    """
    threads = max(1, available_cores() // jobs)
    defaults = {**MALLOC, "PYTHONUNBUFFERED": "1"}
    # Without an installed package, trials import the package from the folder where this process found it.
    root = str(Path(__file__).resolve().parents[3])
    installed = root in {
        str(Path(folder).resolve()) for folder in (*site.getsitepackages(), site.getusersitepackages())
    }
    paths = [] if installed else [root]
    paths += [os.environ["PYTHONPATH"]] if os.environ.get("PYTHONPATH") else []
    ours = {PARENT: str(os.getpid()), "PDT_COMMAND_LINE": command_line()}
    if paths:
        ours["PYTHONPATH"] = os.pathsep.join(paths)
    if not threads_of_environment():  # an empty variable, or one that is not a number, counts as not set
        ours["OMP_NUM_THREADS"] = str(threads)
    return {**defaults, **os.environ, **ours}


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    if hasattr(os, "waitid"):
        # The process is not reaped yet, so that no other group gets its number before `_kill`.
        return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    return process.poll() is not None


def _kill(item: _Running) -> int:
    """Kill the rest of a trial's process group, and return the exit status of its first process.

    This removes what the processes have half written, for example a checkpoint.
    """
    process = item.process
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        # The group is empty. macOS reports "not permitted" for a group of zombies.
        process.kill()
    status = process.wait()
    if process.stdin is not None:
        process.stdin.close()
    for folder in (item.folder, item.folder / "stages"):
        for part in files.parts(folder):
            with contextlib.suppress(OSError):  # other trials go on
                part.unlink()
    return status


def _last_line(log: Path) -> str:
    """Return the last non-empty line of a log, shortened for tables."""
    try:
        with open(log, "rb") as file:
            file.seek(max(0, log.stat().st_size - LAST_BYTES))
            lines = [line.strip() for line in file.read().decode(errors="replace").splitlines()]
    except OSError as error:
        return in_words(error)
    return next((line[:300] for line in reversed(lines) if line and not line.startswith("--- ")), "")
