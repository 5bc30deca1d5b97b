"""Readers for the files of a suite's folder. Damaged content is named and skipped; it never stops the report.

All values that leave this module have been checked: objects are objects, numbers are finite, and text can be encoded
as UTF-8 and embedded in XML.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Collection, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from suite.files import clean
from suite.runs.folder import packed

_MAX_DEPTH = 40  # levels of nesting; records of this suite have seven
_MAX_MAGNITUDE = 1e30  # beyond the FLOPs of any training; sums and squares of such numbers are finite
_MAX_INTEGER = 2**63
_TO_ZERO = bytes.maketrans(b"123456789", b"000000000")
_LONG = b"0" * 19  # digits of an integer that may not fit into 64 bits
_ASCII_CONTROL = bytes(code for code in range(128) if clean(chr(code)) != chr(code))
_NOT_BRACKETS = bytes(set(range(256)) - set(b'[]{}"'))  # and not quotes
_NUMBERS_OF_LAYERS = ("interval", "out_channels")  # the columns of layers.csv that figures are drawn from

LayerRow = Mapping[str, int | float | str | None]


class Damage(ValueError):
    """Description of what is wrong with a file."""


def finite(value: Any) -> float | None:
    """Return a number that is safe to compute with, or `None` for anything else, including booleans."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) and abs(number) <= _MAX_MAGNITUDE else None


def parse(text: str | bytes) -> Any:
    """Parse JSON into plain data with clean text. Integers beyond 64 bits become floats.

    Raises:
        Damage: If the text is not JSON, or is nested more deeply than any record.
    """
    content = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
    try:
        # Folders of 1,000 trials have millions of numbers. Usual documents need no Python code for each of them.
        value = json.loads(text, parse_int=_integer) if _LONG in content.translate(_TO_ZERO) else json.loads(text)
        return value if _is_plain(content) and _is_shallow(content) else _tidy(value, 0)
    except RecursionError as error:
        raise Damage("it is nested too deeply") from error
    except ValueError as error:  # errors of the JSON and UTF-8 decoders
        raise Damage(str(error)) from error


def _integer(text: str) -> int | float:
    if len(text) > 4000:  # Python refuses to parse longer integers
        return math.inf
    number = int(text)
    if abs(number) < _MAX_INTEGER:
        return number
    return float(number) if len(text) < 300 else math.inf


def _is_plain(content: bytes) -> bool:
    """Return whether every text in a JSON document is clean already: it has no escapes and nothing to replace."""
    if b"\\" in content:
        return False
    if content.isascii():
        return len(content.translate(None, _ASCII_CONTROL)) == len(content)
    try:
        text = content.decode("utf-8")
        return clean(text) == text
    except UnicodeDecodeError:
        return False


def _is_shallow(content: bytes) -> bool:
    """Return whether a JSON document without escapes is not nested too deeply, without a walk through its values."""
    with_texts = content.translate(None, _NOT_BRACKETS).replace(b'""', b"")
    brackets = b"".join(with_texts.split(b'"')[::2])
    for _ in range(_MAX_DEPTH):
        brackets = brackets.replace(b"[]", b"").replace(b"{}", b"")  # the innermost level
    return not brackets


def _tidy(value: Any, depth: int) -> Any:
    if depth > _MAX_DEPTH:
        raise Damage("it is nested too deeply")
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, dict):
        return {clean(key): _tidy(inner, depth + 1) for key, inner in value.items()}
    if isinstance(value, list):
        return [_tidy(inner, depth + 1) for inner in value]
    return value


