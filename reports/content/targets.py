"""The section of target accuracies: for each target, a table of what it takes to reach it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from reports import formatting
from reports.content.model import Cell, Column, Section, Table, missing_cell, name_cell
from reports.data.method_rows import MethodRow
from reports.data.records import DISTURBED_NOTE, PageGroup, mark_disturbed
from reports.data.targets import TargetRow, Targets, default_target, of_dense, target_rows
from suite.trials.groups import BASELINE

_MEDIAN = (
    "Median over all seeds. Seeds that did not reach the target count as longer than the others. A mean would leave "
    "out the slowest seeds."
)
_EXPLANATION = (
    "A target is reached in the first evaluated epoch in which the accuracy on the test images is high enough. This is "
    "read from the recorded curve, which was not used to choose anything. The learning rate falls until the last "
    "epoch, so a shorter training reaches a target earlier. A method may reach a target before it has pruned anything."
)
_TITLE = "Cost until a target accuracy"
_NOT_LEARNED = (
    "There is no target, because dense training has not learned the task: any method would reach one that follows from "
    "its accuracy by guessing."
)
_RATIO = "Ratio of the medians, without an interval."


def target_sections(
    group: PageGroup,
    rows: Sequence[MethodRow],
    targets: Targets,
    margin: float,
    slug: str,
    *,
    default: bool,
    learned: bool = True,
) -> tuple[Section, ...]:
    """Return a section with a table for each target; none if there is no target, or no epochs are known.

    Args:
        group: Trials that may be compared.
        rows: Their methods, in the order of the report.
        targets: Those that commands gave.
        margin: The declared margin, as a fraction.
        slug: Prefix of the tables' names.
        default: Whether there is a target without one of a command.
        learned: Whether dense training has learned the task. If it has not, a sentence replaces the default target.
    """
    tables = []
    if default and not targets.accuracies:
        targets = default_target(rows, margin)
        if targets.accuracies and not learned:
            return (Section(_TITLE, "targets", (_NOT_LEARNED,)),)
    for number, target in enumerate(targets.accuracies, 1):
        body = target_rows(group, rows, target)
        if body:
            tables.append(_table(body, target, targets.origin, f"{slug}-target-{number}"))
    return (Section(_TITLE, "targets", (_EXPLANATION,), tuple(tables)),) if tables else ()


def _table(rows: Sequence[TargetRow], target: float, origin: str, name: str) -> Table:
    disturbed = f" {DISTURBED_NOTE}" if any(row.time_is_disturbed for row in rows) else ""
    columns = [
        Column("Method", numeric=False),
        Column(
            "Reached by",
            "",
            "measured",
            "Seeds of which an epoch reached the target, of all that are done or diverged. The accuracy may have "
            "fallen later.",
            numeric=False,
        ),
        Column("After epoch", "", "measured", _MEDIAN),
        Column("Training time until then", "", "measured", _MEDIAN + disturbed),
        Column("Training time until then", "× dense", "measured", _RATIO),
        Column("FLOPs executed until then", "", "counted", _MEDIAN),
        Column("FLOPs executed until then", "× dense", "counted", _RATIO),
    ]
    timed = any(row.label != BASELINE and row.share not in (None, math.inf) for row in rows)
    if timed:
        note = f"{_RATIO} Each step counts with its time in the time pass, which the machine's drift does not affect."
        columns.append(Column("Training time until then, time pass", "× dense", "measured", note))
    energy = any(row.costs["energy_to_target_j"] not in (None, math.inf) for row in rows)
    if energy:
        note = f"Of the GPU, or of the whole CPU package with all other programs. {_MEDIAN}"
        columns.append(Column("Energy until then", "", "measured", note))
    body = tuple(_cells(row, rows, timed, energy) for row in rows)
    caption = f"Until the test accuracy reaches {100 * target:g} % ({origin})."
    return Table(name, caption, tuple(columns), body, pinned=sum(row.label == BASELINE for row in rows))


def _cells(row: TargetRow, rows: Sequence[TargetRow], timed: bool, energy: bool) -> tuple[Cell, ...]:
    counted = row.seeds - row.unknown
    seeds = f"{row.reached} of {counted} {'seed' if counted == 1 else 'seeds'}"
    notes = []
    if row.fell:
        notes.append(f"{row.fell} of {counted} seeds ended below the target.")
    if row.unknown:
        notes.append(f"{row.unknown} more without epochs.jsonl.")
    within = f"not reached within {row.budget:g} epochs ({seeds})" if row.budget else f"not reached ({seeds})"
    is_reached = 2 * row.reached > counted

    def disturbed(text: str) -> str:
        return mark_disturbed(text, row.time_is_disturbed)

    cells = [
        name_cell(row.name, row.look),
        Cell(seeds if is_reached else within, " ".join(notes), row.reached / counted),
        _cell(row.epoch, lambda epoch: f"{epoch:g}"),
        _cell(row.costs["time_to_target_s"], lambda time: disturbed(formatting.duration(time))),
        _ratio(row, rows, "time_to_target_s"),
        _cell(row.costs["flops_to_target"], lambda flops: formatting.si(flops, "FLOPs")),
        _ratio(row, rows, "flops_to_target"),
    ]
    if timed:
        cells.append(_ratio(row, rows, "share"))
    if energy:
        cells.append(_cell(row.costs["energy_to_target_j"], lambda joules: formatting.si(joules, "J")))
    return tuple(cells)


def _cell(value: float | None, write: Callable[[float], str]) -> Cell:
    if value is None:
        return missing_cell("not recorded")
    if math.isinf(value):
        return missing_cell("no more than half of the seeds reached the target")
    return Cell(write(value), value=value)


def _ratio(row: TargetRow, rows: Sequence[TargetRow], column: str) -> Cell:
    ratio = of_dense(row, rows, column)
    if ratio is None:
        return missing_cell("one of the two medians is not known, or was disturbed")
    return Cell(f"{ratio:.2f}", value=ratio)
