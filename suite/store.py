"""A suite's folder: its lock, atomic records, and which trials are still to be done.

    OUT/.lock                       held by the command that works in the folder
    OUT/suite.json                  the latest command's spec, line and provenance; `commands` lists all of them
    OUT/trials/<trial-id>/...       a folder a trial
    OUT/results.csv, .parquet       a row a trial (`suite.results`)

A folder collects trials: another command with the same `--out` adds its own and leaves the others, so that a seed or a
method can be added to what is there. A trial's folder is named by its hash, so nothing is ever confused.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from suite import files, packed
from suite.errors import UsageError
from suite.provenance import without_home
from suite.spec import SuiteSpec, TrialSpec

ONLY = ("missing", "failed", "all")
ENDED = ("done", "diverged", "oom", "timeout", "error", "skipped")
RUNNING = "running"


def write_json(path: Path, data: Any) -> None:
    """Write JSON atomically. Infinities and NaN, which JSON does not have, become null: not measured."""
    text = json.dumps(_finite(data), indent=2, allow_nan=False, ensure_ascii=False)
    files.write(path, text + "\n")


def _finite(data: Any) -> Any:
    if isinstance(data, float) and not math.isfinite(data):
        return None
    if isinstance(data, Mapping):
        return {str(key): _finite(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [_finite(item) for item in data]
    return data


def read_record(folder: Path) -> dict[str, Any] | None:
    """The content of a trial's `trial.json`; `None` where there is none.

    A file that cannot be read, or whose spec is not the one that it says, gives the status `error` and the message
    `damaged record`: one bad file must not hide the other trials.
    """
    path = packed.held(folder / "trial.json")
    if path is None:
        return None
    try:
        record = json.loads(packed.read(path))
        TrialSpec.from_json(record["spec"])
        if record["status"] not in (*ENDED, RUNNING):
            raise ValueError("no status")
        if not all(isinstance(record.get(name, {}), dict) for name in ("result", "provenance")):
            raise ValueError("no result or provenance")
        if not all(isinstance(value, (int, float, type(None))) for value in record.get("result", {}).values()):
            raise ValueError("a result that is no number")
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return {"status": "error", "message": "damaged record"}
    return dict(record)


def write_record(folder: Path, spec: TrialSpec, status: str, message: str = "", **more: Any) -> None:
    """Write a trial's `trial.json`; `more` holds `result` and `provenance` where they are known."""
    if status not in (*ENDED, RUNNING):
        raise ValueError(f"'{status}' is no status of a trial")
    write_json(folder / "trial.json", {"spec": spec.to_json(), "status": status, "message": message, **more})


