"""The folders that `merge` reads: their trials and commands."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from suite import files
from suite.errors import UsageError, in_words
from suite.trials.folder import packed
from suite.trials.folder.records import TrialRecord, read_record
from suite.trials.folder.store import Store, read_suite

IN_USE = "in use by another command; try again when it has ended"
FILES = ("epochs.jsonl", "layers.csv")


@dataclass(frozen=True)
class Trial:
    """One trial of one folder.

    Attributes:
        source: The suite's folder.
        folder: The trial's folder.
        record: Its record; `None` if that is damaged.
        state: Its status, or why its record or a file is damaged.
        size: Number of its files.
    """

    source: Path
    folder: Path
    record: TrialRecord | None
    state: str
    size: int

    @property
    def done(self) -> bool:
        """Whether the trial is done, and no file of it is missing or was cut off."""
        return self.state == "done"

    @property
    def plain(self) -> dict[str, Any]:
        """The content of the record with `~` for the home folder in the path of the data set; empty if damaged."""
        return self.record.without_home().to_json() if self.record else {}

    def difference(self, other: Trial) -> str:
        """Return in what two finished trials differ; empty if they are equal.

        The path of the data set may differ: an export has `~` in place of the home folder.
        """
        mine, theirs = self.plain, other.plain
        if differing := [name for name in mine if mine[name] != theirs[name]]:
            return f"'{differing[0]}' of their trial.json differs"
        for name in FILES:
            paths = [packed.held(folder / name) for folder in (self.folder, other.folder)]
            try:
                contents = {packed.read(path) for path in paths if path is not None}
            except OSError as error:
                return f"their {name} cannot be compared: {in_words(error)}"
            if len(contents) > 1:
                return f"their {name} differs"
        return ""


@dataclass(frozen=True)
class Source:
    """A folder to merge.

    Attributes:
        folder: The suite's folder.
        suite: Content of its `suite.json`.
        trials: Its trials by id.
        fingerprint: `Store.fingerprint` before anything was read.
    """

    folder: Path
    suite: Mapping[str, Any]
    trials: Mapping[str, Trial]
    fingerprint: tuple[Any, ...]

    @classmethod
    def read(cls, folder: Path) -> Source:
        """Read a folder.

        Raises:
            UsageError: It is not the folder of a suite, is in use, has no trials, or `suite.json` cannot be read.
        """
        path, store = folder / "suite.json", Store(folder)
        if not path.is_file():
            raise UsageError(f"merge {folder}: not the folder of a suite: it has no suite.json")
        if store.is_locked():
            raise UsageError(f"merge {folder}: {IN_USE}")
        fingerprint = store.fingerprint()
        suite = read_suite(path)
        trials = {}
        for place in store.trial_folders():
            if packed.held(place / "trial.json"):
                status, reason = store.state(place.name)
                size = sum(path.is_file() for path in place.rglob("*"))
                state = f"damaged ({reason})" if reason else status
                trials[place.name] = Trial(folder, place, read_record(place), state, size)
        if not trials:
            raise UsageError(f"merge {folder}: no results: no trials/*/trial.json exists")
        return cls(folder, suite, trials, fingerprint)

    def check_unchanged(self) -> None:
        """Check that the folder still holds what was read and copied.

        Raises:
            UsageError: A command has changed the folder meanwhile.
        """
        if Store(self.folder).fingerprint() != self.fingerprint:
            raise UsageError(f"merge {self.folder}: {IN_USE}")


def combine_commands(sources: Sequence[Source]) -> str:
    """Return the `suite.json` of a merged folder: the commands of all folders by time, each once and with its folder.

    The first fields of the file are those of the latest command, as in any folder.
    """
    entries: list[tuple[str, dict[str, Any]]] = []
    known: list[Mapping[str, Any]] = []  # without the folder that an earlier merge added
    for source in sources:
        latest = ""
        for command in source.suite["commands"]:
            latest = max(latest, str(command.get("time_utc", "")))  # commands of a folder keep their order
            plain = {name: value for name, value in command.items() if name != "folder"}
            if plain not in known:  # copied and merged folders have the same commands
                known.append(plain)
                entries.append((latest, {"folder": files.without_home(str(source.folder)), **command}))
    entries.sort(key=lambda entry: entry[0])
    last = max(
        sources, key=lambda source: max((str(one.get("time_utc", "")) for one in source.suite["commands"]), default="")
    )
    first = {name: value for name, value in last.suite.items() if name != "commands"}
    content = {**first, "commands": [command for _, command in entries]}
    return json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
