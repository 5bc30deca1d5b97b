"""The contract of a reproduction: which trials a paper's table or figure needs, and what of them stands beside it.

A reproduction is a declaration, registered like a method and run by `reproduce NAME`:

    @register("reproduction", "sdgp-table1")
    class Table1(Reproduction):
        \"\"\"One line that says what it is.\"\"\"
        title = "SDGP, Table I"
        reference = "sdgp-table1-cifar10-resnet9"           # a group of reproductions/published.toml
        parts = (Part("columns", ..., compared=(*accuracy("random 2:4", "sdgp[...]", ".../random", ".../dense"), ...)),)

Its module imports no torch: the verb reads it before anything is checked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from reports.data.records import Trial
from reports.figures.figure import Figure
from reproductions import published
from reproductions.comparison import Compared, Comparison, compare, published_alone
from suite.runs.spec import PRESETS, TrialSpec


@dataclass(frozen=True, kw_only=True)
class Part:
    """Trials that belong together, and what is read from them.

    Attributes:
        name: what `--parts` takes.
        title: one line for readers.
        methods: as `--methods` takes them, dense among them where anything is compared with it.
        task: one task.
        model: as `--model` takes it; empty: the task's own. What the user types wins.
        small_model: instead of it in the presets `smoke` and `quick`, for two cores.
        seeds: how many, by preset.
        presets: those in which the part is run unless `--parts` says otherwise.
        overrides: fields of the recipe; what the user types wins.
        recipe: in preset `paper`, the paper's by its name in `Task.paper_recipes`; empty: the task's own.
        paper_recipe: fields of the recipe in preset `paper` alone, where the task has no such recipe.
        compared: the quantities.
    """

    name: str
    title: str
    methods: str
    task: str
    model: str = ""
    small_model: str = ""
    seeds: Mapping[str, int] = field(default_factory=lambda: {"smoke": 1, "quick": 3, "paper": 3})
    presets: tuple[str, ...] = PRESETS
    overrides: Mapping[str, Any] = field(default_factory=dict)
    recipe: str = ""
    paper_recipe: Mapping[str, Any] = field(default_factory=dict)
    compared: tuple[Compared, ...] = ()


@dataclass(frozen=True)
class ReproductionData:
    """What the trials of a reproduction left.

    Attributes:
        folder: the suite's.
        trials: by part and label, those of the command and those that earlier commands left for its other parts.
        specs: the trials' specs by trial id.
        device: `cpu`, `cuda` or `cuda:N`, to compute on.
    """

    folder: Path
    trials: Mapping[str, Mapping[str, tuple[Trial, ...]]]
    specs: Mapping[str, TrialSpec]
    device: str


@dataclass(frozen=True)
class Outcome:
    """What a reproduction has to say: lines beside the published numbers, a figure, remarks, and more provenance."""

    comparisons: tuple[Comparison, ...]
    figure: Figure | None = None
    remarks: tuple[str, ...] = ()
    provenance: tuple[str, ...] = ()


class Reproduction:
    """Base class of every reproduction; most declare the attributes and `draw`, and nothing else.

    Class attributes:
        title: how a reader calls it.
        reference: the group of published numbers whose setting is reproduced.
        also: groups that are shown without anything of ours beside them.
        beside: groups, besides `reference` and those that the parts name, that `outcome` sets ours beside.
        parts: what is run.
        remarks: lines that a reader should meet before the numbers.
        numbers: the TOML file with the published numbers; a plugin's may bring its own.
    """

    registered_name: ClassVar[str] = ""
    title: ClassVar[str] = ""
    reference: ClassVar[str] = ""
    also: ClassVar[tuple[str, ...]] = ()
    beside: ClassVar[tuple[str, ...]] = ()
    parts: ClassVar[tuple[Part, ...]] = ()
    remarks: ClassVar[tuple[str, ...]] = ()
    numbers: ClassVar[Path] = published.OWN

    @cached_property
    def published(self) -> published.Published:
        """The published numbers.

        Raises:
            UsageError: if their file cannot be read.
        """
        return published.own() if self.numbers == published.OWN else published.read(self.numbers)

    def check(self) -> None:
        """See that every published number that is named here exists.

        Raises:
            UsageError: for the first that does not, or that must not be compared with.
        """
        for name in (self.reference, *self.also, *self.beside):
            self.published.group(name)
        for part in self.parts:
            for one in part.compared:
                for value in filter(None, (one.published, one.published_baseline)):
                    self.published.find(value)

    def outcome(self, data: ReproductionData) -> Outcome:
        """What came out. The base class compares what the parts declare, and draws it."""
        comparisons = self.compare(data)
        return Outcome(comparisons, self.draw(comparisons), self.remarks)

    def columns(self, trial: Trial) -> Mapping[str, float]:
        """Columns beside those of `results.csv` that quantities may name: what is read off a trial's other files."""
        return {}

    def compare(self, data: ReproductionData) -> tuple[Comparison, ...]:
        """The declared quantities of every part, and what is published alone."""
        lines: list[Comparison] = []
        for part in self.parts:
            trials = {
                label: [replace(trial, numbers={**trial.numbers, **self.columns(trial)}) for trial in several]
                for label, several in data.trials.get(part.name, {}).items()
            }
            lines += compare(part.compared, part.name, trials, self.published)
        for name in self.also:
            lines += published_alone(self.published.group(name))
        return tuple(lines)

    def draw(self, comparisons: tuple[Comparison, ...]) -> Figure | None:
        """The figure; `None` where there is nothing to draw."""
        return None
