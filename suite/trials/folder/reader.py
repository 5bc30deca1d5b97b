"""Reads a suite's folder for code that computes with it. Each file is read once; damaged content is named and skipped.

This module checks every value that it returns: objects are objects, numbers are finite, and text can be encoded as
UTF-8 and embedded in XML. Rows of `suite.trials.folder.results` determine which trials there are, and their numbers.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from suite import files
from suite.errors import UsageError
from suite.files import clean
from suite.trials.folder import packed
from suite.trials.folder.columns import (
    COLUMNS,
    NUMBER_COLUMNS,
    RECIPE_PREFIX,
    TEXT_COLUMNS,
    read_table,
    recipe_cells,
)
from suite.trials.folder.profiles import PROFILES, GroupProfiles
from suite.trials.folder.times import TIMES, GroupTimes
from suite.trials.folder.tuning import Tuned, read_tuned

_MAX_MAGNITUDE = 1e30  # beyond the FLOPs of any training; sums and squares of these numbers are finite
_NUMBERS_OF_LAYERS = ("interval", "out_channels")  # the columns of layers.csv that figures show

LayerRow = Mapping[str, int | float | str | None]
Content = TypeVar("Content")


def finite(value: Any) -> float | None:
    """Return a number if it is safe to compute with, otherwise `None`, also for a boolean."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) and abs(number) <= _MAX_MAGNITUDE else None


def read_object(path: Path, damage: list[str], objects: tuple[str, ...] = ()) -> Mapping[str, Any]:
    """Read a JSON object; return an empty one if the file is missing or damaged.

    Args:
        path: Path of the file. The compressed form is read if only that exists.
        damage: List that receives a line for each fault.
        objects: Keys whose values must be objects. Other values are dropped and named in `damage`.
    """
    content = _read(path, damage)
    if content is None:
        return {}
    try:
        value = files.read_json(content)
    except ValueError as error:
        damage.append(f"{path.name} is damaged: {error}")
        return {}
    if not isinstance(value, dict):
        damage.append(f"{path.name} is damaged: it is not a JSON object")
        return {}
    return drop_non_objects(value, objects, path.name, damage)


def drop_non_objects(
    value: Mapping[str, Any], objects: tuple[str, ...], where: str, damage: list[str]
) -> Mapping[str, Any]:
    """Return the mapping without the keys of `objects` whose value is not an object, and add each to `damage`."""
    wrong = [key for key in objects if value.get(key) is not None and not isinstance(value[key], Mapping)]
    damage.extend(f"{where} is damaged: '{key}' is not a JSON object" for key in wrong)
    return {key: inner for key, inner in value.items() if key not in wrong}


def read_epochs(path: Path, damage: list[str]) -> tuple[Mapping[str, Any], ...]:
    """Read the records of `epochs.jsonl` in order, without damaged ones."""
    content = _read(path, damage)
    records: list[Mapping[str, Any]] = []
    for number, line in enumerate((content or b"").splitlines(), 1):
        if not line.strip():
            continue
        try:
            record = files.read_json(line)
        except ValueError as error:
            damage.append(f"{path.name}, line {number} is damaged: {error}")
            continue
        if wrong := _fault(record, records[-1]["epoch"] if records else 0):
            damage.append(f"{path.name}, line {number} is not a valid record of an epoch: {wrong}")
        else:
            records.append(record)
    return tuple(records)


def _fault(record: Any, last: int) -> str:
    """Describe what makes the record of an epoch unusable for the report; empty if nothing does."""
    if not isinstance(record, dict):
        return "it is not a JSON object"
    epoch = record.get("epoch")
    if isinstance(epoch, bool) or not isinstance(epoch, int) or not 0 < epoch < 10**9:
        return "it has no valid epoch number"
    if epoch <= last:
        return f"epoch {epoch} follows epoch {last}"
    wrong = [name for name, is_sound in _CHECKS.items() if record.get(name) is not None and not is_sound(record[name])]
    return f"'{wrong[0]}' has the wrong type" if wrong else ""


def _are_finite(values: Collection[Any]) -> bool:
    # A call of Python code for each number would be slow. NaN and infinity are never below the largest magnitude.
    if {int, float}.issuperset(map(type, values)) and sum(map(abs, values)) <= _MAX_MAGNITUDE:
        return True
    return all(finite(value) is not None for value in values)


