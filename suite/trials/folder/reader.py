"""Reads the trials of a suite's folder, and writes them as `results.csv`. Damaged content is named and skipped.

What is read is validated: numbers are finite, and text can be encoded as UTF-8 and embedded in XML.
"""

from __future__ import annotations

import contextlib
import csv
import io
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Interval
from pydantic import BaseModel, Field

from suite import files
from suite.errors import UsageError, in_words, validate
from suite.files import clean
from suite.trials.folder.records import (
    COMPRESSED,
    RUNNING,
    DamagedRecord,
    TrialRecord,
    held,
    lacking,
    load_record,
    unpacked,
)
from suite.trials.folder.store import Store, read_suite
from suite.trials.folder.table import SCHEMA, Column, recipe_columns
from suite.trials.folder.targets import declared_targets, target_columns

_NUMBERS_OF_LAYERS = ("interval", "out_channels")  # the columns of layers.csv that figures show
Number = Annotated[int | float, Interval(ge=-1e30, le=1e30)]  # sums and squares of these numbers are finite


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
    energy_j: Number | None = None
    test_accuracy: Number | None = None
    step_flops: dict[str, Number | None] = {}
    train_flops: dict[str, Number | None] = {}
    backends: dict[str, Any] = {}
    method: dict[str, Any] = {}
    layers: dict[str, _Layer] = {}


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
            damage.append(f"{path.name}, line {number} is damaged: {error}")
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
        return unpacked(file) if (file := held(path)) else b""
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
        if whole:
            damage: list[str] = []
            changes["epochs"] = read_epochs(place / "epochs.jsonl", damage)
            changes["layers"] = read_layers(place / "layers.csv", damage)
            missing = tuple(name for name in COMPRESSED if held(place / name) is None)
            present = [name for name in COMPRESSED if name not in missing]
            if record.done and not damage and (reason := lacking(place, record, present)):
                damage.append(reason)
            changes |= {"damage": tuple(damage), "missing_files": missing}
        trials.append(record.model_copy(update=changes))
    return trials, damaged


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
    rows = {trial.name: table_row(trial, columns, targets) for trial in trials}
    rows |= {name: {"trial_id": name, "status": "error", "message": reason} for name, reason in damaged.items()}
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, [column.name for column in columns], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows[name] for name in sorted(rows))
    files.write(folder / "results.csv", text.getvalue())
    return trials


def table_row(trial: TrialRecord, columns: Sequence[Column], targets: Sequence[float]) -> dict[str, Any]:
    """Return the cells of a trial by column; `None` for those without a value."""
    return {column.name: column.of(trial) for column in columns} | target_columns(trial.epochs, targets)


def read_declared_targets(folder: Path) -> tuple[float, ...]:
    """Return the targets that the last command with targets declared in `suite.json`; empty if there are none."""
    declared: list[tuple[float, ...]] = []
    with contextlib.suppress(UsageError):
        declared = declared_targets(read_suite(folder / "suite.json"))
    return declared[-1] if declared else ()
