"""Numbers of a run in a JSON file that is whole after each of them, so that a run which is cut off loses none.

The same command goes on with the first number that the file lacks. Where PDT_RESULTS and PDT_ARCHIVE are set, as
`on_gpu.sh` does, the folder that the first names is packed into the file that the second names at the same time.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.evidence.pack import pack


class OtherRunError(Exception):
    """The file holds numbers that must not be put together with those of this run; the message is one line."""


class Kept(dict[str, Any]):
    """Numbers by name, written whenever one is added; `part` gives some of them a dictionary of their own."""

    def __init__(self, write: Callable[[], object]) -> None:
        super().__init__()
        self._write = write

    def __setitem__(self, name: str, value: Any) -> None:
        super().__setitem__(name, value)
        self._write()

    def part(self, name: str) -> Kept:
        """The numbers kept under a name of their own; none, if there are none yet."""
        inner = Kept(self._write)
        dict.update(inner, self.get(name, {}))
        dict.__setitem__(self, name, inner)
        return inner


def kept(path: Path | None, facts: Mapping[str, Any], key: str) -> Kept:
    """What a file holds of this run already; what is added to it goes into the file.

    Args:
        path: of the file; `None` keeps the numbers in memory alone.
        facts: what numbers of one run have in common: written before them, and compared with those of the file.
        key: under which the numbers are in the file.

    Raises:
        OtherRunError: if the file is of another run, or is no such file.
    """
    found = Kept(lambda: path and write(path, {**facts, key: found}))
    if path is not None and path.exists():
        before = read(path, key)
        numbers = before.pop(key)
        compare(path, before, facts)
        dict.update(found, numbers)
    return found


def read(path: Path, key: str) -> dict[str, Any]:
    """The content of a file, which has numbers under the key.

    Raises:
        OtherRunError: if it is no such file.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise OtherRunError(f"{path} cannot be gone on with: {error}; name another file") from error
    if not isinstance(content, dict) or not isinstance(content.get(key), dict | list):
        raise OtherRunError(f"{path} cannot be gone on with: it has no '{key}'; name another file")
    return content


def compare(path: Path, before: Mapping[str, Any], facts: Mapping[str, Any]) -> None:
    """See that a file is of this run.

    Raises:
        OtherRunError: with the first fact that differs.
    """
    for name in sorted({*before, *facts}):
        if before.get(name) != facts.get(name):
            raise OtherRunError(
                f"{path} holds numbers of another run ({name}: {before.get(name)!r}, now {facts.get(name)!r}); "
                "name another file"
            )


def write(path: Path, content: Any) -> None:
    """Replace a JSON file, and the archive of all results where there is one."""
    made = path.with_name(f".{path.name}.part")
    with made.open("w", encoding="utf-8") as file:
        file.write(json.dumps(content, indent=2) + "\n")
        file.flush()
        os.fsync(file.fileno())
    made.replace(path)
    results, archive = os.environ.get("PDT_RESULTS"), os.environ.get("PDT_ARCHIVE")
    if results and archive:
        pack(Path(results), Path(archive))
