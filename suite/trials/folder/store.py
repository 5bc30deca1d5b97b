"""A suite's folder: its lock, its records, and which trials have to be run.

    OUT/.lock                       locked by the command that works in the folder
    OUT/suite.json                  spec, command line and provenance of the latest command; `commands` lists all
    OUT/trials/<trial-id>/...       one folder per trial
    OUT/results.csv                 one row per trial (`suite.trials.folder.table`)
    OUT/tune.json                   what `tune` tried and chose (`suite.trials.search`)
    OUT/time.json                   training times relative to dense (`suite.measure.times`)
    OUT/profile.json                where the time of a step goes (`suite.measure.profiles`)
    OUT/report.html, .md, figures/  the report

A folder collects trials. Another command with the same `--out` adds its trials and keeps the others, so seeds and
methods can be added later. The name of a trial's folder ends with the hash of its settings.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import BaseModel, FiniteFloat

from suite import files
from suite.errors import UsageError, in_words, validate
from suite.trials.folder.records import RUNNING, DamagedRecord, held, is_export, lacking, load_record, write_json
from suite.trials.spec import SuiteSpec, TrialSpec

FACTS = ("suite.json", "time.json", "profile.json", "tune.json")
"""Files that, besides the trials, the table and the report are made from."""

LOCK_TIMEOUT = 1.0
"""Seconds to wait for the lock; `report` holds it for a moment to see whether the folder is in use."""

log = logging.getLogger(__name__)


class _Spec(BaseModel):
    targets: tuple[float, ...] = ()
    margin: FiniteFloat = 0.0
    exploratory: str = ""


class _Command(BaseModel):
    spec: _Spec
    command_line: str = ""


class _Suite(BaseModel):
    """What code reads in a `suite.json`; other keys are free."""

    commands: list[_Command]


def read_suite(path: Path, hint: str = "") -> dict[str, Any]:
    """Return the content of a `suite.json`. Its `commands` are objects.

    Raises:
        UsageError: There is no such file, or it is damaged. `hint` ends the message.
    """
    content = files.read_bytes(path, path.name, 64 * 2**20)
    try:
        suite: dict[str, Any] = files.read_json(content)
        validate(_Suite, suite, "")
    except (ValueError, UsageError) as error:
        raise UsageError(f"{path} is damaged: {error}{hint}") from error
    return suite


class Store:
    """One suite's folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def check(self) -> None:
        """Check that the folder can be used, without writing.

        Raises:
            UsageError: The folder is a file, cannot be created, or contains foreign files.
        """
        path = next(path for path in (self.folder, *self.folder.parents) if path.exists() or path.is_symlink())
        if not path.is_dir():
            kind = "a file, not a folder" if path.exists() else "a symbolic link to nothing"
            raise UsageError(f"--out {self.folder}: {path} is {kind}")
        if not os.access(path, os.W_OK | os.X_OK):
            raise UsageError(f"--out {self.folder}: {path} is not writable")
        # A command that was killed before it wrote suite.json leaves only its lock, and perhaps a part of that file.
        ours = {self._lock_file, *files.parts(self.folder, "suite.json")}
        names = sorted(path.name for path in set(self.folder.glob("*")) - ours)
        has_trials = any(self.folder.glob("trials/*/trial.json"))  # of a suite.json that was damaged and moved away
        if names and "suite.json" not in names and not has_trials:
            suites = sorted(path.parent.name for path in self.folder.glob("*/suite.json"))
            hint = f" or a suite, such as {suites[0]} in this folder" if suites else ""
            reason = f"contains '{names[0]}' but no suite.json; choose an empty folder{hint}"
            raise UsageError(f"--out {self.folder}: {reason}")

    @contextmanager
    def lock(self, otherwise: str = "") -> Iterator[None]:
        """Lock the folder, creating it if necessary. The kernel releases the lock when this process ends or is killed.

        Args:
            otherwise: End of the message if another process holds the lock: what to do instead.

        Raises:
            UsageError: Another process holds the lock, or the folder cannot be locked.
        """
        try:
            with files.errors_of(self.folder):
                self.folder.mkdir(parents=True, exist_ok=True)
                lock = files.lock(self._lock_file, LOCK_TIMEOUT)
        except TimeoutError:
            raise UsageError(f"{self.folder} is in use by {_holder(self._lock_file)}{otherwise}") from None
        except OSError as error:
            raise UsageError(f"--out {self.folder}: {in_words(error)}") from error
        with lock:
            with contextlib.suppress(OSError):  # the number only tells others which process holds the lock
                lock.truncate(0)
                lock.write(str(os.getpid()).encode("ascii"))
            self._remove_parts()
            yield

    def is_locked(self) -> bool:
        """Return whether a process, this one included, has locked the folder."""
        if not self._lock_file.is_file():
            return False
        # Another user's folder may be read-only. NFS locks only files that are open for writing.
        with open(self._lock_file, "r+b" if os.access(self._lock_file, os.W_OK) else "rb") as file:
            return not files.try_lock(file.fileno(), self.folder)

    def fingerprint(self) -> tuple[Any, ...]:
        """Return a value that changes whenever a source of the table or the report changes."""
        trials = [held(folder / "trial.json") for folder in self.trial_folders()]
        paths = [path for path in (*(self.folder / name for name in FACTS), *trials) if path and path.exists()]
        facts = [(path, path.stat()) for path in paths]
        return self.is_locked(), *((path, fact.st_ino, fact.st_size, fact.st_mtime_ns) for path, fact in facts)

    @property
    def _lock_file(self) -> Path:
        return self.folder / ".lock"

    def _remove_parts(self) -> None:
        """Remove the half-written files of killed processes in the suite's folders.

        No trial of this folder runs now, but `report` may be writing.
        """
        trials = [place for folder in self.trial_folders() for place in (folder, folder / "stages")]
        for folder in (self.folder, self.folder / "figures", self.folder / "reproduce", *trials):
            files.remove_abandoned(folder)

    def add_command(self, spec: SuiteSpec, command_line: str, provenance: Mapping[str, Any]) -> None:
        """Write `suite.json`: this command, and every command so far under `commands`."""
        path = self.folder / "suite.json"
        commands = read_suite(path, "; move it away to continue")["commands"] if path.is_file() else []
        # This file is only for readers. `~` replaces the home folder, which contains the user's name.
        plain = dataclasses.asdict(spec)
        plain |= {
            "data_root": files.without_home(plain["data_root"]),
            "plugins": [files.without_home(path) for path in plain["plugins"]],
        }
        content = {"command_line": command_line, "spec": plain, "provenance": provenance}
        entry = {"command_line": command_line, "spec": plain, "time_utc": provenance.get("time_utc", "")}
        write_json(path, {**content, "commands": [*commands, entry]})

    def trial_folder(self, trial_id: str) -> Path:
        """Return the folder of a trial."""
        return self.folder / "trials" / trial_id

    def trial_folders(self) -> list[Path]:
        """Return the folders of all trials that ever started, by name."""
        return sorted(path for path in (self.folder / "trials").glob("*") if path.is_dir())

    def state(self, trial_id: str, in_use: bool = False) -> tuple[str, str]:
        """Return the status of a trial, and the reason why a finished trial or a record does not count.

        The status is one of `ENDED`, or `""` for a trial that never started. A trial whose record says `running` counts
        as an error if no command works in the folder, because it has no process.

        Args:
            trial_id: Id of the trial.
            in_use: Whether another process holds the lock. The status may then be `running`.
        """
        folder = self.trial_folder(trial_id)
        try:
            record = load_record(folder)
        except FileNotFoundError:
            return "", ""
        except DamagedRecord as error:
            return "error", str(error)
        if record.done and (reason := lacking(folder, record)):
            return "error", reason
        return "error" if record.status == RUNNING and not in_use else record.status, ""

    def states(self, trials: Sequence[TrialSpec], in_use: bool = False) -> list[tuple[str, str]]:
        """Return the status of each trial of a command, and the reason why a finished trial has to run again.

        A trial of an exported folder is done, except if an unfinished trial needs its model.

        Args:
            trials: The trials; those that others depend on precede them.
            in_use: As for `state`.
        """
        states: list[tuple[str, str]] = []
        needed: set[str] = set()
        for trial in reversed(trials):
            status, reason = self.state(trial.trial_id, in_use)
            if status == "done" and trial.trial_id in needed and is_export(self.trial_folder(trial.trial_id)):
                status, reason = "error", "another trial needs its model, which is not in the folder"
            if status != "done":
                needed.update(trial.depends_on.values())
            states.insert(0, (status, reason))
        return states

    def choose(self, trials: Sequence[TrialSpec], only: str) -> list[tuple[TrialSpec, Path]]:
        """Return the trials to run, each with its folder. They include done but damaged trials, with a warning.

        Args:
            only: `missing`: every trial that is not `done`; `failed`: those that ended with another status; `all`: all
                of them, from the beginning. `all` clears their folders at once, so that an interrupted `all` goes on as
                `missing`.
        """
        if only == "all":
            chosen = [(trial, self.trial_folder(trial.trial_id)) for trial in trials]
            for _, folder in chosen:
                if folder.is_symlink():  # its target may be anything
                    folder.unlink()
                elif folder.exists():
                    shutil.rmtree(folder)
            return chosen
        chosen = []
        for trial, (status, reason) in zip(trials, self.states(trials), strict=True):
            folder = self.trial_folder(trial.trial_id)
            if status == "done":
                # A process that was killed right after its record left the checkpoint.
                (folder / "checkpoint.pt").unlink(missing_ok=True)
            elif status or only == "missing":
                if reason:
                    log.warning("%s is run again: %s", trial.trial_id, reason)
                chosen.append((trial, folder))
        return chosen


def _holder(lock: Path) -> str:
    """Return who holds a lock, according to its file, and whether that process is stopped (Linux only)."""
    text = lock.read_text(encoding="ascii", errors="replace")[:20].strip()
    if not (text.isascii() and text.isdigit()):
        return "another process"
    state = Path("/proc", text, "stat")
    stopped = state.is_file() and state.read_text(errors="replace").rpartition(")")[2].split()[0] in "Tt"
    return f"process {text}" + (f", which is stopped (kill -CONT {text} continues it)" if stopped else "")
