"""Compare two folders of trials, for example before and after a change of the code, the machine or a version."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reports import formatting
from reports.content.model import Cell, Column, Table, quantity_cell
from reports.content.provenance import flatten
from reports.data.estimates import Estimate, Missing, Quantity, paired
from reports.data.method_rows import by_seed, not_measured
from reports.data.records import DISTURBED_RATIO, Records, is_disturbed
from reports.render import markdown
from suite import files
from suite.trials.folder.records import TrialRecord
from suite.trials.groups import MACHINE, column_text, label, recipe, seed_of

SAME = ("task", "model", "preset", "epochs")
"""What compared trials have in common, besides the method with its parameters and the seed.

A folder may have trials with several recipes, data types or data copies. Then those count that have the settings of the
other folder.
"""
_SETTINGS = ("recipe", "parameters", "data_copy", "method_version", "device", "dtype", "arithmetic", "processes")
_PROVENANCE = ("hardware_id", "hardware", "software", "settings", "git", "kernels")
_NOT_SETTINGS = ("data_copy.path", "data_copy.note")


@dataclass(frozen=True)
class Difference:
    """One method on one task and model, in the second folder relative to the first.

    Attributes:
        names: Values of the columns in `SAME`.
        label: Method with its parameters.
        settings: Settings in which these trials differ from others of the method; empty if there are none.
        seeds: Seeds that are done in the first folder, in the second, and in both.
        accuracy: Test accuracy in the second minus that in the first, paired by seed, as a fraction.
        time: Training time in the second folder over that in the first, paired by seed.
        executed: Executed training FLOPs over those in the first folder.
        effective: Effective training FLOPs over those in the first folder.
        comparable: Whether both ran on the same hardware, with the same threads and version of torch.
        disturbed: Whether one of the times was disturbed.
        changes: Settings and provenance that differ, with the values in both folders.
    """

    names: tuple[str, ...]
    label: str
    settings: str
    seeds: tuple[int, int, int]
    accuracy: Quantity
    time: Quantity
    executed: Quantity
    effective: Quantity
    comparable: bool
    disturbed: bool
    changes: Mapping[str, tuple[str, str]]


@dataclass(frozen=True)
class Comparison:
    """Two folders.

    Attributes:
        differences: The methods that both folders have.
        only: Trials that only the first folder has, and those that only the second has.
    """

    differences: tuple[Difference, ...]
    only: tuple[tuple[TrialRecord, ...], tuple[TrialRecord, ...]]


def compare(first: Records, second: Records) -> Comparison:
    """Compare the finished trials of two folders, in the order of the first."""
    sides = [_by_method(records) for records in (first, second)]
    differences = []
    compared: list[set[str]] = [set(), set()]
    for key in sides[0]:
        pairs = _same_settings(sides[0][key], sides[1].get(key, {}))
        for ours, theirs, fields in pairs:
            differences.append(_difference(key, ours, theirs, fields))
            for names, trials, others in zip(compared, (ours, theirs), (theirs, ours), strict=True):
                names |= {trial.name for trial in trials if seed_of(trial) in set(map(seed_of, others))}
    only = [
        tuple(
            trial
            for recipes in side.values()
            for trials in recipes.values()
            for trial in trials
            if trial.name not in names
        )
        for side, names in zip(sides, compared, strict=True)
    ]
    return Comparison(tuple(differences), (only[0], only[1]))


def _by_method(records: Records) -> dict[tuple[str, ...], dict[str, list[TrialRecord]]]:
    """Return the finished trials by the columns in `SAME` and the method, and then by their settings."""
    by_method: dict[tuple[str, ...], dict[str, list[TrialRecord]]] = {}
    for trial in records.trials:
        if trial.done:
            key = (*(column_text(trial, name) for name in SAME), label(trial))
            by_method.setdefault(key, {}).setdefault(_settings(trial), []).append(trial)
    return by_method


def _settings(trial: TrialRecord) -> str:
    """Return the recipe, data type, arithmetic and data copy as one text."""
    known = json.loads(recipe(trial) or "{}")
    columns = {name: column_text(trial, name) for name in ("dtype", "arithmetic", "data_copy")}
    return json.dumps({**known, **columns}, sort_keys=True)


def _same_settings(
    ours: Mapping[str, list[TrialRecord]], theirs: Mapping[str, list[TrialRecord]]
) -> list[tuple[list[TrialRecord], list[TrialRecord], str]]:
    """Return the trials of both folders to compare, and the settings that distinguish them from other trials.

    If each folder has one setting that the other lacks, as after a change of the recipe, these two are compared.
    """
    same = [text for text in ours if text in theirs]
    left, right = ([text for text in side if text not in same] for side in (ours, theirs))
    pairs = [(text, text) for text in same]
    if len(left) == len(right) == 1:
        pairs.append((left[0], right[0]))
    fields = [flatten(json.loads(text)) for text, _ in pairs]
    differing = [name for name in dict.fromkeys(name for settings in fields for name in settings)
                 if len({settings.get(name) for settings in fields}) > 1]  # fmt: skip
    return [
        (ours[mine], theirs[their], ", ".join(f"{name}={known[name]}" for name in differing if name in known))
        for (mine, their), known in zip(pairs, fields, strict=True)
    ]


def _difference(
    key: tuple[str, ...], first: Sequence[TrialRecord], second: Sequence[TrialRecord], settings: str
) -> Difference:
    seeds = [{seed_of(trial) for trial in trials} for trials in (first, second)]
    common = seeds[0] & seeds[1]
    # Changes count only between the compared trials.
    ours, theirs = ([one for one in several if seed_of(one) in common] for several in (first, second))

    def pair(column: str, combine: str) -> Quantity:
        if not common:
            return Missing("no seed in common")
        return paired(by_seed(theirs, column), by_seed(ours, column), combine, not_measured(column))

    disturbed = any(map(is_disturbed, (*ours, *theirs)))
    machines = {tuple(column_text(trial, name) for name in MACHINE) for trial in (*ours, *theirs)}
    return Difference(
        names=key[:-1],
        label=key[-1],
        settings=settings,
        seeds=(len(seeds[0]), len(seeds[1]), len(common)),
        accuracy=pair("test_accuracy", "difference"),
        time=Missing(DISTURBED_RATIO) if disturbed else pair("train_time_s", "ratio"),
        executed=pair("train_flops_executed", "ratio"),
        effective=pair("train_flops_effective", "ratio"),
        comparable=len(machines) == 1 and all(next(iter(machines))),
        disturbed=disturbed,
        changes=_changes(ours or first, theirs or second),
    )


def _changes(first: Sequence[TrialRecord], second: Sequence[TrialRecord]) -> dict[str, tuple[str, str]]:
    """Return the facts whose values differ between two folders, if both recorded them."""
    values = [_values(trials) for trials in (first, second)]
    shared = [name for name in values[0] if name in values[1] and values[0][name] != values[1][name]]
    texts = [{name: " or ".join(sorted(side[name])) for name in shared} for side in values]
    return {name: (texts[0][name], texts[1][name]) for name in shared}


def _values(trials: Sequence[TrialRecord]) -> dict[str, set[str]]:
    values: dict[str, set[str]] = {}
    for trial in trials:
        facts = flatten({name: getattr(trial.spec, name) for name in _SETTINGS})
        facts |= flatten({name: trial.provenance[name] for name in _PROVENANCE if name in trial.provenance})
        for name, value in facts.items():
            if name not in _NOT_SETTINGS:
                values.setdefault(name, set()).add(value)
    return values


def tables(found: Comparison) -> list[Table]:
    """Return the tables of a comparison: numbers, what differs, and trials that only one folder has."""
    several = {names for difference in found.differences for names in [difference.names]}
    heads = (
        Column("Method", numeric=False),
        Column("Seeds", note="In both folders; in brackets: in the first and in the second."),
        Column("Accuracy", "points", "measured", "Second folder minus first, paired by seed."),
        Column(
            "Training time", "× first", "measured", "Geometric mean of the ratios, paired by seed; the 95 % interval "
            "in brackets is that of their logarithms. Times of other hardware, threads or versions of torch are not "
            "comparable."
        ),
        Column("Executed FLOPs", "× first", "counted"),
        Column("Effective FLOPs", "× first", "counted, assumes hardware that skips"),
    )  # fmt: skip
    rows = tuple(_row(difference, len(several) > 1) for difference in found.differences)
    result = [Table("differences", "Second folder relative to the first", heads, rows)] if rows else []
    changed: dict[tuple[str, str, str], list[str]] = {}
    for difference in found.differences:
        for name, (before, after) in difference.changes.items():
            changed.setdefault((name, before, after), []).append(_name(difference, len(several) > 1))
    if changed:
        texts = ("Setting or provenance", "First", "Second", "Methods")
        body = tuple(
            (
                Cell(name, code=True),
                Cell(before),
                Cell(after),
                Cell("all" if len(names) == len(rows) else ", ".join(names)),
            )
            for (name, before, after), names in changed.items()
        )
        result.append(Table("changes", "What differs", tuple(Column(text, numeric=False) for text in texts), body))
    for name, trials in zip(("first", "second"), found.only, strict=True):
        if trials:
            columns = (Column("Method", numeric=False), Column("Seed"), Column("Trial", numeric=False))
            cells = ((label(trial), str(seed_of(trial)), trial.name) for trial in trials)
            lines = tuple((Cell(method, code=True), Cell(seed), Cell(own, code=True)) for method, seed, own in cells)
            result.append(Table(f"only-{name}", f"Only in the {name} folder", columns, lines))
    return result


def _name(one: Difference, several: bool) -> str:
    *names, epochs = one.names
    length = f"{epochs} {'epoch' if epochs == '1' else 'epochs'}" if epochs else ""
    where = [*names, length] if several else []
    text = ", ".join(filter(None, [*where, one.settings]))
    return f"{text}: {one.label}" if text else one.label


def _row(one: Difference, several: bool) -> tuple[Cell, ...]:
    def points(accuracy: Estimate) -> str:
        return formatting.interval(accuracy.scaled(100), 2, sign=True, reference=0)

    def time(ratio: Estimate) -> str:
        return formatting.ratio(ratio) + ("" if one.comparable else " (not comparable)")

    def flops(ratio: Estimate) -> str:
        return formatting.ratio(ratio, exact=True)

    first, second, both = one.seeds
    return (
        Cell(_name(one, several), code=True),
        Cell(str(both) if first == second == both else f"{both} ({first}, {second})", value=both),
        quantity_cell(one.accuracy, 0, points),
        quantity_cell(one.time, 0, time),
        quantity_cell(one.executed, 0, flops),
        quantity_cell(one.effective, 0, flops),
    )


def as_markdown(found: Sequence[Table], first: Path, second: Path) -> str:
    """Return the tables as a Markdown page about these two folders."""
    head = f"# Comparison\n\nFirst: {markdown.code(files.without_home(str(first)))}. "
    head += f"Second: {markdown.code(files.without_home(str(second)))}.\n"
    parts = [f"## {markdown.escape(content.caption)}\n\n{markdown.table(content)}" for content in found]
    return "\n".join([head, *parts])


def as_json(found: Comparison) -> dict[str, Any]:
    """Return a comparison as plain data; a number that is not known is an object with its `reason`."""

    def quantity(one: Quantity) -> dict[str, Any]:
        if isinstance(one, Missing):
            return {"reason": one.reason}
        known = one.half_width is not None
        return {
            "mean": one.mean,
            "low": one.low if known else None,
            "high": one.high if known else None,
            "seeds": one.count,
        }

    return {
        "differences": [
            {
                **dict(zip(SAME, one.names, strict=True)),
                "method": one.label,
                "settings": one.settings,
                "seeds": dict(zip(("first", "second", "both"), one.seeds, strict=True)),
                **{
                    name: quantity(getattr(one, attribute))
                    for name, attribute in (
                        ("accuracy_difference", "accuracy"), ("time_ratio", "time"),
                        ("executed_flops_ratio", "executed"), ("effective_flops_ratio", "effective"),
                    )
                },
                "times_comparable": one.comparable,
                "times_disturbed": one.disturbed,
                "changes": {name: {"first": before, "second": after} for name, (before, after) in one.changes.items()},
            }
            for one in found.differences
        ],
        "only_first": [trial.name for trial in found.only[0]],
        "only_second": [trial.name for trial in found.only[1]],
    }  # fmt: skip