def _is_number(value: Any) -> bool:
    return finite(value) is not None


def _is_object(value: Any) -> bool:
    return isinstance(value, dict)


def _are_numbers(value: Any) -> bool:
    return isinstance(value, dict) and _are_finite([number for number in value.values() if number is not None])


def _are_layers(value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    numbers: list[Any] = []
    for layer in value.values():
        if not isinstance(layer, dict) or not isinstance(densities := layer.get("density", []), list):
            return False
        numbers += densities
        numbers += [layer[name] for name in ("in", "out", "weight_density") if layer.get(name) is not None]
    return _are_finite(numbers)


# Checks of the values of an epoch, if it has them
_CHECKS: Mapping[str, Callable[[Any], bool]] = {
    **dict.fromkeys(("batch_size", "steps", "train_time_s"), _is_number),
    **dict.fromkeys(("step_flops", "train_flops"), _are_numbers),
    **dict.fromkeys(("backends", "method"), _is_object),
    "layers": _are_layers,
}


def parse_table(content: bytes) -> list[dict[str, str]]:
    """Parse CSV into one dictionary of text per row. Empty lines are skipped; missing cells are empty.

    Raises:
        ValueError: The content is not UTF-8 or not CSV, or has no header, or a row has more cells than the header.
    """
    try:
        lines = [line for line in csv.reader(io.StringIO(content.decode("utf-8-sig"), newline=""), strict=True) if line]
    except (csv.Error, ValueError) as error:
        raise ValueError(str(error)) from error
    if not lines:
        raise ValueError("it is empty")
    header, *rows = lines
    for number, row in enumerate(rows, 1):
        if len(row) > len(header):
            raise ValueError(f"row {number} has {len(row)} cells, but the header has {len(header)}")
    if len(set(header)) == len(header) and all(len(row) == len(header) for row in rows):
        return [dict(zip(header, row, strict=True)) for row in rows]
    # If a column occurs twice, the first one counts.
    return [
        {**dict.fromkeys(header, ""), **dict(reversed(list(zip(header, row, strict=False))))}  # type: ignore[call-overload]
        for row in rows
    ]


def read_layers(path: Path, damage: list[str]) -> tuple[LayerRow, ...]:
    """Read the rows of `layers.csv` with numbers as numbers; empty if the file is missing or damaged."""
    content = _read(path, damage)
    if content is None:
        return ()
    try:
        rows = [{name: _cell(text) for name, text in row.items()} for row in parse_table(content)]
        for column in _NUMBERS_OF_LAYERS:
            if any(column in row and finite(row[column]) is None for row in rows):
                raise ValueError(f"column {column} has a value that is not a number")
    except ValueError as error:
        damage.append(f"{path.name} is damaged: {error}")
        return ()
    return tuple(rows)


@lru_cache(maxsize=100_000)  # tables of trials repeat most of their cells
def _cell(text: str) -> int | float | str | None:
    """Convert the text of a cell to a number if possible; an empty cell is `None`."""
    if not text:
        return None
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        return clean(text)


def _read(path: Path, damage: list[str]) -> bytes | None:
    held = packed.held(path)
    if held is None:
        return None
    try:
        return packed.read(held)
    except OSError as error:
        damage.append(f"{held.name} cannot be read: {error.strerror or error}")
        return None


RECORDS = ("trial.json", f"trial.json{packed.SUFFIX}")
FILES = ("trial.json", "epochs.jsonl", "layers.csv")  # the files of a trial that a report reads
_NAME = re.compile(r"[^/\\\x00-\x1f]{1,255}")
_SPEC_OBJECTS = ("recipe", "replaced", "parameters", "model_parameters", "data_copy", "depends_on", "files")
_PROVENANCE_OBJECTS = ("hardware", "software", "settings", "git", "method")


class NotTestedError(UsageError):
    """No trial of a folder was evaluated on test images, as in the trials of `tune`, so there is nothing to report."""


@dataclass(frozen=True, eq=False)
class Trial:
    """One trial: its row of the results table and the files of its folder. It equals only itself.

    Attributes:
        texts: Text columns of `results.csv`, and all fields of the recipe. Empty cells are absent.
        numbers: Numeric columns of `results.csv`. Empty cells are absent.
        spec: Specification from `trial.json`; empty if that file is missing.
        provenance: Provenance from `trial.json`; empty if that file is missing.
        epochs: Records of `epochs.jsonl`, in order.
        layers: Rows of `layers.csv`; empty if that file is missing.
        damage: One line for each file that cannot be read and each value that is not valid for its column.
        missing_files: Those of `FILES` that do not exist.
        elsewhere: Whether the trial ran on another machine than its group. It then has no costs there
            (`suite.trials.groups`).
    """

    texts: Mapping[str, str]
    numbers: Mapping[str, float]
    spec: Mapping[str, Any] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)
    epochs: tuple[Mapping[str, Any], ...] = ()
    layers: tuple[LayerRow, ...] = ()
    damage: tuple[str, ...] = ()
    missing_files: tuple[str, ...] = ()
    elsewhere: bool = False

    @property
    def name(self) -> str:
        """Id of the trial."""
        return self.text("trial_id")

    @property
    def done(self) -> bool:
        """Whether the numbers of this trial count. A diverged trial may have numbers that do not count."""
        return self.text("status") == "done"

    def text(self, column: str) -> str:
        """Return a text column; empty if the trial has no value."""
        return self.texts.get(column, "")

    def number(self, column: str) -> float | None:
        """Return a numeric column; `None` if the trial has no value."""
        return self.numbers.get(column)


