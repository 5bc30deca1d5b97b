"""The report before anyone chose how it looks: both renderers are fed from these classes and from nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from reports import formatting
from reports.data.estimates import Missing, Quantity
from reports.figures.figure import Figure

Kind = Literal["measured", "counted", "counted, assumes hardware that skips", "modelled", "published", ""]


@dataclass(frozen=True)
class Cell:
    """One cell of a table.

    Attributes:
        text: as it is read.
        note: what a reader should know about it (why it is a dash, that a seed is missing); shown on hover and below.
        value: what the cell sorts by; `None` sorts last.
        code: whether the text is a name to be set in a fixed-width font.
        colour: index of the method's colour, for a method's name.
    """

    text: str
    note: str = ""
    value: float | None = None
    code: bool = False
    colour: int | None = None


@dataclass(frozen=True)
class Column:
    """A column's head: what it is, its unit, and the kind of its numbers. `note` says more on hover and below."""

    title: str
    unit: str = ""
    kind: Kind = ""
    note: str = ""
    numeric: bool = True


@dataclass(frozen=True)
class Table:
    """A table; `pinned` rows at its top stay there however a reader sorts."""

    name: str
    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    pinned: int = 0

    @property
    def notes(self) -> tuple[str, ...]:
        """The distinct notes of heads and cells, in reading order: numbered from 1 where they are referred to."""
        heads = [column.note for column in self.columns]
        cells = [cell.note for row in self.rows for cell in row]
        return tuple(dict.fromkeys(note for note in heads + cells if note))

    def mark(self, note: str) -> str:
        """The number of a note, or nothing."""
        return str(self.notes.index(note) + 1) if note else ""


@dataclass(frozen=True)
class Headline:
    """One sentence about one method: the name is set as code, the text follows it."""

    name: str
    text: str
    colour: int


@dataclass(frozen=True)
class Group:
    """Trials that may be compared: one task, data copy, model, hardware, type and recipe.

    `question` heads the sentences; `data_note` is the data copy's own line about what it means for the numbers.
    """

    title: str
    question: str
    slug: str
    subtitle: str
    data_note: str
    headlines: tuple[Headline, ...]
    remarks: tuple[str, ...]
    summary_table: Table | None
    flops_table: Table | None
    tradeoff_figures: tuple[Figure, ...]
    curve_figures: tuple[Figure, ...]
    missing_figures: tuple[str, ...]


@dataclass(frozen=True)
class Problems:
    """What went wrong, and the commands that run it again (or why none can be given)."""

    table: Table
    commands: tuple[str, ...]
    command_note: str


@dataclass(frozen=True)
class Trust:
    """What a reader who does not believe the numbers asks for."""

    meaning: tuple[str, ...]
    command_lines: tuple[str, ...]
    source: str
    tables: tuple[Table, ...]


@dataclass(frozen=True)
class Report:
    """Everything the report says, in its order.

    Attributes:
        lacks: a line for each thing that could not be said.
        kept: files of figures that an earlier report drew and that cannot be drawn again: they are not removed.
    """

    title: str
    summary: str
    lacks: tuple[str, ...]
    groups: tuple[Group, ...]
    problems: Problems | None
    trust: Trust
    kept: tuple[str, ...] = ()

    @property
    def figures(self) -> tuple[Figure, ...]:
        """All figures, in reading order."""
        return tuple(figure for group in self.groups for figure in (*group.tradeoff_figures, *group.curve_figures))


def quantity_cell(quantity: Quantity, text: str, expected: int) -> Cell:
    """A cell for a number, or a dash with its reason; says so where fewer seeds than `expected` stand behind it."""
    if isinstance(quantity, Missing):
        return missing_cell(quantity.reason)
    short = f"from {quantity.count} of {expected} seeds" if quantity.count < expected else ""
    return Cell(text, short, quantity.mean)


def missing_cell(reason: str) -> Cell:
    """What stands where a number was not measured, with the reason as a sentence."""
    return Cell(formatting.DASH, f"{reason[:1].upper()}{reason[1:].rstrip('.')}.")
