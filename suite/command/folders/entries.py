"""Merges what passes measured (`time.json`, `profile.json`): the entries of several folders by group and method."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from suite.errors import UsageError
from suite.runs.folder.entries import GroupEntries
from suite.runs.folder.profiles import GroupProfiles, MethodProfile
from suite.runs.folder.times import GroupTimes, Interval, MethodTime, StageTime

MEASUREMENTS = "measurements"
"""Key of the provenance of a combined entry: the list of all entries that it was made from."""


def combine_times(groups: Sequence[tuple[Path, Sequence[GroupTimes]]]) -> tuple[list[GroupTimes], list[str]]:
    """Return the times of all folders, and a line for each method that was measured in several of them.

    Two measurements of a method become one entry: the geometric mean of their ratios, weighted by the pairs of steps,
    with an interval that covers both intervals. If they disagree, the interval is wide. Both are kept unchanged in the
    entry's provenance.

    Raises:
        UsageError: A method was measured with other stages in another folder.
    """
    merged: dict[tuple[tuple[str, str], ...], dict[str, tuple[Path, MethodTime]]] = {}
    notes = []
    for folder, several in groups:
        for group in several:
            methods = merged.setdefault(tuple(sorted(group.key.items())), {})
            for label, time in group.methods.items():
                if label not in methods:
                    methods[label] = (folder, time)
                    continue
                other, known = methods[label]
                if known == time:
                    continue
                combined = _combined(label, (other, known), (folder, time))
                methods[label] = (other, combined)
                notes.append(
                    f"time.json: {label} was measured in {other} ({known.ratio:.3f}) and {folder} ({time.ratio:.3f}); "
                    f"both are kept, and together they give {combined.ratio:.3f} "
                    f"[{combined.low:.3f}, {combined.high:.3f}]"
                )
    found = [
        GroupEntries[MethodTime](key=dict(key), methods={label: time for label, (_, time) in methods.items()})
        for key, methods in merged.items()
    ]
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


def _combined(label: str, one: tuple[Path, MethodTime], other: tuple[Path, MethodTime]) -> MethodTime:
    (first, mine), (second, theirs) = one, other
    stages = [[(stage.epoch, stage.steps) for stage in time.stages] for time in (mine, theirs)]
    if stages[0] != stages[1] or mine.dense_steps != theirs.dense_steps:
        raise UsageError(
            f"merge: {label} was measured with other stages in {first / 'time.json'} and {second / 'time.json'}; "
            "remove one of the two files, or merge and measure again"
        )
    counts = (mine.pairs, theirs.pairs)
    known = [list(time.provenance.get(MEASUREMENTS) or [time.model_dump(mode="json")]) for time in (mine, theirs)]
    return mine.model_copy(
        update={
            **_pooled((mine, theirs), counts),
            "pairs": sum(counts),
            "stages": tuple(
                StageTime(epoch=a.epoch, steps=a.steps, pairs=a.pairs + b.pairs, **_pooled((a, b), (a.pairs, b.pairs)))
                for a, b in zip(mine.stages, theirs.stages, strict=True)
            ),
            "reconfiguration": (mine.reconfiguration * counts[0] + theirs.reconfiguration * counts[1]) / sum(counts),
            "dense_twice": Interval(**_pooled((mine.dense_twice, theirs.dense_twice), counts)),
            "load": max(mine.load, theirs.load),
            "provenance": {**mine.provenance, MEASUREMENTS: [*known[0], *known[1]]},
        }
    )


def _pooled(intervals: Sequence[Interval], weights: Sequence[int]) -> dict[str, float]:
    """Return the weighted geometric mean of ratios, and an interval that covers all of theirs."""
    logarithms = [weight * math.log(one.ratio) for one, weight in zip(intervals, weights, strict=True)]
    return {
        "ratio": math.exp(math.fsum(logarithms) / sum(weights)),
        "low": min(one.low for one in intervals),
        "high": max(one.high for one in intervals),
    }
