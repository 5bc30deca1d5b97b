"""The record of a trial, `trial.json`: what it was, how it ended, what it gave, and where it ran.

    {"trial_id", "spec", "status", "message", "result", "provenance", "files": {name: {"size"}}}

It is written last, beside the old one, and replaces it. A finished trial has the sizes of its files. In an exported
folder, some files are compressed: `epochs.jsonl` is `epochs.jsonl.gz`.
"""

from __future__ import annotations

import dataclasses
import gzip
import json
import zlib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StrictFloat, StrictInt, model_validator

from suite import files
from suite.errors import UsageError, in_words, validate
from suite.files import canonical_json
from suite.trials.folder.table import COLUMNS, SCHEMA
from suite.trials.spec import TrialSpec

ENDED: Final = ("done", "diverged", "oom", "timeout", "error", "skipped")
RUNNING: Final = "running"
FILES: Final = ("model.pt", "epochs.jsonl", "layers.csv")
"""Files of a finished trial, in addition to its record."""
COMPRESSED: Final = FILES[1:]  # in an exported folder, which has no model
SUFFIX: Final = ".gz"
REMOVED_NOTHING: Final = "removed nothing"
"""End of the message of a control that was skipped because its methods removed nothing."""


class DamagedRecord(UsageError):
    """A `trial.json` that cannot be read, or does not have the form of a record."""


