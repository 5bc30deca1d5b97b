"""Records of a suite's folder. Everything is read once; damaged content is named, never ignored silently."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from reports.data.trial_files import (
    Damage,
    LayerRow,
    clean,
    drop_non_objects,
    finite,
    parse_table,
    read_epochs,
    read_layers,
    read_object,
)
from suite.errors import UsageError
from suite.runs.folder import packed
from suite.runs.folder.columns import (
    COLUMNS,
    NUMBER_COLUMNS,
    RECIPE_PREFIX,
    REQUIRED_COLUMNS,
    TEXT_COLUMNS,
    execution_text,
    minor_version,
    recipe_cells,
)
from suite.runs.folder.profiles import PROFILES, GroupProfiles
from suite.runs.folder.times import TIMES, GroupTimes
from suite.runs.folder.tuning import Tuned, read_tuned
from suite.subnormals import IEEE

RECORDS = ("trial.json", f"trial.json{packed.SUFFIX}")
FILES = ("trial.json", "epochs.jsonl", "layers.csv")  # the files of a trial that a report is made from
_NAME = re.compile(r"[^/\\\x00-\x1f]{1,255}")
_SPEC_OBJECTS = ("recipe", "replaced", "parameters", "model_parameters", "data_copy", "depends_on", "files")
_PROVENANCE_OBJECTS = ("hardware", "software", "settings", "git", "method")


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
        elsewhere: Whether it ran on another machine than its group, and has no costs of it (`reports.data.groups`).
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
        """Whether the numbers of this trial count. A diverged trial may have numbers, but they do not count."""
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
        source: Description of the table that the numbers come from, with its checksum.
        damage: One line for each damaged file outside the trials' folders.
        tuned: Content of `tune.json`, which `tune` writes; `None` if that file is missing or damaged.
        untested: Number of finished trials that were evaluated on validation images only, as `tune` does. They are not
            among `trials`: a report compares accuracies on the test set.
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
        rows: Rows of its trials, as `suite.runs.folder.results.current_rows` returns them (default: those of
            `results.csv`, for callers that have just written it).

    Raises:
        UsageError: If the folder has no results on the test set, or `results.csv` cannot be read.
    """
    if not folder.is_dir():
        raise UsageError(f"{folder} does not exist, or is not a folder")
    damage: list[str] = []
    suite = read_object(folder / "suite.json", damage, ("spec", "provenance"))
    table = folder / "results.csv"
    if rows:
        source = "the trials' trial.json, or results.csv where there is none"
        trials = [_trial(folder / "trials", row["trial_id"], row) for row in rows]
    elif table.is_file():
        content = table.read_bytes()
        source = f"results.csv (SHA-256 {hashlib.sha256(content).hexdigest()[:8]})"
        trials = [_trial(folder / "trials", row["trial_id"], row) for row in _rows(table, content)]
    else:
        source = "the trials' trial.json (results.csv is absent)"
        paths = sorted(path.parent.name for path in folder.glob("trials/*/trial.json*") if path.name in RECORDS)
        trials = [_trial(folder / "trials", name, None) for name in dict.fromkeys(paths)]
    if not trials:
        raise UsageError(f"{folder} has no results to report: neither rows in results.csv nor trials/*/trial.json")
    tested = [trial for trial in trials if not _is_untested(trial)]
    if not tested:
        raise UsageError(
            f"{folder} has no results to report: its trials, as those of tune, were not evaluated on test images"
        )
    times: tuple[GroupTimes, ...] = ()
    profiles: tuple[GroupProfiles, ...] = ()
    tuned = None
    try:
        times = tuple(TIMES.read(folder))
    except UsageError as error:
        damage.append(clean(str(error)))
    try:
        profiles = tuple(PROFILES.read(folder))
    except UsageError as error:
        damage.append(clean(str(error)))
    try:
        tuned = read_tuned(folder)
    except UsageError as error:
        damage.append(clean(str(error)))
    labelled, untested = tuple(_label_file_versions(tested)), len(trials) - len(tested)
    return Records(folder, labelled, suite, source, tuple(damage), times, tuned, untested, profiles)


def damage(records: Records) -> tuple[str, ...]:
    """Return one line for each file that cannot be read and each value that is not valid."""
    ours = [f"{trial.name}: {line}" for trial in records.trials for line in trial.damage]
    return tuple(clean(line) for line in (*records.damage, *ours))


