"""Trials as processes of this machine, a few at a time."""

from __future__ import annotations

import contextlib
import os
import signal
import site
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from suite import files
from suite.cost.hardware import available_cores
from suite.errors import UsageError, in_words
from suite.registry import register
from suite.runs.engines.lifeline import PARENT
from suite.runs.folder.records import RUNNING, damage, read_record, write_record
from suite.runs.progress import EpochReader, ProgressFile, ProgressListener
from suite.runs.provenance import command_line
from suite.runs.spec import TrialSpec

POLL_INTERVAL = 0.1
LAST_BYTES = 4096  # of the log, searched for its last line

# glibc maps each allocation above 128 KiB (later up to 32 MiB) separately and unmaps it when it is freed. Activations
# are larger, so every step would otherwise pay for new zeroed pages.
MALLOC: Final = {
    "MALLOC_MMAP_THRESHOLD_": str(2**32),
    "MALLOC_TRIM_THRESHOLD_": str(2**33),
    "MALLOC_TOP_PAD_": str(2**28),
}


def trial_command(folder: Path) -> list[str]:
    """Return the command that runs a trial; `-P` keeps modules in the user's folder off the import path."""
    return [sys.executable, "-P", "-m", "suite.runs.trial", str(folder)]


@dataclass
class _Running:
    trial: TrialSpec
    folder: Path
    process: subprocess.Popen[bytes]
    epochs: EpochReader
    began: float = field(default_factory=time.monotonic)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began


@register("engine", "local")
class LocalEngine:
    """Trials as processes of this machine.

    Args:
        jobs: Number of trials that run at the same time and share the cores.
        timeout: Seconds after which a trial is killed; `None` for no limit.
        command: Returns the command line that runs the trial of a folder.
    """

    def __init__(
        self, jobs: int = 1, timeout: float | None = None, command: Callable[[Path], list[str]] | None = None
    ) -> None:
        self.jobs, self.timeout, self.command = jobs, timeout, command or trial_command

    def run(self, trials: Sequence[tuple[TrialSpec, Path]], progress: ProgressListener) -> None:
        """Run trials until each has ended and has its status in `trial.json`. A failed trial does not stop the others.

        The same holds for errors of files: a trial whose folder is removed while it runs, or whose record does not fit
        on the disk, ends with an error, and the others continue.

        The calling thread must outlive the trials: Linux kills a process when the thread that started it ends.

        Raises:
            KeyboardInterrupt: After Ctrl-C, when all processes have been killed. The same command continues later.
        """
        waiting, running = deque(trials), list[_Running]()
        try:
            while waiting or running:
                while len(running) < self.jobs and (ready := _next_ready(waiting, running)):
                    waiting.remove(ready)
                    if missing := _not_done(*ready):
                        _end(*ready, "skipped", f"it depends on {missing}, which is not done", progress)
                        continue
                    try:
                        running.append(self._start(*ready))
                    except (OSError, UsageError) as error:
                        text = in_words(error) if isinstance(error, OSError) else str(error)
                        _end(*ready, "error", f"cannot be started: {text}", progress)
                        continue
                    progress.started(ready[0])
                time.sleep(POLL_INTERVAL)
                for item in list(running):
                    timed_out = self.timeout is not None and item.seconds >= self.timeout
                    ended = _has_ended(item.process)
                    _show(item, progress)
                    if ended or timed_out:
                        self._finish(item, timed_out and not ended, progress)
                        running.remove(item)
        finally:
            # After Ctrl-C or an error in this process, no trial may keep running.
            for item in running:
                _kill(item.process)
                if _status(item.folder) == RUNNING:
                    _record(item.trial, item.folder, "error", "interrupted; the same command continues it")

    def _start(self, trial: TrialSpec, folder: Path) -> _Running:
        files.make_folder(folder)
        (folder / ProgressFile.NAME).unlink(missing_ok=True)
        write_record(folder, trial, RUNNING)
        reader = EpochReader(folder)
        with os.fdopen(files.open_descriptor(folder / "log.txt", os.O_WRONLY | os.O_APPEND), "ab") as log:
            log.write(f"--- {datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ} {trial.trial_id} ---\n".encode())
            log.flush()
            process = subprocess.Popen(
                self.command(folder),
                stdin=subprocess.PIPE,  # never written to: see suite.runs.engines.lifeline
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=environment(self.jobs),
            )
        return _Running(trial, folder, process, reader)

    def _finish(self, item: _Running, timed_out: bool, progress: ProgressListener) -> None:
        status = _kill(item.process)
        record = read_record(item.folder)
        if record is None or _status(item.folder) == RUNNING:
            # The trial did not record how it ended.
            if record is None:
                reason = "its folder or trial.json was removed while it ran"
            elif timed_out:
                reason = f"killed after {self.timeout:g} s (--timeout)"
            elif status < 0:
                reason = f"killed by signal {-status}"
            else:
                reason = _last_line(item.folder / "log.txt") or f"exit status {status}; log.txt is empty"
            timeout = timed_out and record is not None
            record = _record(item.trial, item.folder, "timeout" if timeout else "error", reason)
        with contextlib.suppress(OSError):  # only the progress bar uses this file
            (item.folder / ProgressFile.NAME).unlink(missing_ok=True)
        progress.ended(item.trial, record, item.seconds)