class Store:
    """One suite's folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def check(self) -> None:
        """Check that the folder may be used; writes nothing.

        Raises:
            UsageError: if it is a file, cannot be made, or holds something that is not a suite's.
        """
        for path in (self.folder, *self.folder.parents):
            if path.exists() and not path.is_dir():
                raise UsageError(f"--out {self.folder}: {path} is a file, not a folder")
            if path.is_dir():
                if not os.access(path, os.W_OK | os.X_OK):
                    raise UsageError(f"--out {self.folder}: {path} may not be written to")
                break
        # A command that was killed before it wrote suite.json leaves only its lock, and perhaps half of that file.
        ours = {self.folder / ".lock", *files.parts(self.folder, "suite.json")}
        held = set(self.folder.glob("*")) - ours
        names = sorted(path.name for path in held)
        if names and "suite.json" not in names:
            inside = sorted(path.parent.name for path in self.folder.glob("*/suite.json"))
            hint = (
                f"name an empty folder, or a suite's own, such as {inside[0]} in it"
                if inside
                else "name an empty folder"
            )
            raise UsageError(f"--out {self.folder}: holds '{names[0]}' and no suite.json; {hint}")

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the folder, made if need be. The kernel lets go of the lock when this process ends, however it ends.

        Raises:
            UsageError: if another process holds it, or the folder cannot be made.
        """
        fcntl = _fcntl()
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            # Python's files are closed in child processes, so that no trial keeps the lock of a killed command.
            lock = open(self.folder / ".lock", "a+", encoding="ascii")  # noqa: SIM115  # closed by `with` below
        except OSError as error:  # a system's own folders refuse what their permissions allow
            raise UsageError(f"--out {self.folder}: cannot be made: {error.strerror or error}") from error
        with lock as file:
            for patience in (1.0, 0.0):  # `report` looks at the lock by holding it for a moment
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if not patience:
                        raise UsageError(f"{self.folder} is in use by {self._holder()}") from None
                    time.sleep(patience)
            file.truncate(0)
            file.write(str(os.getpid()))
            file.flush()
            self._remove_parts()
            yield

    def is_locked(self) -> bool:
        """Whether a process works in the folder, this one included."""
        fcntl = _fcntl()
        path = self.folder / ".lock"
        if not path.is_file():
            return False
        with open(path, encoding="ascii") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False

    def _remove_parts(self) -> None:
        """Remove what killed processes left half-written; a user's own folders may lie in this one, and are left alone.

        No trial of a locked folder runs, but `report` may write.
        """
        for folder in (self.folder, self.folder / "figures", self.folder / "reproduce", *self.trial_folders()):
            files.remove_left(folder)

    def _holder(self) -> str:
        text = (self.folder / ".lock").read_text(encoding="ascii").strip()
        return f"process {text}" if text.isdigit() else "another process"

    def add_command(self, spec: SuiteSpec, command_line: str, provenance: Mapping[str, Any]) -> None:
        """Write `suite.json`: this command first, and all that the folder has seen under `commands`."""
        path = self.folder / "suite.json"
        commands: list[Any] = []
        if path.is_file():
            try:
                commands = list(json.loads(path.read_bytes())["commands"])
            except (ValueError, KeyError, TypeError) as error:
                raise UsageError(f"{path} is damaged: {error}; move it away to go on") from error
        # For readers alone, so that the home folder, which holds the user's name, need not be in it.
        plain = spec.to_json()
        plain |= {"data_root": without_home(plain["data_root"]), "plugins": [without_home(p) for p in plain["plugins"]]}
        entry = {"command_line": command_line, "spec": plain, "time_utc": provenance.get("time_utc", "")}
        content = {"command_line": command_line, "spec": plain, "provenance": provenance}
        write_json(path, {**content, "commands": [*commands, entry]})

    def trial_folder(self, trial_id: str) -> Path:
        """Where a trial's files lie."""
        return self.folder / "trials" / trial_id

    def trial_folders(self) -> list[Path]:
        """The folders of all trials that were ever started, by name."""
        return sorted(path for path in (self.folder / "trials").glob("*") if path.is_dir())

    def status(self, trial_id: str) -> str:
        """One of `ENDED`, or `""` for a trial that was never started.

        Call it with the lock held: a trial that still says `running` then lost its process, and counts as an error.
        """
        record = read_record(self.trial_folder(trial_id))
        if record is None:
            return ""
        if record["status"] == "done" and not (self.trial_folder(trial_id) / "model.pt").is_file():
            return "error"  # somebody took it away; a trial is done when all of it is there
        return "error" if record["status"] == RUNNING else str(record["status"])

    def choose(self, trials: Sequence[TrialSpec], only: str) -> list[tuple[TrialSpec, Path]]:
        """The trials to run, each with its folder.

        Args:
            only: `missing`: every trial that is not `done`; `failed`: those that ended with another status; `all`: all
                of them, from the beginning: their folders are cleared at once, so that an interrupted `all` goes on as
                `missing`.
        """
        chosen = []
        for trial in trials:
            folder, status = self.trial_folder(trial.trial_id), self.status(trial.trial_id)
            if only == "all" and folder.exists():
                shutil.rmtree(folder)
            if (
                only == "all"
                or (only == "missing" and status != "done")
                or (only == "failed" and status not in ("", "done"))
            ):
                chosen.append((trial, folder))
        return chosen


def _fcntl() -> Any:
    try:
        import fcntl
    except ModuleNotFoundError as error:
        raise UsageError("this platform has no file locks (fcntl); run on Linux or macOS, or in WSL") from error
    return fcntl
