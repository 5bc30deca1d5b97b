"""Writes what the time pass measured into `time.json` (`suite.runs.folder.times`)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from suite.runs.folder.records import write_json
from suite.runs.folder.times import NAME, GroupTimes, MethodTime, TimesFile, read_times


def add_time(folder: Path, key: Mapping[str, str], label: str, time: MethodTime) -> None:
    """Write the time of a method of one group into `time.json`, atomically; all other entries stay.

    Raises:
        UsageError: The existing file is damaged.
        OSError: The file cannot be written.
    """
    groups = read_times(folder)
    if all(group.key != key for group in groups):
        groups.append(GroupTimes(key=dict(key), methods={}))
    changed = [
        group.model_copy(update={"methods": {**group.methods, label: time}}) if group.key == key else group
        for group in groups
    ]
    write_json(folder / NAME, TimesFile(version=1, groups=changed).model_dump(mode="json"))