def _record(trial: TrialSpec, folder: Path, status: str, message: str) -> dict[str, Any]:
    """Write the record of how a trial ended, and return it. If writing fails, the message says so."""
    try:
        files.make_folder(folder)
        write_record(folder, trial, status, message)
    except (OSError, UsageError) as error:
        text = in_words(error) if isinstance(error, OSError) else str(error)
        return {"status": status, "message": f"{message}; its record cannot be written: {text}"}
    return {"status": status, "message": message}


def _end(trial: TrialSpec, folder: Path, status: str, message: str, progress: ProgressListener) -> None:
    """End a trial that was not started."""
    progress.started(trial)
    progress.ended(trial, _record(trial, folder, status, message), 0.0)


def _next_ready(waiting: deque[tuple[TrialSpec, Path]], running: Sequence[_Running]) -> tuple[TrialSpec, Path] | None:
    """Return the first trial whose dependencies have all ended; `None` if there is none."""
    ahead = {folder.name for _, folder in waiting} | {item.folder.name for item in running}
    return next((item for item in waiting if not ahead & set(item[0].depends_on.values())), None)


def _not_done(trial: TrialSpec, folder: Path) -> str:
    """Return the id of the first dependency that is not done; empty if all are done."""
    for other in trial.depends_on.values():
        record = read_record(folder.parent / other)
        if record is None or record["status"] != "done" or damage(folder.parent / other, record):
            return other
    return ""


def environment(jobs: int) -> dict[str, str]:
    """Return the environment of a trial when `jobs` of them share the machine. The user's variables take precedence."""
    threads = max(1, available_cores() // jobs)
    defaults = {**MALLOC, "OMP_NUM_THREADS": str(threads), "PYTHONUNBUFFERED": "1"}
    # If the package is not installed, trials import it from where this process did.
    root = str(Path(__file__).resolve().parents[3])
    installed = root in {
        str(Path(folder).resolve()) for folder in (*site.getsitepackages(), site.getusersitepackages())
    }
    paths = [] if installed else [root]
    paths += [os.environ["PYTHONPATH"]] if os.environ.get("PYTHONPATH") else []
    ours = {PARENT: str(os.getpid()), "PDT_COMMAND_LINE": command_line()}
    if paths:
        ours["PYTHONPATH"] = os.pathsep.join(paths)
    return {**defaults, **os.environ, **ours}


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    if hasattr(os, "waitid"):
        # Not reaped yet, so that the number of its process group is not reused before `_kill`.
        return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    return process.poll() is not None


def _kill(process: subprocess.Popen[bytes]) -> int:
    """Kill the rest of a trial's process group and return the exit status of its first process."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        # The group is empty; macOS reports "not permitted" if it only holds zombies.
        process.kill()
    status = process.wait()
    if process.stdin is not None:
        process.stdin.close()
    return status


def _show(item: _Running, progress: ProgressListener) -> None:
    position = ProgressFile(item.folder).read()
    if position is not None:
        progress.position(item.trial, position)
    for record in item.epochs.read():
        progress.epoch(item.trial, record)


def _status(folder: Path) -> str:
    """Return the status in `trial.json`; a missing or damaged record counts as running."""
    record = read_record(folder)
    return RUNNING if record is None or "spec" not in record else str(record["status"])


def _last_line(log: Path) -> str:
    """Return the last non-empty line of a log, shortened for tables."""
    try:
        with open(log, "rb") as file:
            file.seek(max(0, log.stat().st_size - LAST_BYTES))
            lines = [line.strip() for line in file.read().decode(errors="replace").splitlines()]
    except OSError as error:
        return in_words(error)
    return next((line[:300] for line in reversed(lines) if line and not line.startswith("--- ")), "")
