"""A suite's folder: its lock, its records, and which trials have to be run.

    OUT/.lock                       locked by the command that works in the folder
    OUT/.results.lock               locked by the command that writes the table and the report (`Store.writing`)
    OUT/suite.json                  spec, command line and provenance of the latest command; `commands` lists all
    OUT/trials/<trial-id>/...       one folder per trial
    OUT/results.csv                 one row per trial (`suite.trials.folder.results`)
    OUT/tune.json                   what `tune` tried and chose (`suite.trials.folder.tuning`)
    OUT/time.json                   training times relative to dense (`suite.trials.folder.times`)

A folder collects trials. Another command with the same `--out` adds its trials and keeps the others, so seeds and
methods can be added later. The name of a trial's folder ends with the hash of its settings.

`OUT` may be a symbolic link to a folder. Symbolic links in place of files and folders in it are refused.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from typing import Any

from suite import files
from suite.errors import UsageError, in_words
from suite.trials.folder import packed
from suite.trials.folder.records import (
    ENDED,
    RUNNING,
    damage,
    export_damage,
    is_export,
    read_record,
    write_json,
    write_record,
)
from suite.trials.spec import SuiteSpec, TrialSpec

__all__ = ["ENDED", "ONLY", "RUNNING", "Store", "read_record", "write_json", "write_record"]

ONLY = ("missing", "failed", "all")
FOLDERS = ("trials", "figures", "reproduce", "timed")
WRITTEN = (
    ".lock",
    ".results.lock",
    "suite.json",
    "results.csv",
    "report.html",
    "report.md",
    "report.tex",
    "time.json",
    "profile.json",
    "tune.json",
)

FACTS = ("suite.json", "time.json", "profile.json", "tune.json")
"""Files that, besides the trials, the table and the report are made from."""

LARGEST_SUITE = 64 * 2**20  # size of suite.json in bytes

LOCK_TIMEOUT = 1.0
"""Seconds to wait for the lock; `report` holds it for a moment to see whether the folder is in use."""
WRITING_TIMEOUT = 60.0
"""Seconds to wait for a command that writes results and may be stopped for ever."""

log = logging.getLogger(__name__)


def read_suite(path: Path, hint: str = "") -> dict[str, Any]:
    """Return the content of a `suite.json`. Its `commands` are objects.

    Raises:
        UsageError: The file is damaged. `hint` ends the message.
    """
    try:
        suite = files.read_json(files.read_bytes(path, path.name, LARGEST_SUITE))
        json.dumps(suite, allow_nan=False)
        if not isinstance(suite["commands"], list) or not all(isinstance(item, dict) for item in suite["commands"]):
            raise ValueError("its commands are not a list of objects")
    except (ValueError, KeyError, TypeError) as error:
        reason = f"it has no {error}" if isinstance(error, KeyError) else error
        raise UsageError(f"{path} is damaged: {reason}{hint}") from error
    return dict(suite)


class Store:
    """One suite's folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def check(self) -> None:
        """Check that the folder can be used, without writing.

        Raises:
            UsageError: The folder is a file, cannot be created, or contains foreign files or symbolic links.
        """
        for path in (self.folder, *self.folder.parents):
            if path.is_symlink() and not path.exists():
                raise UsageError(f"--out {self.folder}: {path} is a symbolic link to nothing")
            if path.exists() and not path.is_dir():
                raise UsageError(f"--out {self.folder}: {path} is a file, not a folder")
            if path.is_dir():
                if not os.access(path, os.W_OK | os.X_OK):
                    raise UsageError(f"--out {self.folder}: {path} is not writable")
                break
        # A command that was killed before it wrote suite.json leaves only its lock, and perhaps a part of that file.
        ours = {self._lock_file, self._results_lock, *files.parts(self.folder, "suite.json")}
        held = set(self.folder.glob("*")) - ours
        names = sorted(path.name for path in held)
        if names and "suite.json" not in names:
            inside = sorted(path.parent.name for path in self.folder.glob("*/suite.json"))
            hint = (
                f"choose an empty folder or a suite, such as {inside[0]} in this folder"
                if inside
                else "choose an empty folder"
            )
            raise UsageError(f"--out {self.folder}: contains '{names[0]}' but no suite.json; {hint}")
        self._check_places()

    def _check_places(self) -> None:
        """Check before hours of trials that nothing else stands in the place of a file or folder of the suite."""
        for name in (*FOLDERS, *WRITTEN):
            path = self.folder / name
            files.refuse_link(path)
            if path.exists() and not (path.is_dir() if name in FOLDERS else path.is_file()):
                expected = "folder" if name in FOLDERS else "file"
                raise UsageError(f"--out {self.folder}: {path} must be a {expected}; move it away")

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
                self._check_places()  # some callers do not call `check`
                held = _held(self._lock_file, LOCK_TIMEOUT)
        except TimeoutError:
            raise UsageError(f"{self.folder} is in use by {_holder(self._lock_file)}{otherwise}") from None
        except OSError as error:
            raise UsageError(f"--out {self.folder}: {in_words(error)}") from error
        with held:
            self._remove_parts()
            yield

    def is_locked(self) -> bool:
        """Return whether a process, this one included, has locked the folder."""
        files.refuse_link(self._lock_file)
        if not self._lock_file.is_file():
            return False
        # Another user's folder may be read-only. NFS locks only files that are open for writing.
        with open(self._lock_file, "r+b" if os.access(self._lock_file, os.W_OK) else "rb") as file:
            return not files.try_lock(file.fileno(), self.folder)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Hold the lock of the table and the report. Read their sources inside, and then replace them.

        Commands take turns. Each reads after it has waited, so none overwrites newer content.

        Raises:
            UsageError: Another process still writes after `WRITING_TIMEOUT`; it may be stopped.
        """
        path = self._results_lock
        with files.errors_of(self.folder):
            try:
                held = _held(path, LOCK_TIMEOUT)
            except TimeoutError:
                log.info("the results of %s are being written by %s; waiting for it", self.folder, _holder(path))
                try:
                    held = _held(path, WRITING_TIMEOUT)
                except TimeoutError:
                    raise UsageError(
                        f"{self.folder}: for {WRITING_TIMEOUT:.0f} s, its table and report are being written by "
                        f"{_holder(path)}; it adds all trials when it goes on. Or end it, and type: report "
                        f"{self.folder}"
                    ) from None
        with held:
            yield

    def fingerprint(self) -> tuple[Any, ...]:
        """Return a value that changes whenever a source of the table or the report changes."""
        trials = [packed.held(folder / "trial.json") for folder in self.trial_folders()]
        state: list[Any] = [self.is_locked()]
        for path in (*(self.folder / name for name in FACTS), *trials):
            if path is not None and path.exists():
                facts = path.stat()
                state.append((path, facts.st_ino, facts.st_size, facts.st_mtime_ns))
        return tuple(state)

    @property
    def _lock_file(self) -> Path:
        return self.folder / ".lock"

    @property
    def _results_lock(self) -> Path:
        return self.folder / ".results.lock"

    def _remove_parts(self) -> None:
        """Remove the half-written files of killed processes in the suite's folders.

        No trial of this folder runs now, but `report` may be writing.
        """
        trials = [place for folder in self.trial_folders() for place in (folder, folder / "stages")]
        for folder in (self.folder, self.folder / "figures", self.folder / "reproduce", *trials):
            if folder == self.folder or not folder.is_symlink():
                files.remove_abandoned(folder)

    def add_command(self, spec: SuiteSpec, command_line: str, provenance: Mapping[str, Any]) -> None:
        """Write `suite.json`: this command, and every command so far under `commands`."""
        path = self.folder / "suite.json"
        commands = read_suite(path, "; move it away to continue")["commands"] if path.is_file() else []
        # This file is only for readers. `~` replaces the home folder, which contains the user's name.
        plain = spec.to_json()
        plain |= {
            "data_root": files.without_home(plain["data_root"]),
            "plugins": [files.without_home(p) for p in plain["plugins"]],
        }
        entry = {"command_line": command_line, "spec": plain, "time_utc": provenance.get("time_utc", "")}
        content = {"command_line": command_line, "spec": plain, "provenance": provenance}
        write_json(path, {**content, "commands": [*commands, entry]})

    def trial_folder(self, trial_id: str) -> Path:
        """Return the folder of a trial."""
        return self.folder / "trials" / trial_id

    def trial_folders(self) -> list[Path]:
        """Return the folders of all trials that ever started, by name."""
        return sorted(path for path in (self.folder / "trials").glob("*") if path.is_dir())

    def status(self, trial_id: str, in_use: bool = False) -> str:
        """Return one of `ENDED`, or `""` for a trial that never started.

        A trial whose record says `running` counts as an error if no command works in the folder, because it has no
        process.

        Args:
            trial_id: Id of the trial.
            in_use: Whether another process holds the lock. The result may then be `running`.
        """
        return self._state(trial_id, in_use)[0]

    def _state(self, trial_id: str, in_use: bool) -> tuple[str, str]:
        """Return the status, and the reason why a finished trial or a record does not count."""
        folder = self.trial_folder(trial_id)
        record = read_record(folder)
        if record is None:
            return "", ""
        if "spec" not in record:
            return "error", record["message"]
        if record["status"] == "done" and (reason := (export_damage if is_export(folder) else damage)(folder, record)):
            return "error", reason
        return "error" if record["status"] == RUNNING and not in_use else str(record["status"]), ""

    def states(self, trials: Sequence[TrialSpec], in_use: bool = False) -> list[tuple[str, str]]:
        """Return the status of each trial of a command, and the reason why a finished trial has to run again.

        A trial of an exported folder is done, except if an unfinished trial needs its model.

        Args:
            trials: The trials; those that others depend on precede them.
            in_use: As for `status`.
        """
        states: list[tuple[str, str]] = []
        needed: set[str] = set()
        for trial in reversed(trials):
            status, reason = self._state(trial.trial_id, in_use)
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

        Raises:
            UsageError: A symbolic link or a file is in place of the folder of one of them. Nothing is deleted yet.
        """
        chosen: list[tuple[TrialSpec, Path]] = []
        states = [("", "")] * len(trials) if only == "all" else self.states(trials)
        for trial, (status, reason) in zip(trials, states, strict=True):
            folder = self.trial_folder(trial.trial_id)
            if status == "done" and not folder.is_symlink():
                # A process that was killed right after its record left the checkpoint.
                (folder / "checkpoint.pt").unlink(missing_ok=True)
            if (
                only == "all"
                or (only == "missing" and status != "done")
                or (only == "failed" and status not in ("", "done"))
            ):
                files.refuse_link(folder)
                if folder.exists() and not folder.is_dir():
                    raise UsageError(f"{folder} is a file, and the trial's folder is to be there")
                if reason:
                    log.warning("%s is run again: %s", trial.trial_id, reason)
                chosen.append((trial, folder))
        if only == "all":
            for _, folder in chosen:
                if folder.exists():
                    files.remove_folder(folder)
        return chosen


def _held(path: Path, seconds: float) -> FileIO:
    """Lock a file as `files.lock` does, and write the number of this process into it."""
    file = files.lock(path, seconds)
    with contextlib.suppress(OSError):  # the number only tells others which process holds the lock
        file.truncate(0)
        file.write(str(os.getpid()).encode("ascii"))
    return file


def _holder(lock: Path) -> str:
    """Return who holds a lock, according to its file, and whether that process is stopped (Linux only)."""
    text = lock.read_text(encoding="ascii", errors="replace")[:20].strip()
    if not (text.isascii() and text.isdigit()):
        return "another process"
    state = Path("/proc", text, "stat")
    stopped = state.is_file() and state.read_text(errors="replace").rpartition(")")[2].split()[0] in "Tt"
    return f"process {text}" + (f", which is stopped (kill -CONT {text} continues it)" if stopped else "")
