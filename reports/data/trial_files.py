"""The files of a suite's folder, each read for itself: what is damaged is named and left out, never a reason to stop.

What the rest of the report reads has been checked here: objects are objects, numbers are finite, text can be written as
UTF-8 and put into XML.
"""

from __future__ import annotations

import io
import json
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from suite.runs.folder import packed

_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ufffe\uffff\ud800-\udfff]")
_DEEPEST = 40  # levels of nesting; ours have seven
_LARGEST = 1e30  # past the FLOPs of any training: sums and squares of such numbers are finite
_LARGEST_INTEGER = 2**63
_NUMBERS_OF_LAYERS = ("interval", "out_channels")  # the columns of layers.csv that figures are drawn from


class Damage(ValueError):
    """What is wrong with a file, in words."""


def clean(text: str) -> str:
    """Text that may stand in XML: control characters become U+FFFD."""
    return _CONTROL.sub("\ufffd", text)


def finite(value: Any) -> float | None:
    """A number that can be computed with; `None` for anything else, a truth value included."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) and abs(number) <= _LARGEST else None


def parse(text: str | bytes) -> Any:
    """JSON as plain data whose text is clean; integers beyond 64 bits become floats.

    Raises:
        Damage: if it is no JSON, or nested deeper than any record.
    """
    try:
        return _tidy(json.loads(text, parse_int=_integer), 0)
    except RecursionError as error:
        raise Damage("it is nested too deeply") from error
    except ValueError as error:  # JSON's and UTF-8's own
        raise Damage(str(error)) from error


def _integer(text: str) -> int | float:
    if len(text) > 4000:  # Python refuses to read longer ones
        return math.inf
    number = int(text)
    if abs(number) < _LARGEST_INTEGER:
        return number
    return float(number) if len(text) < 300 else math.inf


def _tidy(value: Any, depth: int) -> Any:
    if depth > _DEEPEST:
        raise Damage("it is nested too deeply")
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, dict):
        return {clean(key): _tidy(inner, depth + 1) for key, inner in value.items()}
    if isinstance(value, list):
        return [_tidy(inner, depth + 1) for inner in value]
    return value


def read_object(path: Path, damage: list[str], objects: tuple[str, ...] = ()) -> Mapping[str, Any]:
    """A JSON object; empty where there is no such file, or a damaged one.

    Args:
        path: of the file; its compressed form will do.
        damage: takes a line for what is wrong.
        objects: keys whose values are objects where they are there; one that is not is left out and named.
    """
    content = _content(path, damage)
    if content is None:
        return {}
    try:
        value = parse(content)
    except Damage as error:
        damage.append(f"{path.name} is damaged: {error}")
        return {}
    if not isinstance(value, dict):
        damage.append(f"{path.name} is damaged: it holds no JSON object")
        return {}
    return without_others(value, objects, path.name, damage)


def without_others(
    value: Mapping[str, Any], objects: tuple[str, ...], where: str, damage: list[str]
) -> Mapping[str, Any]:
    """The mapping without those of `objects` that are none, each named in `damage`."""
    wrong = [key for key in objects if value.get(key) is not None and not isinstance(value[key], Mapping)]
    damage.extend(f"{where} is damaged: '{key}' is no JSON object" for key in wrong)
    return {key: inner for key, inner in value.items() if key not in wrong}


def read_epochs(path: Path, damage: list[str]) -> tuple[Mapping[str, Any], ...]:
    """The records of `epochs.jsonl` in order, without those that are damaged."""
    content = _content(path, damage)
    records: list[Mapping[str, Any]] = []
    for number, line in enumerate((content or b"").splitlines(), 1):
        if not line.strip():
            continue
        try:
            record = parse(line)
        except Damage as error:
            damage.append(f"{path.name}, line {number} is damaged: {error}")
            continue
        if wrong := _fault(record, records[-1]["epoch"] if records else 0):
            damage.append(f"{path.name}, line {number} is no record of an epoch: {wrong}")
        else:
            records.append(record)
    return tuple(records)


def _fault(record: Any, last: int) -> str:
    """What is wrong with a record of an epoch, where another part of the report would stumble over it."""
    if not isinstance(record, dict):
        return "it is no JSON object"
    epoch = record.get("epoch")
    if isinstance(epoch, bool) or not isinstance(epoch, int) or not 0 < epoch < 10**9:
        return "it has no number of an epoch"
    if epoch <= last:
        return f"epoch {epoch} follows epoch {last}"
    checks: dict[str, Callable[[Any], bool]] = {
        **dict.fromkeys(("batch_size", "steps", "train_time_s"), lambda value: finite(value) is not None),
        **dict.fromkeys(("step_flops", "train_flops"), _are_numbers),
        **dict.fromkeys(("backends", "method"), lambda value: isinstance(value, dict)),
        "layers": lambda value: isinstance(value, dict) and all(map(_is_layer, value.values())),
    }
    wrong = [name for name, is_sound in checks.items() if record.get(name) is not None and not is_sound(record[name])]
    return f"'{wrong[0]}' is of another kind" if wrong else ""


def _are_numbers(value: Any) -> bool:
    return isinstance(value, dict) and all(finite(one) is not None for one in value.values() if one is not None)


def _is_layer(value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    numbers = [value[name] for name in ("in", "out", "weight_density") if value.get(name) is not None]
    densities = value.get("density", [])
    return isinstance(densities, list) and all(finite(one) is not None for one in (*numbers, *densities))


def read_layers(path: Path, damage: list[str]) -> pd.DataFrame:
    """The rows of `layers.csv`; no rows where that file is missing or damaged."""
    content = _content(path, damage)
    if content is None:
        return pd.DataFrame()
    try:
        frame = pd.read_csv(io.BytesIO(content))
        for column in frame.columns.intersection(list(_NUMBERS_OF_LAYERS)):
            if not (pd.to_numeric(frame[column]).abs() <= _LARGEST).all():
                raise Damage(f"{column} has something that is no number")
    except (pd.errors.ParserError, pd.errors.EmptyDataError, ValueError, TypeError, OverflowError) as error:
        damage.append(f"{path.name} is damaged: {error}")
        return pd.DataFrame()
    return frame


def _content(path: Path, damage: list[str]) -> bytes | None:
    found = packed.held(path)
    if found is None:
        return None
    try:
        return packed.read(found)
    except OSError as error:
        damage.append(f"{found.name} cannot be read: {error.strerror or error}")
        return None