def _is_untested(trial: Trial) -> bool:
    """Return whether the recipe of a trial, or its row if that is all there is, says that it was not tested."""
    if trial.spec.get("recipe"):
        return trial.spec["recipe"].get("evaluate_test") is False
    return trial.done and trial.number("val_accuracy") is not None and trial.number("test_accuracy") is None


def _label_file_versions(trials: Sequence[Trial]) -> list[Trial]:
    """Give trials different labels if their method, task or model was defined by different versions of a file.

    After a plugin was edited, the folder holds trials of both versions, which are different methods. In that case a
    short checksum is added to the method's parameters, or to the name of the task or model.
    """
    for kind, column in (("method", "variant"), ("task", "task"), ("model", "model")):
        names = [(trial.text(kind), trial.text(column)) for trial in trials]
        contents: dict[tuple[str, str], set[str]] = {}
        for name, trial in zip(names, trials, strict=True):
            contents.setdefault(name, set()).add(_content(trial, kind))
        trials = [
            replace(
                trial, texts={**trial.texts, column: f"{name[1]} file {_content(trial, kind) or 'unknown'}".strip()}
            )
            if len(contents[name]) > 1
            else trial
            for name, trial in zip(names, trials, strict=True)
        ]
    return list(trials)


def _content(trial: Trial, kind: str) -> str:
    """Return a short checksum of the files that define the method, task or model; empty if it is not a plugin."""
    files = trial.spec.get("defined_by")
    one = files.get(kind) if isinstance(files, Mapping) else None
    if not isinstance(one, Mapping):
        return ""
    known = {"sha256": one.get("sha256"), "imports": one.get("imports")}
    return hashlib.sha256(json.dumps(known, sort_keys=True, default=str).encode()).hexdigest()[:8]


def _rows(table: Path, content: bytes) -> list[dict[str, str]]:
    # All cells stay text: a hardware id such as 12e45678 is not a number, and a method may be called "NA".
    try:
        rows = parse_table(content)
    except Damage as error:
        raise UsageError(f"{table} cannot be read as CSV: {error}") from error
    missing = [column for column in REQUIRED_COLUMNS if rows and column not in rows[0]]
    if missing:
        raise UsageError(f"{table} has no column '{missing[0]}'")
    return rows


def _trial(trials: Path, name: str, row: Mapping[str, Any] | None) -> Trial:
    damage: list[str] = []
    # A table may contain any text as an id. Only the name of a subfolder is followed; `..` would leave the suite.
    is_name = bool(_NAME.fullmatch(name)) and name not in (".", "..")
    folder = trials / (name if is_name else "\0")
    record = read_object(folder / "trial.json", damage, ("spec", "provenance", "result"))
    spec = drop_non_objects(record.get("spec") or {}, _SPEC_OBJECTS, "the spec in trial.json", damage)
    provenance = drop_non_objects(
        record.get("provenance") or {}, _PROVENANCE_OBJECTS, "the provenance in trial.json", damage
    )
    if row is None:
        row = {**(record.get("result") or {}), "status": record.get("status"), "message": record.get("message")}
        row |= {"trial_id": name}
        if damage:
            row |= {"status": "error", "message": "damaged record"}
    # A trial that failed before it had a result still has a method, a task and a seed: they are in its spec.
    known = {**_from_spec(spec), **_from_provenance(provenance)}
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


def _from_spec(spec: Mapping[str, Any]) -> dict[str, Any]:
    names = ("method", "variant", "task", "model", "preset", "seed", "device", "dtype")
    recipe, copy = spec.get("recipe") or {}, spec.get("data_copy") or {}
    found = {name: spec.get(name) for name in names} | {"arithmetic": spec.get("arithmetic", IEEE)}
    found |= recipe_cells(recipe) if recipe else {}
    found["execution"] = execution_text(recipe.get("execution"), spec.get("processes"))
    if copy:
        found["data_copy"] = f"{copy.get('kind', '')}-{str(copy.get('checksum', ''))[:8]}"
    if spec.get("parameters"):
        found["parameters"] = json.dumps(spec["parameters"], sort_keys=True)
    return found


def _from_provenance(provenance: Mapping[str, Any]) -> dict[str, Any]:
    hardware, software = provenance.get("hardware") or {}, provenance.get("software") or {}
    return {
        "hardware_id": provenance.get("hardware_id"),
        "threads": hardware.get("threads"),
        "torch": minor_version(str(software.get("torch") or "")),
    }


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
    """Return whether a value is NaN, which means that nothing was measured."""
    try:
        return not isinstance(value, bool) and math.isnan(float(value))
    except (TypeError, ValueError, OverflowError):
        return False
