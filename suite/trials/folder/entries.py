"""Files in a suite's folder from a pass over finished trials, with one entry for each method of each group.

    {"version": 1, "groups": [{"key": {name: text}, "methods": {label: {...}}}]}

`key` has the names and texts of `suite.trials.groups.KEY`; `label` is the method with its parameters.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict

from suite import files
from suite.errors import UsageError, validate

LARGEST = 64 * 2**20  # bytes


class Strict(BaseModel):
    """Base of what the files contain. It refuses unknown keys, and its values do not change."""

    model_config = ConfigDict(extra="forbid", frozen=True)


Entry = TypeVar("Entry", bound=Strict)


class GroupEntries(Strict, Generic[Entry]):
    """Entries of one group of comparable trials.

    Attributes:
        key: Text of each part of the group's key.
        methods: Entries by method with its parameters.
    """

    key: dict[str, str]
    methods: dict[str, Entry]


class Content(Strict, Generic[Entry]):
    """The whole file."""

    version: Literal[1]
    groups: list[GroupEntries[Entry]]


@dataclass(frozen=True)
class EntryFile(Generic[Entry]):
    """One such file.

    Attributes:
        name: Name of the file in the folder of a suite.
        verb: The verb that writes it.
        content: The file's schema.
    """

    name: str
    verb: str
    content: type[Content[Entry]]

    def read(self, folder: Path) -> list[GroupEntries[Entry]]:
        """Return the entries in a suite's folder; empty if there is no such file.

        Raises:
            UsageError: The file is damaged; one line.
        """
        path = folder / self.name
        if not path.exists():
            return []
        try:
            data = files.read_json(files.read_bytes(path, self.name.partition(".")[0], LARGEST))
            groups: list[GroupEntries[Entry]] = validate(self.content, data, "").groups
            if len({tuple(sorted(group.key.items())) for group in groups}) < len(groups):
                raise ValueError("a group occurs twice")
        except (UsageError, ValueError) as error:
            raise UsageError(
                f"{path} is damaged: {str(error).removeprefix(': ')}; delete it, and measure again: "
                f"python run_suite.py {self.verb} {folder}"
            ) from error
        return groups

    def add(self, folder: Path, key: Mapping[str, str], label: str, entry: Entry) -> None:
        """Write the entry of a method of one group, atomically; all other entries stay.

        Raises:
            UsageError: The existing file is damaged.
            OSError: The file cannot be written.
        """
        groups = self.read(folder)
        if all(group.key != key for group in groups):
            groups.append(GroupEntries(key=dict(key), methods={}))
        changed = [
            group.model_copy(update={"methods": {**group.methods, label: entry}}) if group.key == key else group
            for group in groups
        ]
        self.write(folder, changed)

    def write(self, folder: Path, groups: Sequence[GroupEntries[Entry]]) -> None:
        """Replace the file by these groups, atomically.

        Raises:
            OSError: The file cannot be written.
        """
        content = {"version": 1, "groups": [group.model_dump(mode="json") for group in groups]}
        files.write(folder / self.name, json.dumps(content, indent=2, allow_nan=False, ensure_ascii=False) + "\n")
