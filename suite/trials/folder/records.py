"""The record of a trial, `trial.json`, which is written with checksums and checked when it is read.

    {"trial_id", "spec", "status", "message", "result", "provenance", "files": {name: {"size", "sha256"}}, "sha256"}

`sha256` is the checksum of the canonical JSON of all other fields, so it detects every edit. Only the record of a done
trial has `files`.
"""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from suite import files
from suite.errors import in_words
from suite.trials.folder import packed
from suite.trials.folder.columns import COLUMNS
from suite.trials.spec import LARGEST_SEED, TrialSpec

ENDED = ("done", "diverged", "oom", "timeout", "error", "skipped")
RUNNING = "running"
FILES = ("model.pt", "epochs.jsonl", "layers.csv")
"""Files of a finished trial, in addition to its record."""

LARGEST_RECORD = 64 * 2**20  # bytes
_LARGEST = {int: 2**63 - 1, float: 1.7e308}
# The type that a field of a specification has by its annotation, and the message about another type. Numbers have their
# own limits.
_KINDS: dict[str, tuple[type, str]] = {
    "str": (str, "is not a string"),
    "Mapping": (Mapping, "is not an object"),
    "bool": (bool, "is neither true nor false"),
}


def write_json(path: Path, data: Any) -> None:
    """Write JSON atomically. JSON has no infinities or NaN; they become null (not measured)."""
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


def write_record(folder: Path, spec: TrialSpec, status: str, message: str = "", **more: Any) -> None:
    """Write the `trial.json` of a trial.

    The record of a finished trial has the size and checksum of each of `FILES` that exists. It must be written last.

    Args:
        folder: Folder of the trial.
        status: One of `ENDED`, or `RUNNING`.
        message: Reason for the status.
        more: `result` and `provenance`, if they are known.
    """
    if status not in (*ENDED, RUNNING):
        raise ValueError(f"'{status}' is not a status of a trial")
    content = {
        "trial_id": spec.trial_id,
        "spec": spec.to_json(),
        "status": status,
        "message": message,
        **more,
    }
    if status == "done":
        content["files"] = {name: _facts(folder / name) for name in FILES if (folder / name).is_file()}
    content = _finite(content)
    write_json(folder / "trial.json", {**content, "sha256": packed.digest(content)})


def without_home(content: bytes) -> bytes:
    """Return the content of a `trial.json` with `~` for the home folder in the path of the data set.

    Content that is no record, or has no such path, is returned unchanged. A damaged record keeps a wrong checksum.
    """
    try:
        written = json.loads(content)
        whole = "sha256" in written and written["sha256"] == packed.digest(written)
        record = files.clean_data(written)
        copy = record["spec"]["data_copy"]
        path = files.without_home(copy["path"])
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return content
    if path == copy["path"]:
        return content
    copy["path"] = path
    if whole:
        record["sha256"] = packed.digest(record)
    return (json.dumps(record, indent=2, ensure_ascii=False) + "\n").encode()


def read_record(folder: Path) -> dict[str, Any] | None:
    """Return the content of a trial's `trial.json`; `None` if it does not exist.

    One bad file must not hide the other trials. A file that cannot be read, belongs to another trial or contains an
    impossible value therefore gives the status `error` and a message that begins with `damaged record`. `damage` checks
    the trial's other files.
    """
    path = packed.held(folder / "trial.json")
    if path is None:
        return None
    try:
        if path.stat().st_size > LARGEST_RECORD:
            raise ValueError(f"it is larger than {LARGEST_RECORD} bytes")
        record = _checked(json.loads(packed.read(path)), folder.name)
    except OSError as error:
        return _damaged(error.strerror or "it cannot be read")
    except (ValueError, RecursionError) as error:
        return _damaged(str(error))
    return record


def damage(folder: Path, record: Mapping[str, Any]) -> str:
    """Return why a trial with the status `done` does not count: one of its files is missing or was changed.

    This reads all files of the trial. It does not import torch.

    Args:
        folder: Folder of the trial.
        record: Return value of `read_record`, with the status `done`.

    Returns:
        The reason, as text that can follow the name of the trial; empty if no file is damaged.
    """
    try:
        for name in FILES:
            if name not in record.get("files", {}) or not (folder / name).is_file():
                return f"{name} is missing"
            expected, size = record["files"][name], (folder / name).stat().st_size
            if size != expected["size"]:
                return f"{name} has {size} bytes, not {expected['size']}"
            if _facts(folder / name) != expected:
                return f"{name} does not have the checksum in trial.json"
    except OSError as error:
        return f"its files cannot be read: {in_words(error)}"
    return ""


def is_export(folder: Path) -> bool:
    """Return whether `export` wrote the folder of a trial, with compressed files and without a model."""
    packed_files = (folder / f"{name}{packed.SUFFIX}" for name in packed.COMPRESSED)
    return any(path.exists() for path in packed_files) and not (folder / "model.pt").exists()


