"""Results of a run in a JSON file that is complete after each of them, so that an interrupted run loses none.

The same command continues with the first result that the file lacks.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any


class OtherRunError(Exception):
    """The file holds results that must not be mixed with those of this run; the message is one line."""


class PartialResults(dict[str, Any]):
    """Results by name, written to the file whenever one is added; `part` returns a nested dictionary."""

    def __init__(self, write: Callable[[], object]) -> None:
        super().__init__()
        self._write = write

    def __setitem__(self, name: str, value: Any) -> None:
        super().__setitem__(name, value)
        self._write()

    def part(self, name: str) -> PartialResults:
        """Return the results under a name; empty if there are none yet."""
        inner = PartialResults(self._write)
        dict.update(inner, self.get(name, {}))
        dict.__setitem__(self, name, inner)
        return inner


def kept(path: Path | None, facts: Mapping[str, Any], key: str) -> PartialResults:
    """Load the results that a file already holds of this run; added results are written to the file.

    Args:
        path: Path of the file; `None` keeps the results only in memory.
        facts: Facts about the run, which are written to the file and compared with those in it.
        key: Key of the results in the file.

    Raises:
        OtherRunError: If the file holds another run or has another format.
    """
    found = PartialResults(lambda: path and write(path, {**facts, key: found}))
    if path is not None and path.exists():
        before = read(path, key)
        numbers = before.pop(key)
        compare(path, before, facts)
        dict.update(found, numbers)
    return found


def read(path: Path, key: str) -> dict[str, Any]:
    """Return the content of a file with results under the key.

    Raises:
        OtherRunError: If the file has another format.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise OtherRunError(f"{path} cannot be continued: {error}; name another file") from error
    if not isinstance(content, dict) or not isinstance(content.get(key), dict | list):
        raise OtherRunError(f"{path} cannot be continued: it has no '{key}'; name another file")
    return content


def compare(path: Path, before: Mapping[str, Any], facts: Mapping[str, Any]) -> None:
    """Check that a file holds this run.

    Raises:
        OtherRunError: If a fact differs; the message names the first.
    """
    for name in sorted({*before, *facts}):
        if before.get(name) != facts.get(name):
            raise OtherRunError(
                f"{path} holds numbers of another run ({name}: {before.get(name)!r}, now {facts.get(name)!r}); "
                "name another file"
            )


def write(path: Path, content: Any) -> None:
    """Replace a JSON file."""
    made = path.with_name(f".{path.name}.part")
    with made.open("w", encoding="utf-8") as file:
        file.write(json.dumps(content, indent=2) + "\n")
        file.flush()
        os.fsync(file.fileno())
    made.replace(path)