def read_object(path: Path, damage: list[str], objects: tuple[str, ...] = ()) -> Mapping[str, Any]:
    """Read a JSON object; return an empty one if the file is missing or damaged.

    Args:
        path: Path of the file. The compressed form is read if only that exists.
        damage: List to which a line is added for each fault.
        objects: Keys whose values must be objects. A value of another type is dropped and named in `damage`.
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
        damage.append(f"{path.name} is damaged: it is not a JSON object")
        return {}
    return drop_non_objects(value, objects, path.name, damage)


def drop_non_objects(
    value: Mapping[str, Any], objects: tuple[str, ...], where: str, damage: list[str]
) -> Mapping[str, Any]:
    """Return the mapping without the keys of `objects` whose value is not an object; add each to `damage`."""
    wrong = [key for key in objects if value.get(key) is not None and not isinstance(value[key], Mapping)]
    damage.extend(f"{where} is damaged: '{key}' is not a JSON object" for key in wrong)
    return {key: inner for key, inner in value.items() if key not in wrong}


def read_epochs(path: Path, damage: list[str]) -> tuple[Mapping[str, Any], ...]:
    """Read the records of `epochs.jsonl` in order, without damaged ones."""
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
    # Usual numbers need no call of Python code each; not-a-number and infinity are not below the largest magnitude.
    if {int, float}.issuperset(map(type, values)) and sum(map(abs, values)) <= _MAX_MAGNITUDE:
        return True
    return all(finite(value) is not None for value in values)


def _is_number(value: Any) -> bool:
    return finite(value) is not None


def _is_object(value: Any) -> bool:
    return isinstance(value, dict)


def _are_numbers(value: Any) -> bool:
    return isinstance(value, dict) and _are_finite([one for one in value.values() if one is not None])


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


# What the values of an epoch must be, if there are any.
_CHECKS: Mapping[str, Callable[[Any], bool]] = {
    **dict.fromkeys(("batch_size", "steps", "train_time_s"), _is_number),
    **dict.fromkeys(("step_flops", "train_flops"), _are_numbers),
    **dict.fromkeys(("backends", "method"), _is_object),
    "layers": _are_layers,
}


def parse_table(content: bytes) -> list[dict[str, str]]:
    """Parse CSV into one dictionary of text per row. Empty lines are skipped; missing cells are empty.

    Raises:
        Damage: If the content is not UTF-8 or not CSV, or has no header, or if a row has more cells than the header.
    """
    try:
        lines = [line for line in csv.reader(io.StringIO(content.decode("utf-8-sig"), newline=""), strict=True) if line]
    except (csv.Error, ValueError) as error:
        raise Damage(str(error)) from error
    if not lines:
        raise Damage("it is empty")
    header, *rows = lines
    for number, row in enumerate(rows, 1):
        if len(row) > len(header):
            raise Damage(f"row {number} has {len(row)} cells, but the header has {len(header)}")
    if len(set(header)) == len(header) and all(len(row) == len(header) for row in rows):
        return [dict(zip(header, row, strict=True)) for row in rows]
    # If a column occurs twice, the first one counts.
    return [
        {**dict.fromkeys(header, ""), **dict(reversed(list(zip(header, row, strict=False))))}  # type: ignore[call-overload]
        for row in rows
    ]


def read_layers(path: Path, damage: list[str]) -> tuple[LayerRow, ...]:
    """Read the rows of `layers.csv` with numbers as numbers; return none if the file is missing or damaged."""
    content = _content(path, damage)
    if content is None:
        return ()
    try:
        rows = [{name: _cell(text) for name, text in row.items()} for row in parse_table(content)]
        for column in _NUMBERS_OF_LAYERS:
            if any(column in row and finite(row[column]) is None for row in rows):
                raise Damage(f"column {column} has a value that is not a number")
    except Damage as error:
        damage.append(f"{path.name} is damaged: {error}")
        return ()
    return tuple(rows)


@lru_cache(maxsize=100_000)  # tables of trials repeat most of their cells
def _cell(text: str) -> int | float | str | None:
    """Convert the text of a cell to a number if it is one; an empty cell is `None`."""
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


def _content(path: Path, damage: list[str]) -> bytes | None:
    found = packed.held(path)
    if found is None:
        return None
    try:
        return packed.read(found)
    except OSError as error:
        damage.append(f"{found.name} cannot be read: {error.strerror or error}")
        return None
