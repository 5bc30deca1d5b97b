"""A campaign: trains what a list of settings lacks, in the background, and exports each trial that is done.

    python -m benchmarks.campaign DIR RESULTS

DIR, outside of the work tree, has the trials with their networks and stages. RESULTS, such as
`results/cpu-zen5-2cores/campaign`, gets the record, the curves and the ledger of each finished trial. The settings are
those of `benchmarks/campaign.toml`, in order, once for each of its `seeds`: each is a command `run` into DIR, and the
same command continues after a stop. A training has one thread, as many run as there are cores, and all have the lowest
priority. While a file DIR/PAUSE exists, nothing is trained: trials that run are interrupted, and continue after their
last finished epoch. What RESULTS has already is not trained again: a campaign goes on where DIR was lost, or on another
machine.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import time
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
from filelock import FileLock, Timeout

from suite import files
from suite.cli.export import trial_contents
from suite.cli.folders.destination import new_folder
from suite.engine.cost.hardware import available_cores, has_bfloat16_cpu
from suite.errors import UsageError
from suite.trials.engines.exit_with_parent import die_with
from suite.trials.folder.records import TrialRecord, read_record
from suite.trials.folder.store import Store

ROOT = Path(__file__).resolve().parents[1]
SETTINGS = ROOT / "benchmarks" / "campaign.toml"
PAUSE = "PAUSE"
LOWEST = 19
POLL_S = 1.0


class Campaign:
    """Runs settings.

    Args:
        folder: Folder of the trials.
        results: Folder that finished trials are exported to.

    Raises:
        UsageError: `results` is in `folder`.
    """

    def __init__(self, folder: Path, results: Path) -> None:
        self.folder, self.results = folder.resolve(), results.resolve()
        if self.results.is_relative_to(self.folder):
            raise UsageError(f"campaign: {results} is in {folder}; choose another place for the results")
        self._others: set[str] = set()

    def run(self, settings: Sequence[Mapping[str, Any]]) -> int:
        """Train what is missing, and return 1 if a trial failed, otherwise 0.

        Raises:
            UsageError: A setting is not a valid command, another campaign uses the folder, a file cannot be written,
                or this processor would emulate bfloat16.
        """
        if any(setting.get("dtype") == "bfloat16" for setting in settings) and not has_bfloat16_cpu():
            raise UsageError("campaign: it trains in bfloat16, and this CPU has neither AMX nor AMD's AVX512_BF16")
        self.folder.mkdir(parents=True, exist_ok=True)
        # Next to the folder, since `run` begins in an empty one.
        lock = FileLock(self.folder.with_name(f".{self.folder.name}.campaign.lock"), timeout=0)
        try:
            with lock, files.errors_of(self.results):
                self._take_exported()
                return max(self._run(number, setting) for number, setting in enumerate(settings, 1))
        except Timeout:
            raise UsageError(f"campaign: another campaign uses {self.folder}") from None

    def _take_exported(self) -> None:
        """Copy each exported trial that the folder lacks into it."""
        suite, copy = self.results / "suite.json", self.folder / "suite.json"
        if not copy.exists():
            if not suite.is_file() or any(path.name != PAUSE for path in self.folder.glob("*")):
                return  # `run` says what is wrong with a folder of something else
            files.write(copy, suite.read_bytes())
        for trial in Store(self.results).trial_folders():
            place = self.folder / trial.relative_to(self.results)
            if place.exists():
                continue
            status, reason = Store(self.results).state(trial.name)
            if status == "done" and (record := read_record(trial)):
                _copy(trial, record, place)
            else:
                print(f"campaign: {trial} is not taken over, and trained again: {reason or status}", flush=True)

    def _run(self, number: int, setting: Mapping[str, Any]) -> int:
        while (status := self._command(words(setting, self.folder))) is None:
            pass
        if status not in (0, 1):
            raise UsageError(f"campaign: setting {number} ended with status {status}: {' '.join(words(setting))}")
        return status

    def _command(self, arguments: Sequence[str]) -> int | None:
        """Wait for the end of a pause, run a command, and return its status; `None` if a pause interrupted it."""
        while self._is_paused() or Store(self.folder).is_locked():  # a time pass may still run after a pause
            time.sleep(POLL_S)
        command = [sys.executable, str(ROOT / "run_suite.py"), "run", *arguments, f"--jobs={available_cores()}"]
        parent = os.getpid()
        process = subprocess.Popen(
            command, start_new_session=True, preexec_fn=lambda: None if die_with(parent) else os._exit(1)
        )
        try:
            while process.poll() is None:
                lower(process.pid)
                self.export()
                if self._is_paused():
                    return None
                time.sleep(POLL_S)
        finally:
            if process.poll() is None:
                process.terminate()  # as by Ctrl-C, which a shell lets programs in the background ignore
                process.wait()
            self.export()
        return process.returncode

    def _is_paused(self) -> bool:
        return (self.folder / PAUSE).exists()

    def export(self) -> None:
        """Export what is done and was not yet exported."""
        for trial in Store(self.folder).trial_folders():
            record, place = read_record(trial), self.results / trial.relative_to(self.folder)
            if record is None or not record.done:
                continue
            if (exported := read_record(place)) is not None:
                if exported.result != record.result and place.name not in self._others:
                    self._others.add(place.name)
                    print(f"campaign: {place} is of another training; it stays as it is", flush=True)
                continue
            _copy(trial, record, place)
            print(f"campaign: exported {place.name}", flush=True)
        suite, copy = self.folder / "suite.json", self.results / "suite.json"
        if suite.is_file() and self.results.is_dir() and (not copy.exists() or copy.read_bytes() != suite.read_bytes()):
            files.write(copy, suite.read_bytes())


def _copy(trial: Path, record: TrialRecord, place: Path) -> None:
    """Export a trial: its folder as a whole, or not at all."""
    with new_folder("export", place) as temporary:
        for name, content in trial_contents(trial, record):
            files.write(temporary / name, content)


def words(setting: Mapping[str, Any], out: Path | None = None) -> list[str]:
    """Return the options of a setting; a list repeats its option."""
    pairs = [(key, one) for key, value in setting.items() for one in (value if isinstance(value, list) else [value])]
    return [*(f"--{key}={one}" for key, one in pairs), *([f"--out={out}"] if out else [])]


def lower(pid: int) -> None:
    """Give a process and all that it has started the lowest priority.

    Linux shares the processor among sessions (autogroups), each of which has a priority of its own.
    """
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        for one in (process, *process.children(recursive=True)):
            # It may have ended, and an unprivileged user may change a session only once in 0.1 seconds.
            with contextlib.suppress(psutil.NoSuchProcess, OSError):
                one.nice(LOWEST)
                group = Path(f"/proc/{one.pid}/autogroup")
                if group.exists() and not group.read_text().endswith(f" nice {LOWEST}\n"):
                    group.write_text(str(LOWEST))


def read_settings(path: Path) -> list[dict[str, Any]]:
    """Read the settings of a file.

    Raises:
        UsageError: The file cannot be read, or has no settings.
    """
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"campaign: {path} cannot be read: {error}") from error
    common, settings = content.get("common", {}), content.get("setting", [])
    if not settings or content.keys() - {"seeds", "common", "setting"}:
        raise UsageError(f"campaign: {path} must have tables [[setting]], and may have a table [common] and seeds")
    seeds = content.get("seeds", ())
    if "seeds" in content and not (isinstance(seeds, list) and seeds and all(type(one) is int for one in seeds)):
        raise UsageError(f"campaign: {path}: seeds must be a list of numbers, such as [5, 6]")
    rounds = [{"seeds": f"{seed},"} for seed in dict.fromkeys(seeds)] or [{}]
    return [{**common, **setting, **one} for one in rounds for setting in settings]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the campaign, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument("results", type=Path, metavar="RESULTS")
    parser.add_argument("--settings", type=Path, default=SETTINGS, help="list of settings (default: %(default)s)")
    typed = parser.parse_args(arguments)
    try:
        return Campaign(typed.folder, typed.results).run(read_settings(typed.settings))
    except UsageError as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("campaign: interrupted; the same command continues", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