class Strict(BaseModel):
    """Base of what files of a suite's folder contain. It refuses unknown keys, and its values do not change."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class _DataFacts(BaseModel):
    classes: int | None = None


class _Place(BaseModel):
    shared_with: float | None = None


class _Attempt(BaseModel):
    busy_cores: float | None = None
    place: _Place | None = None


class _MethodFacts(BaseModel):
    tuning: list[str] = []


class _Provenance(_Attempt):
    """What code computes with in a provenance; other keys are free."""

    data: _DataFacts = _DataFacts()
    hardware: dict[str, Any] = {}
    software: dict[str, Any] = {}
    settings: dict[str, Any] = {}
    method: _MethodFacts = _MethodFacts()
    git: dict[str, Any] | None = None
    attempts: list[_Attempt] = []
    not_counted: list[str] = []


def _check_provenance(provenance: dict[str, Any]) -> dict[str, Any]:
    _Provenance.model_validate(provenance)
    return provenance


class FileFacts(BaseModel):
    """Facts of a file of a finished trial; `size` is in bytes, before an export compressed it."""

    size: int


class TrialRecord(BaseModel):
    """The content of `trial.json`, and of the trial's other files once `suite.trials.folder.reader` has read them.

    A record equals only itself.

    Attributes:
        spec: What defines the trial.
        status: One of `ENDED`, or `RUNNING`.
        message: Reason for the status.
        result: Measured and counted columns of `results.csv`.
        provenance: Hardware, software, settings, git state, command line, time, and what the training noted.
        files: Those of `FILES` that a finished trial wrote.
        epochs: Records of `epochs.jsonl`, in order.
        layers: Rows of `layers.csv`.
        damage: One line for each file that cannot be read.
        missing_files: Those of `epochs.jsonl` and `layers.csv` that do not exist.
        elsewhere: Whether the trial ran on another machine than its group. It then has no costs there
            (`suite.trials.groups`).
    """

    model_config = ConfigDict(frozen=True)

    spec: TrialSpec
    status: Literal["done", "diverged", "oom", "timeout", "error", "skipped", "running"]
    message: str = ""
    result: dict[str, StrictInt | StrictFloat | None] = {}
    provenance: Annotated[dict[str, Any], AfterValidator(_check_provenance)] = {}
    files: dict[str, FileFacts] = {}
    epochs: tuple[Mapping[str, Any], ...] = Field((), exclude=True, repr=False)
    layers: tuple[Mapping[str, Any], ...] = Field((), exclude=True, repr=False)
    damage: tuple[str, ...] = Field((), exclude=True)
    missing_files: tuple[str, ...] = Field((), exclude=True)
    elsewhere: bool = Field(False, exclude=True)

    __eq__ = object.__eq__
    __hash__ = object.__hash__

    @model_validator(mode="after")
    def _check_columns(self) -> Self:
        canonical_json(self.spec.recipe)  # which has no NaN
        for column in SCHEMA:
            if (value := column.of(self)) is not None and (fault := column.fault(value)):
                raise ValueError(f"{column.name} is {str(value)[:20]}: {fault}")
        return self

    @property
    def name(self) -> str:
        """Id of the trial, the name of its folder."""
        return self.spec.trial_id

    @property
    def done(self) -> bool:
        """Whether the numbers of this trial count. A diverged trial may have numbers that do not count."""
        return self.status == "done"

    @property
    def is_needless(self) -> bool:
        """Whether the trial was skipped because it would repeat dense training. That is no failure."""
        return self.status == "skipped" and self.message.endswith(REMOVED_NOTHING)

    def value(self, column: str) -> Any:
        """Return the value of a column of `results.csv`; `None` if the trial has none."""
        return COLUMNS[column].of(self) if column in COLUMNS else self.result.get(column)

    def text(self, column: str) -> str:
        """Return a text column; empty if the trial has no value."""
        return self.value(column) or ""

    def number(self, column: str) -> float | None:
        """Return a numeric column; `None` if the trial has no value."""
        value = self.value(column)
        return None if value is None else float(value)

    def with_spec(self, **changed: Any) -> Self:
        """Return this record with other fields of its specification."""
        return self.model_copy(update={"spec": dataclasses.replace(self.spec, **changed)})

    def without_home(self) -> Self:
        """Return this record with `~` for the home folder in the path of the data set."""
        copy = self.spec.data_copy
        return (
            self.with_spec(data_copy={**copy, "path": files.without_home(str(copy["path"]))})
            if "path" in copy
            else self
        )

    def to_json(self) -> dict[str, Any]:
        """Return the content of `trial.json`."""
        return {"trial_id": self.name, "spec": self.spec.to_json(), **self.model_dump(exclude={"spec"})}


def write_json(path: Path, data: Any) -> None:
    """Write JSON atomically; numbers that are not finite become null."""
    files.write(path, as_text(data))


def as_text(data: Any) -> str:
    """Return JSON as it is written; numbers that are not finite become null."""
    finite = json.loads(json.dumps(data, default=dict), parse_constant=lambda constant: None)
    return json.dumps(finite, indent=2, ensure_ascii=False) + "\n"


def write_record(
    folder: Path,
    spec: TrialSpec,
    status: str,
    message: str = "",
    result: Mapping[str, Any] | None = None,
    provenance: Mapping[str, Any] | None = None,
) -> None:
    """Write the record of a trial, after all its other files. Impossible values are found when it is read.

    Args:
        folder: Folder of the trial.
        status: One of `ENDED`, or `RUNNING`.
        message: Reason for the status.
        result, provenance: As in `TrialRecord`, if they are known.
    """
    content = {"trial_id": spec.trial_id, "spec": spec.to_json(), "status": status, "message": message}
    content |= {"result": result or {}, "provenance": provenance or {}}
    if status == "done":
        present = (folder / name for name in FILES if (folder / name).is_file())
        content["files"] = {path.name: {"size": path.stat().st_size} for path in present}
    write_json(folder / "trial.json", content)


def load_record(folder: Path) -> TrialRecord:
    """Return the record of a trial.

    Raises:
        FileNotFoundError: It has none.
        DamagedRecord: It cannot be read, or belongs to another trial; one line with the reason.
    """
    path = held(folder / "trial.json")
    if path is None:
        raise FileNotFoundError(folder / "trial.json")
    try:
        record: TrialRecord = validate(TrialRecord, files.read_json(unpacked(path)), "")
        if record.name != folder.name:
            raise ValueError(f"it belongs to {record.name}")
    except OSError as error:
        raise DamagedRecord(f"damaged record: {in_words(error)}") from error
    except (ValueError, LookupError, TypeError, UsageError) as error:
        raise DamagedRecord(f"damaged record: {error}") from error
    return record


def read_record(folder: Path) -> TrialRecord | None:
    """Return the record of a trial; `None` if there is none that can be read."""
    try:
        return load_record(folder)
    except (FileNotFoundError, DamagedRecord):
        return None


def is_export(folder: Path) -> bool:
    """Return whether `export` wrote the folder of a trial, with compressed files and without a model."""
    return not (folder / "model.pt").exists() and any((folder / f"{name}{SUFFIX}").exists() for name in COMPRESSED)


def lacking(folder: Path, record: TrialRecord, names: Collection[str] = FILES) -> str:
    """Return which file of a finished trial is missing or was cut off; empty if none is.

    Args:
        folder: Folder of the trial.
        record: Its record.
        names: The files to look at; an exported folder has no model.
    """
    for name in names:
        if name == "model.pt" and is_export(folder):
            continue
        path, facts = held(folder / name), record.files.get(name)
        if path is None or facts is None:
            return f"{name} is missing"
        try:
            size = len(unpacked(path)) if path.suffix == SUFFIX else path.stat().st_size
        except OSError as error:
            return f"{path.name} cannot be read: {in_words(error)}"
        if size != facts.size:
            return f"{path.name} has {size} bytes, not {facts.size}"
    return ""


def held(path: Path) -> Path | None:
    """Return `path` or its compressed form, whichever exists; `None` if neither does."""
    return next((file for file in (path, path.with_name(path.name + SUFFIX)) if file.is_file()), None)


def unpacked(path: Path) -> bytes:
    """Return the decompressed content of a file that `held` found.

    Raises:
        OSError: The file cannot be read, or its compression is damaged.
    """
    try:
        return gzip.decompress(path.read_bytes()) if path.suffix == SUFFIX else path.read_bytes()
    except (EOFError, zlib.error) as error:
        raise OSError(f"{path.name} is not a whole gzip file: {error}") from error


def pack(content: bytes) -> bytes:
    """Return the compressed form, which depends on the content alone."""
    return gzip.compress(content, 9, mtime=0)
