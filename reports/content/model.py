"""The content of a report, independent of its format. Both renderers use these classes and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from reports import formatting
from reports.data.estimates import Estimate, Missing, Quantity
from reports.data.records import Look
from reports.figures.figure import Figure

Kind = Literal[
    "measured", "measured, dense fitted", "counted", "counted, assumes hardware that skips", "modelled", "published", ""
]


@dataclass(frozen=True)
class Cell:
    """One cell of a table.

    Attributes:
        text: Displayed text.
        note: Remark on the value, for example why it is missing. The page shows it on hover and below the table.
        value: Number by which the cell is sorted; `None` sorts last.
        code: Whether the text is a name, which gets a fixed-width font.
        colour: Index of the method's colour, if the text is the name of a method.
        mark: Words after a name (`reports.data.records.Look.mark`).
        spans: Whether names within the text are between backticks.
    """

    text: str
    note: str = ""
    value: float | None = None
    code: bool = False
    colour: int | None = None
    mark: str = ""
    spans: bool = False


@dataclass(frozen=True)
class Column:
    """Head of a column.

    Attributes:
        title: Name of the quantity.
        unit: Unit of its numbers.
        kind: Whether the numbers were measured, counted, modelled or published.
        note: Explanation, shown on hover and below the table.
        numeric: Whether the cells are aligned and sorted as numbers.
        short: Name next to each number on narrow screens (default: the title).
    """

    title: str
    unit: str = ""
    kind: Kind = ""
    note: str = ""
    numeric: bool = True
    short: str = ""


@dataclass(frozen=True)
class Table:
    """A table. When a reader sorts it, the first `pinned` rows stay at the top, and rows of `under` below their row."""

    name: str
    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    pinned: int = 0
    under: frozenset[int] = frozenset()

    @property
    def notes(self) -> tuple[str, ...]:
        """Distinct notes of heads and cells in reading order. References to them count from 1."""
        heads = [column.note for column in self.columns]
        cells = [cell.note for row in self.rows for cell in row]
        return tuple(dict.fromkeys(note for note in heads + cells if note))

    def mark(self, note: str) -> str:
        """Return the number of a note; empty for no note."""
        return str(self.notes.index(note) + 1) if note else ""


@dataclass(frozen=True)
class PriceList(Table):
    """What an accuracy costs, with a sentence above that says how to read it, and what its numbers mean below."""

    lead: str = ""
    below: str = ""


@dataclass(frozen=True)
class Verdict:
    """What the methods of a group are worth. Names and commands in its texts are between backticks.

    Attributes:
        purposes: A sentence for each purpose (most accurate, fastest, smallest), or one that says why there is none.
        warnings: Sentences that a reader must know before any number.
        basis: Seeds, threads and minutes, and what these seeds and passes could have shown; may be empty.
        advice: What would give a missing verdict, and what could change a verdict; may be empty.
        certainty: What the tests cover; empty if nothing was tested.
    """

    purposes: tuple[str, ...]
    warnings: tuple[str, ...] = ()
    basis: str = ""
    advice: str = ""
    certainty: str = ""


@dataclass(frozen=True)
class Section:
    """A section of a group that opens and closes, such as an explanation with its tables and figures.

    Attributes:
        title: Heading of the section.
        anchor: Part of its anchor, after the slug of the group.
        lines: Paragraphs above the tables.
        tables: Tables.
        figures: Figures below the tables.
    """

    title: str
    anchor: str
    lines: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()
    figures: tuple[Figure, ...] = ()


@dataclass(frozen=True)
class Group:
    """The section about one group of comparable trials: one task, data copy, model, hardware, data type and recipe.

    Attributes:
        title: Heading of the section.
        slug: Prefix of anchors and file names.
        subtitle: Epochs, batch size, device, versions and data copy.
        data_note: What the data copy means for the numbers.
        verdict: What its methods are worth; `None` if there is no method besides dense.
        remarks: Warnings that concern several methods, for example disturbed times.
        tables: Tables with one row per method, the verdicts at equal FLOPs first; empty if no trial is done.
        tradeoff_figures: Accuracy against cost.
        curve_figures: Curves and shapes over epochs.
        missing_figures: One line for each figure that cannot be drawn.
        summary: The table of the first screen, with the verdicts at equal time; at equal FLOPs without a time pass;
            `None` if no trial is done.
        sections: Further sections, after the curves.
        caution: Why the accuracies of the group say nothing about the methods; empty if they do.
        prices: What an accuracy costs, above the table of the first screen; `None` without a target.
    """

    title: str
    slug: str
    subtitle: str
    data_note: str
    verdict: Verdict | None
    remarks: tuple[str, ...]
    tables: tuple[Table, ...]
    tradeoff_figures: tuple[Figure, ...]
    curve_figures: tuple[Figure, ...]
    missing_figures: tuple[str, ...]
    summary: Table | None = None
    sections: tuple[Section, ...] = ()
    caution: str = ""
    prices: PriceList | None = None

    @property
    def figures(self) -> tuple[Figure, ...]:
        """All figures in reading order."""
        further = (figure for section in self.sections for figure in section.figures)
        return (*self.tradeoff_figures, *self.curve_figures, *further)


@dataclass(frozen=True)
class Problems:
    """Failed trials and damaged files, with the commands that run them again, or a note why none can be given."""

    table: Table
    commands: tuple[str, ...]
    command_note: str


@dataclass(frozen=True)
class Provenance:
    """Where the numbers come from and what they mean.

    Attributes:
        meaning: Definitions of the kinds of numbers.
        command_lines: Commands that produced the folder.
        tables: Trials, methods, environment and differences between trials.
    """

    meaning: tuple[str, ...]
    command_lines: tuple[str, ...]
    tables: tuple[Table, ...]


@dataclass(frozen=True)
class Report:
    """A whole report, in reading order.

    Attributes:
        title: Title of the page.
        summary: Number of trials.
        groups: Sections about comparable trials.
        left_out: One line for each method that a command left out, because a network does not fit it.
        problems: Failed trials and damaged files; `None` if there are none.
        provenance: The last section.
    """

    title: str
    summary: str
    groups: tuple[Group, ...]
    left_out: tuple[str, ...]
    problems: Problems | None
    provenance: Provenance

    @property
    def figures(self) -> tuple[Figure, ...]:
        """All figures in reading order."""
        return tuple(figure for group in self.groups for figure in group.figures)


def quantity_cell(quantity: Quantity, expected: int, write: Callable[[Estimate], str]) -> Cell:
    """Return a cell for a number, or a dash with the reason. A note says if fewer seeds than `expected` have it."""
    if isinstance(quantity, Missing):
        return missing_cell(quantity.reason)
    short = f"from {quantity.count} of {expected} seeds" if quantity.count < expected else ""
    return Cell(write(quantity), short, quantity.mean)


def name_cell(name: str, look: Look) -> Cell:
    """Return a cell with the name of a method, its colour, and the words after it."""
    return Cell(name, code=True, colour=look.colour, mark=look.mark)


def number_cell(value: float, decimals: int) -> Cell:
    """Return a cell for a number that has no interval."""
    return Cell(formatting.plain(value, decimals), value=value)


def missing_cell(reason: str) -> Cell:
    """Return a dash for a number that is not known, with the reason as a sentence in its note."""
    return Cell(formatting.DASH, f"{reason[:1].upper()}{reason[1:].rstrip('.')}.")
