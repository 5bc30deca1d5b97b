"""What a suite's folder holds, read once, with what is damaged named instead of passed over."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from suite.errors import UsageError

TEXT_COLUMNS = (
    "trial_id", "method", "variant", "task", "model", "preset", "status", "message", "device", "hardware_id", "dtype",
    "data_copy", "parameters", "execution",
)  # fmt: skip
NUMBER_COLUMNS = (
    "seed", "batch_size", "epochs", "test_accuracy", "test_loss", "val_accuracy", "best_epoch_accuracy", "train_time_s",
    "eval_time_s", "reconfigure_time_s", "wall_time_s", "samples_per_s", "inference_images_per_s", "train_flops_dense",
    "train_flops_current", "train_flops_effective", "train_flops_executed", "inference_flops_dense", "inference_flops",
    "inference_flops_effective", "params_dense", "params", "nonzero_params", "peak_memory_bytes", "peak_rss_bytes",
    "energy_j", "allreduce_bytes", "modelled_train_time_s", "target_accuracy", "time_to_target_s",
)  # fmt: skip
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ufffe\uffff\ud800-\udfff]")


@dataclass(frozen=True)
class Trial:
    """One trial: its row of the results table and the files beside it.

    Attributes:
        texts, numbers: its columns of `results.csv`; what is empty there is absent here.
        spec, provenance: of `trial.json`; empty where that is missing.
        epochs: the records of `epochs.jsonl`, in order.
        layers: the rows of `layers.csv`; no rows where that is missing.
        damage: one line for each file that cannot be read.
    """

    texts: Mapping[str, str]
    numbers: Mapping[str, float]
    spec: Mapping[str, Any] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)
    epochs: tuple[Mapping[str, Any], ...] = ()
    layers: pd.DataFrame = field(default_factory=pd.DataFrame)
    damage: tuple[str, ...] = ()

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
    suite = _json(folder / "suite.json", damage)
    table = folder / "results.csv"
    if table.is_file():
        digest = hashlib.sha256(table.read_bytes()).hexdigest()
        source = f"results.csv (SHA-256 {digest[:8]})"
        trials = [_trial(folder / "trials" / Path(row["trial_id"]).name, row) for row in _rows(table)]
    else:
        source = "the trials' trial.json (results.csv is absent)"
        trials = [_trial(path.parent, None) for path in sorted(folder.glob("trials/*/trial.json"))]
    if not trials:
        raise UsageError(f"{folder}: has no results to report: neither rows in results.csv nor trials/*/trial.json")
    return Records(folder, tuple(trials), suite, source, tuple(damage))


def _rows(table: Path) -> list[dict[str, str]]:
    # Everything is read as text: a hardware id such as 12e45678 is no number, a method may be called "NA".
    try:
        frame = pd.read_csv(table, dtype=str, keep_default_na=False)
    except (pd.errors.ParserError, pd.errors.EmptyDataError, UnicodeDecodeError) as error:
        raise UsageError(f"{table}: cannot be read as CSV: {error}") from error
    missing = [column for column in ("trial_id", "method", "status") if column not in frame]
    if missing:
        raise UsageError(f"{table}: has no column '{missing[0]}'")
    return [{str(key): str(value) for key, value in row.items()} for row in frame.to_dict("records")]


def _trial(folder: Path, row: Mapping[str, Any] | None) -> Trial:
    damage: list[str] = []
    record = _json(folder / "trial.json", damage)
    spec, provenance = _mapping(record.get("spec")), _mapping(record.get("provenance"))
    if row is None:
        row = {**_mapping(record.get("result")), "status": record.get("status"), "message": record.get("message")}
        row |= {"trial_id": folder.name}
        if damage:
            row |= {"status": "error", "message": "damaged record"}
    # A trial that failed before it had a result still has a name, a seed, a task: its spec knows them.
    known = {**_from_spec(spec), "hardware_id": provenance.get("hardware_id")}
    row = {**known, **{key: value for key, value in row.items() if value not in ("", None)}}
    texts = {column: clean(str(row[column])) for column in TEXT_COLUMNS if row.get(column) not in ("", None)}
    found = {column: _number(row.get(column), column, folder.name) for column in NUMBER_COLUMNS}
    numbers = {column: value for column, value in found.items() if value is not None}
    epochs = _epochs(folder / "epochs.jsonl", damage)
    return Trial(texts, numbers, spec, provenance, epochs, _layers(folder / "layers.csv", damage), tuple(damage))


def _from_spec(spec: Mapping[str, Any]) -> dict[str, Any]:
    names = ("method", "variant", "task", "model", "preset", "seed", "device", "dtype")
    recipe, copy = _mapping(spec.get("recipe")), _mapping(spec.get("data_copy"))
    found = {name: spec.get(name) for name in names}
    found |= {name: recipe.get(name) for name in ("batch_size", "epochs", "execution")}
    if copy:
        found["data_copy"] = f"{copy.get('kind', '')}-{str(copy.get('checksum', ''))[:8]}"
    if spec.get("parameters"):
        found["parameters"] = json.dumps(spec["parameters"], sort_keys=True)
    return found


def clean(text: str) -> str:
    """Text that may stand in XML: control characters become U+FFFD."""
    return _CONTROL.sub("\ufffd", text)


def _number(value: Any, column: str, trial: str) -> float | None:
    if value is None or value == "":
        return None
    try:
        number = float(value)
    except (TypeError, ValueError) as error:
        raise UsageError(f"trial {trial}: {column} is '{value}', which is no number") from error
    return number if math.isfinite(number) else None


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _json(path: Path, damage: list[str]) -> Mapping[str, Any]:
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        damage.append(f"{path.name} is damaged: {error}")
        return {}
    if not isinstance(value, dict):
        damage.append(f"{path.name} is damaged: it holds no JSON object")
        return {}
    return value


def _epochs(path: Path, damage: list[str]) -> tuple[Mapping[str, Any], ...]:
    records = []
    if path.is_file():
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
            if not line.strip():
                continue
            try:
                record = json.loads(line)
            except json.JSONDecodeError as error:
                damage.append(f"{path.name}, line {number} is damaged: {error}")
                continue
            if isinstance(record, dict) and isinstance(record.get("epoch"), int):
                records.append(record)
            else:
                damage.append(f"{path.name}, line {number} is no record of an epoch")
    return tuple(records)


def _layers(path: Path, damage: list[str]) -> pd.DataFrame:
    if not path.is_file():
        return pd.DataFrame()
    try:
        return pd.read_csv(path)
    except (pd.errors.ParserError, pd.errors.EmptyDataError, UnicodeDecodeError) as error:
        damage.append(f"{path.name} is damaged: {error}")
        return pd.DataFrame()