@dataclass(frozen=True)
class Records:
    """Records of a suite's folder.

    Attributes:
        folder: Path of the folder.
        trials: Trials in the order of the table.
        suite: Content of `suite.json`; empty if that file is missing.
        times: Content of `time.json`, which the time pass writes; empty if that file is missing or damaged.
        profiles: Content of `profile.json`, which the profile pass writes; empty if it is missing or damaged.
        source: Description of the origin of the numbers, with the checksum of a table.
        damage: One line for each damaged file outside the trials' folders.
        tuned: Content of `tune.json`, which `tune` writes; `None` if that file is missing or damaged.
        untested: Number of finished trials evaluated on validation images only, as in `tune`. `trials` leaves them out,
            because a report compares accuracies on the test set.
    """

    folder: Path
    trials: tuple[Trial, ...]
    suite: Mapping[str, Any]
    source: str
    damage: tuple[str, ...] = ()
    times: tuple[GroupTimes, ...] = ()
    tuned: Tuned | None = None
    untested: int = 0
    profiles: tuple[GroupProfiles, ...] = ()


def read(folder: Path, rows: Sequence[Mapping[str, Any]] = ()) -> Records:
    """Read a suite's folder.

    Args:
        folder: Path of the folder.
        rows: Rows of its trials, as `suite.trials.folder.results.current_rows` returns them (default: those of
            `results.csv`, for callers that have just written it).

    Raises:
        NotTestedError: No trial was evaluated on test images.
        UsageError: The folder has no results, or `results.csv` cannot be read.
    """
    if not folder.is_dir():
        raise UsageError(f"{folder} does not exist, or is not a folder")
    damage: list[str] = []
    suite = read_object(folder / "suite.json", damage, ("spec", "provenance"))
    table = folder / "results.csv"
    source = "the trials' trial.json, or results.csv where there is none"
    if not rows and table.is_file():
        source = f"results.csv (SHA-256 {hashlib.sha256(table.read_bytes()).hexdigest()[:8]})"
        rows = [*read_table(folder).values()]
    trials = [_trial(folder / "trials", row) for row in rows]
    if not trials:
        raise UsageError(f"{folder} has no results to report: results.csv has no rows")
    tested = [trial for trial in trials if not _is_untested(trial)]
    if not tested:
        raise NotTestedError(
            f"{folder} has no results to report: its trials, as those of tune, were not evaluated on test images"
        )
    return Records(
        folder,
        tuple(_label_file_versions(tested)),
        suite,
        source,
        times=tuple(_intact(TIMES.read, folder, damage) or ()),
        profiles=tuple(_intact(PROFILES.read, folder, damage) or ()),
        tuned=_intact(read_tuned, folder, damage),
        untested=len(trials) - len(tested),
        damage=tuple(damage),
    )


