"""Page of a reproduction, `reproduce/NAME.{md,csv,svg}`: our numbers next to the published ones."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from reports import formatting
from reports.content.model import Cell, Column, Table, missing_cell
from reports.data.estimates import Missing
from reports.data.records import DISTURBED, DISTURBED_NOTE, mark_disturbed
from reports.figures.figure import Figure
from reports.papers.comparison import Comparison, conditions_in_words
from reports.papers.paper import MEASURED, Group, kind_of
from reports.render import markdown
from suite import files
from suite.files import clean
from suite.trials.folder.records import TrialRecord
from suite.trials.groups import label

COLUMNS = (
    *("quantity", "published", "source", "ours", "interval", "difference", "kind"),
    *("unit", "published_kind", "seeds", "part", "note"),
)
COVERED = (
    "Yes if our interval reaches the published number within its rounding error: half a unit of the last printed "
    "decimal, summed over both terms of a difference. A no does not refute the paper: published numbers are rounded, "
    "have no interval, and may come from one run."
)
FULL_RECIPE = "paper"  # preset with the recipe of a paper


@dataclass(frozen=True)
class PartNotRun:
    """A part that the command did not run and of which the folder lacks trials, with the command that runs it."""

    name: str
    title: str
    command: str


@dataclass(frozen=True)
class ReproductionPage:
    """Content of the files of one reproduction.

    Attributes:
        name, title, summary: Texts of the reproduction.
        comparisons: Comparisons of the parts, then the numbers that are only published; the CSV has all of them.
        alone: Groups of numbers that are only published, each with the place where its paper is found.
        figure: Figure, or `None` if there is nothing to draw.
        reference: Group whose setting is reproduced; `None` if the original has no number.
        trials: Trials that the numbers come from, failed ones included.
        networks: Lines on networks that the preset or the command replaced.
        changed: Recipe fields that the command set, `name=value`.
        unrun: Parts that were not run.
        remarks: Further lines of the reproduction.
        notes: Notes of the published groups.
        provenance: Lines on the source of the numbers.
    """

    name: str
    title: str
    summary: str
    comparisons: tuple[Comparison, ...]
    figure: Figure | None
    reference: Group | None
    trials: tuple[TrialRecord, ...]
    networks: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    alone: tuple[tuple[Group, str], ...] = ()
    unrun: tuple[PartNotRun, ...] = ()
    remarks: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    provenance: tuple[str, ...] = ()


def write(folder: Path, reproduced: ReproductionPage) -> Path:
    """Write the files into `folder/reproduce`, each atomically, and return the path of the Markdown file.

    If there is no figure now, an earlier one is removed, because it would show other numbers than the table.
    """
    subfolder = folder / "reproduce"
    paths = {ending: subfolder / f"{reproduced.name}.{ending}" for ending in ("md", "csv", "svg")}
    texts = {paths["csv"]: to_csv(reproduced.comparisons), paths["md"]: to_markdown(reproduced)}
    subfolder.mkdir(parents=True, exist_ok=True)
    if reproduced.figure is None:
        paths["svg"].unlink(missing_ok=True)
    else:
        texts = {paths["svg"]: reproduced.figure.standalone, **texts}
    for path, text in texts.items():
        files.write(path, text)
    return paths["md"]


def to_csv(comparisons: Sequence[Comparison]) -> str:
    """Return the lines as CSV: numbers in the unit of the line, `interval` as half of its length, empty if missing."""
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for one in comparisons:
        known = one.known
        copied = ("quantity", "published", "source", "difference", "unit", "published_kind", "part")
        row = {name: getattr(one, name) for name in copied} | {
            "ours": known and known.mean,
            "interval": known and known.half_width,
            "kind": one.kind if known else one.published_kind,
            "seeds": known and known.count,
            "note": "; ".join(filter(None, (_about_ours(one), one.note))),
        }
        writer.writerow({key: "" if value is None else _plain(value) for key, value in row.items()})
    return text.getvalue()


def _about_ours(one: Comparison) -> str:
    return one.ours.reason if isinstance(one.ours, Missing) else DISTURBED if one.disturbed else ""


def _plain(value: object) -> object:
    return f"{value:.10g}" if isinstance(value, float) else clean(value) if isinstance(value, str) else value


def to_markdown(reproduced: ReproductionPage) -> str:
    """Return the page as Markdown."""
    # A part that was not run gets one line with its command, and no row of dashes for each number.
    unrun = [part.name for part in reproduced.unrun]
    parts = [
        one for one in reproduced.comparisons if one.part and not (one.part in unrun and isinstance(one.ours, Missing))
    ]
    printed = [one for one in parts if one.published is not None]
    return markdown.render_template(
        "reproduction.md.j2",
        reproduced=reproduced,
        warning=setting_warning(
            reproduced.trials, reproduced.reference, networks=reproduced.networks, changed=reproduced.changed
        ),
        differences=_table("Differences to dense", [one for one in printed if one.is_difference]),
        absolutes=_table("Absolute numbers", [one for one in printed if not one.is_difference]),
        unrun_published=any(one.part in unrun and one.published is not None for one in reproduced.comparisons),
        ours_alone=_ours_alone([one for one in parts if one.published is None]),
        alone=_alone(reproduced.alone),
        conditions=_conditions(reproduced.trials, reproduced.reference),
        failures=[(label(trial), trial) for trial in reproduced.trials if not trial.done],
    )


def setting_warning(
    trials: Sequence[TrialRecord], reference: Group | None, *, networks: Sequence[str] = (), changed: Sequence[str] = ()
) -> str:
    """Return the differences between our setting and that of the paper; empty if none is known.

    Hardware, on which times depend, appears only in the table of settings.

    Args:
        trials: Our trials.
        reference: Group with the published conditions, if there is one.
        networks: Lines on networks that were replaced.
        changed: Recipe fields that the command set.
    """
    parts = []
    presets = sorted({trial.text("preset") for trial in trials if trial.text("preset")})
    if presets and presets != [FULL_RECIPE]:
        parts.append(f"preset {' and '.join(presets)} instead of the paper's recipe")
    for key in ("task", "data_copy", "model", "epochs", "batch_size", "dtype", "execution"):
        ours, theirs = _ours(trials, key), reference.conditions.get(key) if reference else None
        if theirs is not None and ours and ours != [_text(theirs)]:
            parts.append(f"{key.replace('_', ' ')} {' and '.join(ours)} instead of {_text(theirs)}")
    parts += networks
    if changed:
        parts.append(f"set by the command: {', '.join(changed)}")
    return "; ".join(parts)


def _conditions(trials: Sequence[TrialRecord], reference: Group | None) -> Table | None:
    if not trials or not reference or not reference.conditions:
        return None
    rows = []
    for key, theirs in reference.conditions.items():
        ours = _ours(trials, key)
        cell = Cell(", ".join(ours)) if ours else missing_cell("not recorded")
        if not ours:
            same = missing_cell("cannot be compared")
        elif key == "hardware":
            named = _text(theirs).casefold()
            same = Cell("yes" if all(named in ours_text.casefold() for ours_text in ours) else "no")
        else:
            same = Cell("yes" if ours == [_text(theirs)] else "no")
        rows.append((Cell(key.replace("_", " ")), Cell(_text(theirs)), cell, same))
    columns = tuple(Column(title, numeric=False) for title in ("Condition", "Published", "Ours", "Equal"))
    return Table("conditions", "Settings", columns, tuple(rows))


def _ours(trials: Sequence[TrialRecord], key: str) -> list[str]:
    """Return the values of a condition in our trials, as text."""
    if key == "hardware":
        facts = [trial.provenance.get("hardware") for trial in trials]
        texts = [str(fact.get("gpu") or fact.get("cpu") or "") for fact in facts if isinstance(fact, dict)]
    elif key == "selection":
        texts = ["final epoch"] if trials else []
    elif key in ("epochs", "batch_size"):
        texts = [_text(value) for trial in trials if (value := trial.number(key)) is not None]
    elif key == "data_copy":
        texts = [trial.text(key).rpartition("-")[0] for trial in trials]
    else:
        texts = [trial.text(key) for trial in trials]
    return sorted({clean(text) for text in texts if text})


def _text(value: str | int | float) -> str:
    return value if isinstance(value, str) else f"{value:g}"


def _table(caption: str, lines: Sequence[Comparison]) -> Table | None:
    if not lines:
        return None
    columns = (
        Column("Quantity", numeric=False),
        Column("Published"),
        Column(
            "Ours",
            note="± is the half-width of the 95 % t-interval over seeds; differences are paired by seed. Ratios are "
            "geometric means, with the interval of their logarithms in brackets.",
        ),
        Column("Ours minus published"),
        Column("Interval covers published", numeric=False, note=COVERED),
        Column("Seeds"),
        Column("Kind of ours", numeric=False),
        Column("Kind of published", numeric=False),
    )
    return Table("comparison", caption, columns, tuple(_row(line) for line in lines))


def _row(one: Comparison) -> tuple[Cell, ...]:
    signed = one.is_difference and one.unit == "points"
    theirs = Cell(_in_unit(_published(one, signed), one.unit), one.source, one.published)
    kinds = Cell(one.kind), Cell(one.published_kind)
    name = Cell(one.quantity, one.note)
    if isinstance(one.ours, Missing):
        reason = missing_cell(one.ours.reason)
        return name, theirs, reason, reason, reason, reason, *kinds
    gap = one.difference
    if gap is None:
        difference = missing_cell(f"the paper modelled this number, and ours is {one.kind}")
    else:
        difference = Cell(formatting.signed(gap, formatting.decimals_for(one.ours.half_width, 2)), value=gap)
    if one.published_kind != kind_of(MEASURED):
        covered = missing_cell("the paper computed this number, and an interval of ours cannot confirm it")
    elif one.covered is None:
        covered = missing_cell("no interval: one seed or equal values")
    else:
        covered = Cell("yes" if one.covered else "no")
    return name, theirs, _our_cell(one), difference, covered, Cell(str(one.ours.count)), *kinds


def _our_cell(one: Comparison) -> Cell:
    if isinstance(one.ours, Missing):
        return missing_cell(one.ours.reason)
    signed = one.is_difference and one.unit == "points"
    decimals = 2 if one.unit else 0 if abs(one.ours.mean) >= 100 else 3
    text = _in_unit(formatting.interval(one.ours, decimals, sign=signed), one.unit)
    return Cell(mark_disturbed(text, one.disturbed), DISTURBED_NOTE if one.disturbed else "", one.ours.mean)


def _in_unit(text: str, unit: str) -> str:
    return f"{text} {unit}".rstrip()


def _ours_alone(lines: Sequence[Comparison]) -> Table | None:
    if not lines:
        return None
    columns = (Column("Quantity", numeric=False), Column("Ours"), Column("Kind", numeric=False))
    rows = [(Cell(line.quantity, line.note), _our_cell(line), Cell(line.kind)) for line in lines]
    return Table("ours", "Our numbers without a published counterpart", columns, tuple(rows))


def _published(one: Comparison, signed: bool) -> str:
    assert one.published is not None
    printed_whole = one.rounding >= 0.5  # 25 must not become 25.0
    decimals = max(0 if printed_whole else 1, len(f"{one.published:.10g}".partition(".")[2]))
    return formatting.signed(one.published, decimals) if signed else formatting.plain(one.published, decimals)


def _alone(groups: Sequence[tuple[Group, str]]) -> Table | None:
    if not groups:
        return None
    titles = ("Source", "Quantity", "Published", "Kind", "Conditions")
    columns = tuple(Column(title, numeric=False) for title in titles)
    rows = []
    for group, place in groups:
        values = ", ".join(f"{key} {value:.10g}{group.unit and ' '}{group.unit}" for key, value in group.values.items())
        doubt = f"Must not be compared: {group.doubt}." if group.doubt else ""
        where = Cell(f"{group.place} ({place})", doubt)
        rows.append((where, Cell(group.quantity), Cell(values), Cell(group.kind), Cell(conditions_in_words(group))))
    return Table("alone", "Published numbers without a counterpart of ours", columns, tuple(rows))
