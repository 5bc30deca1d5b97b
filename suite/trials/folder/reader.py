"""Reads a suite's folder for code that computes with it. Each file is read once; damaged content is named and skipped.

What it returns is validated: numbers are finite, and text can be encoded as UTF-8 and embedded in XML.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, TypeVar

from annotated_types import Interval
from pydantic import BaseModel, Field

from suite import files
from suite.errors import UsageError, in_words, validate
from suite.files import clean
from suite.trials.folder import packed
from suite.trials.folder.profiles import PROFILES, GroupProfiles
from suite.trials.folder.records import RUNNING, DamagedRecord, TrialRecord, lacking, load_record
from suite.trials.folder.store import Store, read_suite
from suite.trials.folder.table import SCHEMA, recipe_columns
from suite.trials.folder.targets import declared_targets, target_columns
from suite.trials.folder.times import TIMES, GroupTimes
from suite.trials.search import Tuned, read_tuned

FILES = ("epochs.jsonl", "layers.csv")  # the files of a trial, besides its record, that a report reads
_NUMBERS_OF_LAYERS = ("interval", "out_channels")  # the columns of layers.csv that figures show
Number = Annotated[int | float, Interval(ge=-1e30, le=1e30)]  # sums and squares of these numbers are finite
Content = TypeVar("Content")


class _Layer(BaseModel, strict=True):
    inputs: Number | None = Field(None, alias="in")
    out: Number | None = None
    density: list[Number] = []
    weight_density: Number | None = None


class _Epoch(BaseModel, strict=True):
    """What reports compute with in a line of `epochs.jsonl`; `docs/development/file-formats.md` has all keys."""

    epoch: Annotated[int, Interval(gt=0, lt=10**9)]
    batch_size: Number | None = None
    steps: Number | None = None
    train_time_s: Number | None = None
    step_flops: dict[str, Number | None] | None = None
    train_flops: dict[str, Number | None] | None = None
    backends: dict[str, Any] | None = None
    method: dict[str, Any] | None = None
    layers: dict[str, _Layer] | None = None


class NotTestedError(UsageError):
    """No trial of a folder was evaluated on test images, as in the trials of `tune`, so there is nothing to report."""


@dataclass(frozen=True)
class Records:
    """Records of a suite's folder.

    Attributes:
        folder: Path of the folder.
        trials: Its trials by name, with their epochs and layers.
        suite: Content of `suite.json`; empty if that file is missing or damaged.
        damaged: Reason why a record cannot be read, by the name of the trial's folder.
        damage: One line for each damaged file outside the trials' folders.
        times: Content of `time.json`, which the time pass writes; empty if that file is missing or damaged.
        profiles: Content of `profile.json`, which the profile pass writes; empty if it is missing or damaged.
        tuned: Content of `tune.json`, which `tune` writes; `None` if that file is missing or damaged.
        untested: Number of finished trials evaluated on validation images only, as in `tune`. `trials` leaves them out,
            because a report compares accuracies on the test set.
    """

    folder: Path
    trials: tuple[TrialRecord, ...]
    suite: Mapping[str, Any] = field(default_factory=dict)
    damaged: Mapping[str, str] = field(default_factory=dict)
    damage: tuple[str, ...] = ()
    times: tuple[GroupTimes, ...] = ()
    profiles: tuple[GroupProfiles, ...] = ()
    tuned: Tuned | None = None
    untested: int = 0

    def all_damage(self) -> tuple[str, ...]:
        """Return one line for each file that cannot be read and each value that is not valid."""
        ours = [f"{trial.name}: {line}" for trial in self.trials for line in trial.damage]
        return (*self.damage, *(f"{name}: {reason}" for name, reason in self.damaged.items()), *ours)


def finite(value: Any) -> float | None:
    """Return a number if it is finite, otherwise `None`, also for a boolean."""
    known = isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= 1e30
    return float(value) if known else None


def read_epochs(path: Path, damage: list[str]) -> tuple[Mapping[str, Any], ...]:
    """Read the records of `epochs.jsonl` in order, without damaged ones."""
    records: list[Mapping[str, Any]] = []
    for number, line in enumerate(_read(path, damage).splitlines(), 1):
        try:
            record = files.read_json(line)
            validate(_Epoch, record, "")
            if record["epoch"] <= (last := records[-1]["epoch"] if records else 0):
                raise ValueError(f"epoch {record['epoch']} follows epoch {last}")
            records.append(record)
        except (ValueError, UsageError) as error:
            damage.append(f"{path.name}, line {number} is damaged: {str(error).removeprefix(': ')}")
    return tuple(records)


def read_layers(path: Path, damage: list[str]) -> tuple[Mapping[str, Any], ...]:
    """Read the rows of `layers.csv` with numbers as numbers; empty if the file is missing or damaged."""
    try:
        text = io.StringIO(_read(path, damage).decode("utf-8-sig"), newline="")
        rows = [{name: _cell(cell) for name, cell in row.items()} for row in csv.DictReader(text, strict=True)]
        for column in _NUMBERS_OF_LAYERS:
            if any(column in row and finite(row[column]) is None for row in rows):
                raise ValueError(f"column {column} has a value that is not a number")
    except (csv.Error, ValueError, TypeError) as error:  # a row that is longer than the head has a list
        damage.append(f"{path.name} is damaged: {error}")
        return ()
    return tuple(rows)


@lru_cache(maxsize=100_000)  # tables of trials repeat most of their cells
def _cell(text: str | None) -> int | float | str | None:
    """Convert the text of a cell to a number if possible; an empty cell is `None`."""
    for kind in (int, float):
        try:
            return kind(text or "")
        except ValueError:
            pass
    return clean(text) if text else None


def _read(path: Path, damage: list[str]) -> bytes:
    """Return the content of a file of a trial; empty if there is none or it cannot be read."""
    try:
        return packed.read(held) if (held := packed.held(path)) else b""
    except OSError as error:
        damage.append(f"{path.name} cannot be read: {in_words(error)}")
        return b""


def read_trials(folder: Path, none_runs: bool = False, whole: bool = True) -> tuple[list[TrialRecord], dict[str, str]]:
    """Return the trials of a suite's folder that have ended, and damaged records.

    Args:
        folder: Path of the folder.
        none_runs: Whether the caller has locked the folder and runs no trial. A killed command then left every trial
            whose record says `running`.
        whole: Whether the trials have their epochs and layers, which takes most of the time.

    Returns:
        The trials, and the reason by trial why a record cannot be read.
    """
    store = Store(folder)
    trials: list[TrialRecord] = []
    damaged: dict[str, str] = {}
    is_busy = not none_runs and store.is_locked()
    for place in store.trial_folders():
        try:
            record = load_record(place)
        except FileNotFoundError:
            continue
        except DamagedRecord as error:
            damaged[clean(place.name)] = str(error)
            continue
        changes: dict[str, Any] = {}
        if record.status == RUNNING:
            if is_busy:
                continue
            changes = {"status": "error", "message": "did not end: the command that ran it is gone"}
        if not whole:
            trials.append(record.model_copy(update=changes))
            continue
        damage: list[str] = []
        changes |= {"epochs": read_epochs(place / FILES[0], damage), "layers": read_layers(place / FILES[1], damage)}
        missing = tuple(name for name in FILES if packed.held(place / name) is None)
        if record.done and not damage:
            reason = lacking(place, record, [name for name in FILES if name not in missing])
            damage += [reason] if reason else []
        trials.append(record.model_copy(update={**changes, "damage": tuple(damage), "missing_files": missing}))
    return trials, damaged


def read(folder: Path, none_runs: bool = False) -> Records:
    """Read a suite's folder.

    Args:
        folder: Path of the folder.
        none_runs: As for `read_trials`.

    Raises:
        NotTestedError: No trial was evaluated on test images.
        UsageError: The folder has no trials.
    """
    if not folder.is_dir():
        raise UsageError(f"{folder} does not exist, or is not a folder")
    trials, damaged = read_trials(folder, none_runs)
    if not trials and not damaged:
        raise UsageError(f"{folder} has no results to report: no trials/*/trial.json exists")
    tested = [trial for trial in trials if trial.spec.recipe.get("evaluate_test", True)]
    if trials and not tested:
        raise NotTestedError(
            f"{folder} has no results to report: its trials, as those of tune, were not evaluated on test images"
        )
    damage: list[str] = []
    return Records(
        folder,
        tuple(_label_file_versions(tested)),
        _intact(lambda place: read_suite(place / "suite.json"), folder, damage) or {},
        damaged,
        times=tuple(_intact(TIMES.read, folder, damage) or ()),
        profiles=tuple(_intact(PROFILES.read, folder, damage) or ()),
        tuned=_intact(read_tuned, folder, damage) if (folder / "tune.json").exists() else None,
        untested=len(trials) - len(tested),
        damage=tuple(damage),
    )


def update_table(
    folder: Path, none_runs: bool = False, targets: Sequence[float] = (), whole: bool = False
) -> list[TrialRecord]:
    """Replace `results.csv`, and return the trials of the folder. Cells without a value are empty.

    Args:
        folder: Path of the folder.
        none_runs: As for `read_trials`.
        targets: Target accuracies as fractions (default: those that a command declared in `suite.json`).
        whole: As for `read_trials`.
    """
    targets = targets or read_declared_targets(folder)
    trials, damaged = read_trials(folder, none_runs, whole or bool(targets))
    columns = [*SCHEMA, *recipe_columns(trial.spec for trial in trials)]
    rows = {
        trial.name: {column.name: column.of(trial) for column in columns} | target_columns(trial.epochs, targets)
        for trial in trials
    }
    rows |= {name: {"trial_id": name, "status": "error", "message": reason} for name, reason in damaged.items()}
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, [column.name for column in columns], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows[name] for name in sorted(rows))
    files.write(folder / "results.csv", text.getvalue())
    return trials


def read_declared_targets(folder: Path) -> tuple[float, ...]:
    """Return the targets that the last command with targets declared in `suite.json`; empty if there are none."""
    suite = _intact(lambda place: read_suite(place / "suite.json"), folder, [])
    declared = declared_targets(suite or {})
    return declared[-1] if declared else ()


def _intact(read_file: Callable[[Path], Content], folder: Path, damage: list[str]) -> Content | None:
    """Return what `read_file` returns; `None` if it finds damage. A line of `damage` then names the damage."""
    try:
        return read_file(folder)
    except UsageError as error:
        damage.append(clean(str(error)))
        return None


def _label_file_versions(trials: Sequence[TrialRecord]) -> list[TrialRecord]:
    """Give trials different labels if different versions of a file define their method, task or model.

    A folder holds trials of both versions after a plugin was edited, and these are different methods. A short checksum
    is then added to the method's parameters, or to the name of the task or model.
    """
    for kind, column in (("method", "variant"), ("task", "task"), ("model", "model")):
        names = [(trial.text(kind), trial.text(column)) for trial in trials]
        contents: dict[tuple[str, str], set[str]] = {}
        for name, trial in zip(names, trials, strict=True):
            contents.setdefault(name, set()).add(_version(trial, kind))
        trials = [
            trial.with_spec(**{column: f"{name[1]} file {_version(trial, kind) or 'unknown'}".strip()})
            if len(contents[name]) > 1
            else trial
            for name, trial in zip(names, trials, strict=True)
        ]
    return list(trials)


def _version(trial: TrialRecord, kind: str) -> str:
    """Return a short checksum of the files that define the method, task or model; empty for the project's own."""
    file = trial.spec.defined_by.get(kind)
    if not file:
        return ""
    known = {"sha256": file.get("sha256"), "imports": file.get("imports")}
    return hashlib.sha256(json.dumps(known, sort_keys=True, default=str).encode()).hexdigest()[:8]