def export_damage(folder: Path, record: Mapping[str, Any]) -> str:
    """Return why the exported folder of a finished trial does not count, as `damage` does for other folders."""
    for name in packed.COMPRESSED:
        path, facts = folder / f"{name}{packed.SUFFIX}", record.get("files", {})
        if name not in facts or not path.is_file():
            return f"{path.name} is missing"
        try:
            content = packed.read(path)
        except OSError as error:
            return f"{path.name} cannot be read: {in_words(error)}"
        if hashlib.sha256(content).hexdigest() != facts[name]["sha256"]:
            return f"{path.name} does not have the checksum in trial.json"
    return ""


def model_damage(folder: Path, record: Mapping[str, Any]) -> str:
    """Return why `model.pt`, which exists, is not the trial's; empty if it is, or is not in the record."""
    expected = record.get("files", {}).get("model.pt")
    try:
        changed = expected is not None and _facts(folder / "model.pt") != expected
    except OSError as error:
        return f"model.pt cannot be read: {in_words(error)}"
    return "model.pt does not have the checksum in trial.json" if changed else ""


def _checked(record: Any, name: str) -> dict[str, Any]:
    """Check the content of a record, and return it with clean text.

    Args:
        record: JSON as it was written, which the checksum is about.
        name: Name of the trial's folder.

    Raises:
        ValueError: A field is missing or has an impossible value, or the record belongs to another trial.
    """
    if not isinstance(record, dict):
        raise ValueError("it is not a JSON object")
    if missing := {"trial_id", "sha256"} - set(record):
        raise ValueError(f"it has no {min(missing)}")
    if record["sha256"] != packed.digest(record):
        raise ValueError("it was changed: its checksum does not match")
    record = files.clean_data(record)
    spec = record.get("spec")
    if not isinstance(spec, dict) or "hash" not in spec:
        raise ValueError("it has no spec with a hash")
    read = TrialSpec.from_json(spec)
    if not (_is_integer(read.seed) and 0 <= read.seed <= LARGEST_SEED):
        raise ValueError(f"its seed is {str(read.seed)[:40]}")
    for one in dataclasses.fields(TrialSpec):
        kind, mistake = _KINDS.get(str(one.type).partition("[")[0], (object, ""))
        if not isinstance(getattr(read, one.name), kind):
            raise ValueError(f"its {one.name} {mistake}")
    for field in ("plugins", "callbacks"):
        listed = spec.get(field, [])
        if not (isinstance(listed, list) and all(isinstance(name, str) for name in listed)):
            raise ValueError(f"its {field} are not a list of strings")
    index = read.device_index
    if index is not None and not (_is_integer(index) and 0 <= index <= _LARGEST[int]):
        raise ValueError(f"its device_index is {str(read.device_index)[:40]}")
    if not (_is_integer(read.processes) and read.processes >= 1):
        raise ValueError(f"its processes are {str(read.processes)[:40]}")
    for field in ("epochs", "batch_size"):
        value: Any = read.recipe.get(field)
        is_number = isinstance(value, (int, float)) if field == "epochs" else isinstance(value, int)
        if not is_number or isinstance(value, bool) or not 1 <= value <= _LARGEST[int]:
            raise ValueError(f"its recipe.{field} is {str(value)[:40]}")
    if record["trial_id"] != name or not name.endswith(f"-{read.hash[:8]}"):
        raise ValueError(f"it belongs to {read.trial_id}")
    if record.get("status") not in (*ENDED, RUNNING):
        raise ValueError("it has no valid status")
    if not isinstance(record.get("message", ""), str):
        raise ValueError("its message is not a string")
    for field in ("result", "provenance", "files"):
        if not isinstance(record.get(field, {}), dict):
            raise ValueError(f"its {field} is not an object")
    for column, value in record.get("result", {}).items():
        _check_value(column, value)
    for name, facts in record.get("files", {}).items():
        if not (isinstance(facts, dict) and _is_integer(facts.get("size")) and isinstance(facts.get("sha256"), str)):
            raise ValueError(f"its files do not have size and checksum of {name}")
    return dict(record)


def _check_value(column: str, value: Any) -> None:
    """Check that a measured value is a number from 0 to the maximum of its column."""
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"its {column} is not a number")
    known = COLUMNS.get(column)
    largest = min(known.maximum if known else math.inf, _LARGEST[type(value)])
    if not 0 <= value <= largest:
        raise ValueError(f"its {column} is {str(value)[:20]}, which is not between 0 and {largest:.6g}")


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _damaged(reason: str) -> dict[str, Any]:
    return {"status": "error", "message": f"damaged record: {reason.splitlines()[0] if reason else 'unknown'}"}


def _facts(path: Path) -> dict[str, Any]:
    if not path.is_file():  # a pipe would wait for its writer
        raise OSError(errno.EINVAL, "not a file", str(path))
    with open(path, "rb") as file:
        return {"size": path.stat().st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}
