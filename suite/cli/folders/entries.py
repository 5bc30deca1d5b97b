"""Merge what passes measured (`time.json`, `profile.json`): the entries of several folders by group and method."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from suite.errors import UsageError
from suite.trials.folder.entries import GroupEntries
from suite.trials.folder.profiles import GroupProfiles, MethodProfile
from suite.trials.folder.times import TIMES, GroupTimes, MethodTime, PassTime


def combine_times(groups: Sequence[tuple[Path, Sequence[GroupTimes]]]) -> tuple[list[GroupTimes], list[str]]:
    """Return the times of all folders, and a line for each method that was measured in several of them.

    A method gets the passes of all folders. A pass counts once if several folders have it, which happens if one folder
    is a copy of another or was merged from it.

    Raises:
        UsageError: Methods of a group were measured with different numbers of threads.
    """
    merged: dict[tuple[tuple[str, str], ...], dict[str, list[tuple[Path, MethodTime]]]] = {}
    for folder, several in groups:
        for group in several:
            methods = merged.setdefault(tuple(sorted(group.key.items())), {})
            for label, time in group.methods.items():
                methods.setdefault(label, []).append((folder, time))
    notes = []
    combined_groups = []
    for key, methods in merged.items():
        _refuse_several_threads([one for entries in methods.values() for one in entries])
        combined = {label: _combined(entries) for label, entries in methods.items()}
        combined_groups.append(GroupEntries[MethodTime](key=dict(key), methods=combined))
        for label, entries in methods.items():
            total = combined[label]
            if any(time != total for _, time in entries):
                places = " and ".join(f"{folder} ({time.ratio:.3f})" for folder, time in entries)
                notes.append(
                    f"time.json: {label} was measured in {places}; its {len(total.passes)} passes together give "
                    f"{total.ratio:.3f}"
                )
    return combined_groups, notes


def latest_profiles(
    groups: Sequence[tuple[Path, Sequence[GroupProfiles]]],
) -> tuple[list[GroupProfiles], list[str]]:
    """Return the profiles of all folders, and a line for each method that was profiled in several of them.

    The later profile of a method counts, because a later profile pass in one folder also replaces an earlier one.
    """
    merged: dict[tuple[tuple[str, str], ...], dict[str, tuple[Path, MethodProfile]]] = {}
    notes = []
    for folder, several in groups:
        for group in several:
            methods = merged.setdefault(tuple(sorted(group.key.items())), {})
            for label, profile in group.methods.items():
                other, known = methods.setdefault(label, (folder, profile))
                if known == profile:
                    continue
                later = max((other, known), (folder, profile), key=_when)
                methods[label] = later
                notes.append(f"profile.json: {label} was profiled in {other} and {folder}; that of {later[0]} is later")
    found = [
        GroupEntries[MethodProfile](key=dict(key), methods={label: one for label, (_, one) in methods.items()})
        for key, methods in merged.items()
    ]
    return found, notes


def _when(entry: tuple[Path, MethodProfile]) -> str:
    return str(entry[1].provenance.get("time_utc", ""))


def _refuse_several_threads(entries: Sequence[tuple[Path, MethodTime]]) -> None:
    (first, mine), *others = entries
    for folder, entry in others:
        if entry.threads != mine.threads:
            raise UsageError(
                f"merge: times were measured with {mine.threads} threads in {first / TIMES.name} and with "
                f"{entry.threads} in {folder / TIMES.name}; remove one of the two files, or merge and measure again"
            )


def _combined(entries: Sequence[tuple[Path, MethodTime]]) -> MethodTime:
    """Return one entry with all passes of a method."""
    known: list[PassTime] = []
    for _, entry in entries:
        known += [timed for timed in entry.passes if timed not in known]
    return MethodTime(passes=tuple(known))
