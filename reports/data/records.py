"""What a suite's folder holds, read once, with what is damaged named instead of passed over."""

from __future__ import annotations

import hashlib
import io
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd

from reports.data.trial_files import clean, finite, read_epochs, read_layers, read_object, without_others
from suite.errors import UsageError
from suite.runs.folder import packed
from suite.runs.versions import minor_version

TEXT_COLUMNS = (
    "trial_id", "method", "variant", "task", "model", "preset", "status", "message", "device", "hardware_id", "dtype",
    "data_copy", "parameters", "execution", "torch",
)  # fmt: skip
NUMBER_COLUMNS = (
    "seed", "batch_size", "epochs", "test_accuracy", "test_loss", "val_accuracy", "best_epoch_accuracy", "train_time_s",
    "eval_time_s", "reconfigure_time_s", "wall_time_s", "samples_per_s", "inference_images_per_s", "train_flops_dense",
    "train_flops_current", "train_flops_effective", "train_flops_executed", "inference_flops_dense", "inference_flops",
    "inference_flops_effective", "params_dense", "params", "nonzero_params", "peak_memory_bytes", "peak_rss_bytes",
    "compile_time_s", "threads",
)  # fmt: skip
RECORDS = ("trial.json", f"trial.json{packed.SUFFIX}")
FILES = ("trial.json", "epochs.jsonl", "layers.csv")  # of a trial, that a report is made from
_NAME = re.compile(r"[^/\\\x00-\x1f]{1,255}")
_SPEC_OBJECTS = ("recipe", "parameters", "model_parameters", "data_copy", "depends_on", "files")
_PROVENANCE_OBJECTS = ("hardware", "software", "settings", "git", "method")
_ACCURACIES = ("test_accuracy", "val_accuracy", "best_epoch_accuracy")


@dataclass(frozen=True)
class Trial:
    """One trial: its row of the results table and the files beside it.

    Attributes:
        texts, numbers: its columns of `results.csv`; what is empty there is absent here.
        spec, provenance: of `trial.json`; empty where that is missing.
        epochs: the records of `epochs.jsonl`, in order.
        layers: the rows of `layers.csv`; no rows where that is missing.
        damage: one line for each file that cannot be read, and for each value that its column cannot have.
        absent: those of `FILES` that are not there.
    """

    texts: Mapping[str, str]
    numbers: Mapping[str, float]
    spec: Mapping[str, Any] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)
    epochs: tuple[Mapping[str, Any], ...] = ()
    layers: pd.DataFrame = field(default_factory=pd.DataFrame)
    damage: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The trial's id."""
        return self.text("trial_id")

    @property
    def done(self) -> bool:
        """Whether its numbers count: a diverged trial may have some, and they do not."""
        return self.text("status") == "done"

    def text(self, column: str) -> str:
        """A text column; empty where it is empty."""
        return self.texts.get(column, "")

    def number(self, column: str) -> float | None:
        """A numeric column; `None` where it is empty."""
        return self.numbers.get(column)


@dataclass(frozen=True)
class Records:
    """A suite's folder.

    Attributes:
        trials: in the order of the table.
        suite: `suite.json`; empty where that is missing.
        source: the table the numbers come from, in words, with its checksum.
        damage: one line for each file of the folder, outside trials, that cannot be read.
    """

    folder: Path
    trials: tuple[Trial, ...]
    suite: Mapping[str, Any]
    source: str
    damage: tuple[str, ...] = ()


def read(folder: Path) -> Records:
    """Read a suite's folder.

    Raises:
        UsageError: if it has no results, or `results.csv` cannot be read.
    """
    if not folder.is_dir():
        raise UsageError(f"{folder}: no such folder")
    damage: list[str] = []
    suite = read_object(folder / "suite.json", damage, ("spec", "provenance"))
    table = folder / "results.csv"
    if table.is_file():
        content = table.read_bytes()
        source = f"results.csv (SHA-256 {hashlib.sha256(content).hexdigest()[:8]})"
        trials = [_trial(folder / "trials", row["trial_id"], row) for row in _rows(table, content)]
    else:
        source = "the trials' trial.json (results.csv is absent)"
        paths = sorted(path.parent.name for path in folder.glob("trials/*/trial.json*") if path.name in RECORDS)
        trials = [_trial(folder / "trials", name, None) for name in dict.fromkeys(paths)]
    if not trials:
        raise UsageError(f"{folder}: has no results to report: neither rows in results.csv nor trials/*/trial.json")
    return Records(folder, tuple(_apart_by_content(trials)), suite, source, tuple(damage))


