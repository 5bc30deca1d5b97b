"""Merges what passes measured (`time.json`, `profile.json`): the entries of several folders by group and method."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path

from suite.errors import UsageError, validate
from suite.runs.folder.entries import GroupEntries
from suite.runs.folder.profiles import GroupProfiles, MethodProfile
from suite.runs.folder.times import TIMES, GroupTimes, Interval, MethodTime, StageTime

MEASUREMENTS = "measurements"
"""Key of the provenance of a combined entry: the list of all entries that it was made from."""


def combine_times(groups: Sequence[tuple[Path, Sequence[GroupTimes]]]) -> tuple[list[GroupTimes], list[str]]:
    """Return the times of all folders, and a line for each method that was measured in several of them.

    Several measurements of a method become one entry: the geometric mean of their ratios, weighted by the pairs of
    steps, with an interval that covers all intervals. If they disagree, the interval is wide. All are kept unchanged in
    the entry's provenance. A measurement that several folders have, since one is a copy of another or was merged from
    it, counts once.

    Raises:
        UsageError: A method was measured with other stages or threads in another folder.
    """
    merged: dict[tuple[tuple[str, str], ...], dict[str, list[tuple[Path, MethodTime]]]] = {}
    for folder, several in groups:
        for group in several:
            methods = merged.setdefault(tuple(sorted(group.key.items())), {})
            for label, time in group.methods.items():
                methods.setdefault(label, []).append((folder, time))
    notes = []
    found = []
    for key, methods in merged.items():
        combined = {label: _combined(label, entries) for label, entries in methods.items()}
        found.append(GroupEntries[MethodTime](key=dict(key), methods=combined))
        for label, entries in methods.items():
            total = combined[label]
            if any(time != total for _, time in entries):
                places = " and ".join(f"{folder} ({time.ratio:.3f})" for folder, time in entries)
                notes.append(
                    f"time.json: {label} was measured in {places}; all are kept, and together they give "
                    f"{total.ratio:.3f} [{total.low:.3f}, {total.high:.3f}]"
                )
    return found, notes


def latest_profiles(
    groups: Sequence[tuple[Path, Sequence[GroupProfiles]]],
) -> tuple[list[GroupProfiles], list[str]]:
    """Return the profiles of all folders, and a line for each method that was profiled in several of them.

    The later profile of a method is kept, as a later profile pass in one folder replaces an earlier one.
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


def _combined(label: str, entries: Sequence[tuple[Path, MethodTime]]) -> MethodTime:
    """Return one entry for all measurements of a method."""
    known: list[tuple[Path, MethodTime]] = []  # each measurement once
    for folder, entry in entries:
        for one in _measurements(folder, label, entry):
            if all(one != other for _, other in known):
                known.append((folder, one))
    (first, mine), *others = known
    for folder, theirs in others:
        for what, facts in (
            (
                "stages",
                [
                    (
                        [(stage.epoch, stage.steps, stage.image_size) for stage in one.stages],
                        [(size.image_size, size.steps) for size in one.dense_sizes],
                        one.dense_steps,
                    )
                    for one in (mine, theirs)
                ],
            ),
            ("threads", [one.threads for one in (mine, theirs)]),
        ):
            if facts[0] != facts[1]:
                raise UsageError(
                    f"merge: {label} was measured with other {what} in {first / TIMES.name} and {folder / TIMES.name}; "
                    "remove one of the two files, or merge and measure again"
                )
    if not others:
        return entries[0][1]
    times = [one for _, one in known]
    counts = [one.pairs for one in times]
    stages = [
        StageTime(
            epoch=same[0].epoch,
            steps=same[0].steps,
            pairs=sum(stage.pairs for stage in same),
            image_size=same[0].image_size,
            **_pooled(same, [stage.pairs for stage in same]),
        )
        for same in zip(*(one.stages for one in times), strict=True)
    ]

    def mean(values: Iterable[float]) -> float:
        return sum(value * count for value, count in zip(values, counts, strict=True)) / sum(counts)

    return mine.model_copy(
        update={
            **_pooled(times, counts),
            "pairs": sum(counts),
            "stages": tuple(stages),
            "dense_sizes": tuple(
                same[0].model_copy(update={"step": mean(size.step for size in same)})
                for same in zip(*(one.dense_sizes for one in times), strict=True)
            ),
            "reconfiguration": mean(one.reconfiguration for one in times),
            "dense_twice": Interval(**_pooled([one.dense_twice for one in times], counts)),
            "load": max(one.load for one in times),
            "provenance": {**mine.provenance, MEASUREMENTS: [one.model_dump(mode="json") for one in times]},
        }
    )


def _measurements(folder: Path, label: str, entry: MethodTime) -> list[MethodTime]:
    """Return the measurements that an entry was made from: those that `merge` stored, or the entry itself.

    Raises:
        UsageError: The stored measurements are damaged.
    """
    stored = entry.provenance.get(MEASUREMENTS)
    if stored is None:
        return [entry]
    where = f"{folder / TIMES.name} is damaged: {label}: provenance.{MEASUREMENTS}"
    if not isinstance(stored, list) or not stored:
        raise UsageError(f"{where} is not a list of measurements")
    return [validate(MethodTime, one, where) for one in stored]


def _pooled(intervals: Sequence[Interval], weights: Sequence[int]) -> dict[str, float]:
    """Return the weighted geometric mean of ratios, and an interval that covers all of theirs."""
    logarithms = [weight * math.log(one.ratio) for one, weight in zip(intervals, weights, strict=True)]
    return {
        "ratio": math.exp(math.fsum(logarithms) / sum(weights)),
        "low": min(one.low for one in intervals),
        "high": max(one.high for one in intervals),
    }
