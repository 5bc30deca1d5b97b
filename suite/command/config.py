"""The TOML file of `--config`, and readers of options with one value."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from suite.errors import UsageError, nearest
from suite.files import read_bytes

MAX_JOBS = 1000


def read_config(path: Path, names: Sequence[str], lists: Sequence[str]) -> dict[str, Any]:
    """Return the options in a TOML file in the form of the command line: text, or lists of text for `plugin` and `set`.

    Keys may be written with `-` or `_`. Relative paths start at the working folder, as on the command line.

    Args:
        path: Path of the file.
        names: Options with one value.
        lists: Those of `names` that may be arrays.

    Raises:
        UsageError: The file cannot be read, a key is not an option, or a value has the wrong type.
    """
    try:
        content = tomllib.loads(read_bytes(path, "--config").decode())
    except ValueError as error:
        raise UsageError(f"--config {path}: {error}") from error
    except RecursionError:
        raise UsageError(f"--config {path}: the content is nested too deeply") from None
    known = (*names, "plugin", "set")
    found: dict[str, Any] = {}
    for key, value in content.items():
        name, where = key.replace("_", "-"), f"--config {path}: {key}"
        if name not in known:
            raise UsageError(f"--config {path}: no option is called '{key}'{nearest(name, known)}")
        if name in found:
            raise UsageError(f"{where} is given twice")
        if name == "set":
            found[name] = list(_assignments(value, where))
        elif name == "plugin":
            found[name] = [_text(item, where) for item in (value if isinstance(value, list) else [value])]
        elif name in lists and isinstance(value, list):
            # An array with one seed is a list of seeds, not a count.
            found[name] = ",".join(_text(item, where) for item in value) + ("," if name == "seeds" else "")
        else:
            found[name] = _text(value, where)
    return found


def _assignments(value: Any, where: str, prefix: str = "") -> list[str]:
    """Return `{recipe = {epochs = 3}}` as `["recipe.epochs=3"]`."""
    if not isinstance(value, dict) or prefix.count(".") > 1:
        raise UsageError(f"{where} must be a table of one table: [set.recipe]")
    found = []
    for key, item in value.items():
        if isinstance(item, dict):
            found += _assignments(item, where, f"{prefix}{key}.")
        elif isinstance(item, list):
            found.append(f"{prefix}{key}=({','.join(_text(part, where) for part in item)})")
        else:
            found.append(f"{prefix}{key}={_text(item, where)}")
    return found


def _text(value: Any, where: str) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (str, int, float)):
        return str(value)
    raise UsageError(f"{where} is {value!r}; allowed: text or a number")


def read_count(option: str, text: str) -> int:
    """Read an integer from 1 to `MAX_JOBS`.

    Raises:
        UsageError: The text is something else.
    """
    # Check the length first: Python refuses to convert more than 4,300 digits.
    if not text.isdecimal() or len(text) > 9 or not 1 <= int(text) <= MAX_JOBS:
        raise UsageError(f"--{option} '{text}': expected an integer from 1 to {MAX_JOBS}")
    return int(text)


def read_flag(option: str, text: str) -> bool:
    """Read `true` or `false`.

    Raises:
        UsageError: The text is something else.
    """
    if text not in ("true", "false"):
        raise UsageError(f"--{option} '{text}': expected true or false")
    return text == "true"


def read_number(option: str, text: str, unit: str) -> float:
    """Read a positive, finite number.

    Raises:
        UsageError: The text is something else.
    """
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not (math.isfinite(number) and number > 0):
        raise UsageError(f"--{option} '{text}': expected a positive number of {unit}")
    return number