def _apart_by_content(trials: Sequence[Trial]) -> list[Trial]:
    """Tell trials of one name apart whose method, task or model was defined by files of different content.

    After an edit of a plugin the folder holds trials of the old content and of the new, which are different methods.
    Where that is so, a short checksum follows the method's parameters, or the name of the task or model.
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
    """A short checksum of the files that define a trial's method, task or model; empty where no plugin does."""
    files = trial.spec.get("defined_by")
    one = files.get(kind) if isinstance(files, Mapping) else None
    if not isinstance(one, Mapping):
        return ""
    known = {"sha256": one.get("sha256"), "imports": one.get("imports")}
    return hashlib.sha256(json.dumps(known, sort_keys=True, default=str).encode()).hexdigest()[:8]


def _rows(table: Path, content: bytes) -> list[dict[str, str]]:
    # Everything is read as text: a hardware id such as 12e45678 is no number, a method may be called "NA".
    try:
        frame = pd.read_csv(io.BytesIO(content), dtype=str, keep_default_na=False, index_col=False)
    except (pd.errors.ParserError, pd.errors.EmptyDataError, ValueError) as error:
        raise UsageError(f"{table}: cannot be read as CSV: {error}") from error
    missing = [column for column in ("trial_id", "method", "status") if column not in frame]
    if missing:
        raise UsageError(f"{table}: has no column '{missing[0]}'")
    return [{str(key): str(value) for key, value in row.items()} for row in frame.to_dict("records")]


def _trial(trials: Path, name: str, row: Mapping[str, Any] | None) -> Trial:
    damage: list[str] = []
    # An id that is not the name of a folder (a table may hold anything) has no files; `..` would leave the suite's.
    is_name = bool(_NAME.fullmatch(name)) and name not in (".", "..")
    folder = trials / (name if is_name else "\0")
    record = read_object(folder / "trial.json", damage, ("spec", "provenance", "result"))
    spec = without_others(record.get("spec") or {}, _SPEC_OBJECTS, "the spec in trial.json", damage)
    provenance = without_others(
        record.get("provenance") or {}, _PROVENANCE_OBJECTS, "the provenance in trial.json", damage
    )
    if row is None:
        row = {**(record.get("result") or {}), "status": record.get("status"), "message": record.get("message")}
        row |= {"trial_id": name}
        if damage:
            row |= {"status": "error", "message": "damaged record"}
    # A trial that failed before it had a result still has a name, a seed, a task: its spec knows them.
    known = {**_from_spec(spec), **_from_provenance(provenance)}
    row = {**known, **{key: value for key, value in row.items() if value not in ("", None)}}
    texts = {column: clean(str(row[column])) for column in TEXT_COLUMNS if row.get(column) not in ("", None)}
    numbers = {}
    for column in NUMBER_COLUMNS:
        value = row.get(column)
        number = _number(value, column)
        if number is not None:
            numbers[column] = number
        elif value not in ("", None) and not _is_nan(value):
            damage.append(clean(f"{column} is {str(value)[:40]!r}, which it cannot be"))
    epochs = read_epochs(folder / "epochs.jsonl", damage)
    layers = read_layers(folder / "layers.csv", damage)
    damage += packed.altered(folder, record)
    absent = tuple(file for file in FILES if packed.held(folder / file) is None)
    return Trial(texts, numbers, spec, provenance, epochs, layers, tuple(damage), absent)


def _from_spec(spec: Mapping[str, Any]) -> dict[str, Any]:
    names = ("method", "variant", "task", "model", "preset", "seed", "device", "dtype")
    recipe, copy = spec.get("recipe") or {}, spec.get("data_copy") or {}
    found = {name: spec.get(name) for name in names}
    found |= {name: recipe.get(name) for name in ("batch_size", "epochs", "execution")}
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
    """A value of a column of numbers; `None` where it has none, or one that the column cannot have."""
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            return None
    number = finite(value)
    if number is None or number < 0:
        return None
    if (column in _ACCURACIES and number > 1) or (column in ("seed", "epochs", "threads") and number % 1):
        return None
    return number


def _is_nan(value: Any) -> bool:
    """Whether a value says by NaN that nothing was measured."""
    try:
        return not isinstance(value, bool) and math.isnan(float(value))
    except (TypeError, ValueError, OverflowError):
        return False