def _intact(read_file: Callable[[Path], Content], folder: Path, damage: list[str]) -> Content | None:
    """Return what `read_file` returns; `None` if it finds damage. A line of `damage` then names the damage."""
    try:
        return read_file(folder)
    except UsageError as error:
        damage.append(clean(str(error)))
        return None


def damage(records: Records) -> tuple[str, ...]:
    """Return one line for each file that cannot be read and each value that is not valid."""
    ours = [f"{trial.name}: {line}" for trial in records.trials for line in trial.damage]
    return tuple(clean(line) for line in (*records.damage, *ours))


def _is_untested(trial: Trial) -> bool:
    """Return whether the recipe of a trial, or its row if there is no recipe, says that it was not tested."""
    if trial.spec.get("recipe"):
        return trial.spec["recipe"].get("evaluate_test") is False
    return trial.done and trial.number("val_accuracy") is not None and trial.number("test_accuracy") is None


def _label_file_versions(trials: Sequence[Trial]) -> list[Trial]:
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
            replace(
                trial,
                texts={**trial.texts, column: f"{name[1]} file {_version(trial, kind) or 'unknown'}".strip()},
            )
            if len(contents[name]) > 1
            else trial
            for name, trial in zip(names, trials, strict=True)
        ]
    return list(trials)


def _version(trial: Trial, kind: str) -> str:
    """Return a short checksum of the files that define the method, task or model; empty for the project's own."""
    files = trial.spec.get("defined_by")
    file = files.get(kind) if isinstance(files, Mapping) else None
    if not isinstance(file, Mapping):
        return ""
    known = {"sha256": file.get("sha256"), "imports": file.get("imports")}
    return hashlib.sha256(json.dumps(known, sort_keys=True, default=str).encode()).hexdigest()[:8]


def _trial(trials: Path, row: Mapping[str, Any]) -> Trial:
    damage: list[str] = []
    # A table may contain any text as an id. Only the name of a subfolder is followed, because `..` would leave the
    # suite.
    name = row["trial_id"]
    is_name = bool(_NAME.fullmatch(name)) and name not in (".", "..")
    folder = trials / (name if is_name else "\0")
    record = read_object(folder / "trial.json", damage, ("spec", "provenance", "result"))
    spec = drop_non_objects(record.get("spec") or {}, _SPEC_OBJECTS, "the spec in trial.json", damage)
    provenance = drop_non_objects(
        record.get("provenance") or {}, _PROVENANCE_OBJECTS, "the provenance in trial.json", damage
    )
    # The table has only those fields of the recipe in which its trials differ.
    known = recipe_cells(spec["recipe"]) if spec.get("recipe") else {}
    row = {**known, **{key: value for key, value in row.items() if value not in ("", None)}}
    recipe = sorted(column for column in row if column.startswith(RECIPE_PREFIX))
    texts = {
        column: clean(str(row[column])) for column in (*TEXT_COLUMNS, *recipe) if row.get(column) not in ("", None)
    }
    numbers = {}
    for column in NUMBER_COLUMNS:
        value = row.get(column)
        number = _number(value, column)
        if number is not None:
            numbers[column] = number
        elif value not in ("", None) and not _is_nan(value):
            damage.append(clean(f"column {column} has the value {str(value)[:40]!r}, which is not valid"))
    epochs = read_epochs(folder / "epochs.jsonl", damage)
    layers = read_layers(folder / "layers.csv", damage)
    damage += packed.altered(folder, record)
    absent = tuple(file for file in FILES if packed.held(folder / file) is None)
    return Trial(texts, numbers, spec, provenance, epochs, layers, tuple(damage), absent)


def _number(value: Any, column: str) -> float | None:
    """Convert a value of a numeric column; `None` if it is missing or not valid for the column."""
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            return None
    number = finite(value)
    if number is None or number < 0:
        return None
    if number > COLUMNS[column].maximum or (column in ("seed", "threads") and number % 1):
        return None
    return number


def _is_nan(value: Any) -> bool:
    """Return whether a value is NaN, the mark of what was not measured."""
    try:
        return not isinstance(value, bool) and math.isnan(float(value))
    except (TypeError, ValueError, OverflowError):
        return False
