"""Contract of a reproduction: the trials that a table or figure of a paper needs, and the quantities to compare.

A reproduction is a declaration. It is registered like a method, and `reproduce NAME` runs it:

    @register("reproduction", "sdgp-table1")
    class Table1(Reproduction):
        \"\"\"One line that says what it is.\"\"\"
        title = "SDGP, Table I"
        reference = "sdgp-table1-cifar10-resnet9"           # a group of reports/papers/published.toml
        parts = (Part("columns", ..., compared=(*accuracy("random 2:4", "sdgp[...]", ".../random", ".../dense"), ...)),)

Its module must not import torch, because the verb reads it before it checks anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from reports.figures.figure import Figure
from reports.papers import published
from reports.papers.comparison import Compared, Comparison, compare, published_alone
from reports.papers.published import Source
from suite.errors import UsageError
from suite.trials.folder.reader import Trial
from suite.trials.groups import BASELINE
from suite.trials.spec import PRESETS, TrialSpec


@dataclass(frozen=True, kw_only=True)
class Part:
    """Trials that belong together, and the quantities read from them.

    Attributes:
        name: Name for `--parts`.
        title: One line for readers.
        methods: Methods as in `--methods`. They include dense if a quantity is compared with it and there is no
            `baseline`.
        task: Name of the task.
        model: Model as in `--model`; empty for the default of the task. The command can set another one.
        small_model: Model in the presets `smoke` and `quick`, for two cores.
        seeds: Number of seeds by preset.
        presets: Presets that run the part unless `--parts` is given.
        overrides: Recipe fields. The command can set other values.
        recipe: Name of the recipe in `Task.paper_recipes` for the preset `paper`; empty for the default of the task.
        paper_recipe: Recipe fields that the preset `paper` changes in that recipe.
        baseline: Name of the part with the dense trials for this part, if a paper trained dense and pruned networks
            differently; empty if this part trains dense itself.
        compared: Quantities to compare.
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
    baseline: str = ""
    compared: tuple[Compared, ...] = ()

    @property
    def quick_recipe(self) -> str:
        """Name of the recipe for the preset `quick`, whose default on CIFAR-10 suits only the network `airbench`."""
        return "resnet9" if self.task == "cifar10" else ""


@dataclass(frozen=True)
class ReproductionData:
    """Trials that a reproduction reads.

    Attributes:
        folder: Folder of the suite.
        trials: Trials by part and label, from this command and earlier commands in the folder.
        specs: Specs of the trials by trial id.
        device: Device for computations: `cpu`, `cuda` or `cuda:N`.
    """

    folder: Path
    trials: Mapping[str, Mapping[str, tuple[Trial, ...]]]
    specs: Mapping[str, TrialSpec]
    device: str


@dataclass(frozen=True)
class Outcome:
    """Result of a reproduction: comparisons with published numbers, a figure, remarks and provenance."""

    comparisons: tuple[Comparison, ...]
    figure: Figure | None = None
    remarks: tuple[str, ...] = ()
    provenance: tuple[str, ...] = ()


class Reproduction:
    """Base class of every reproduction. Most subclasses declare only the attributes and `draw`.

    Class attributes:
        title: Title of the page.
        reference: Group of published numbers whose setting is reproduced; empty if the original has no number.
        source: Name of the paper in the file of numbers, if there is no `reference`.
        also: Groups that the page shows without numbers of ours.
        compared_with: Groups that `outcome` compares with, in addition to `reference` and the groups that parts name.
        parts: Parts to run.
        remarks: Lines above the numbers on the page.
        numbers: TOML file with the published numbers. A plugin can have its own file.
    """

    registered_name: ClassVar[str] = ""
    title: ClassVar[str] = ""
    reference: ClassVar[str] = ""
    source: ClassVar[str] = ""
    also: ClassVar[tuple[str, ...]] = ()
    compared_with: ClassVar[tuple[str, ...]] = ()
    parts: ClassVar[tuple[Part, ...]] = ()
    remarks: ClassVar[tuple[str, ...]] = ()
    numbers: ClassVar[Path] = published.OWN

    @cached_property
    def published(self) -> published.Published:
        """Published numbers of this reproduction.

        Raises:
            UsageError: The file of published numbers cannot be read.
        """
        return published.own() if self.numbers == published.OWN else published.read(self.numbers)

    @property
    def origin(self) -> Source:
        """The paper.

        Raises:
            UsageError: The file of published numbers has no such group or source.
        """
        known = self.published
        return known.group(self.reference).source if self.reference else known.source(self.source)

    def check(self) -> None:
        """Check that every published number and every part that the declaration names exists.

        Raises:
            UsageError: A number does not exist or must not be compared, or a part does not exist.
        """
        names = {"", *(part.name for part in self.parts)}
        for part in self.parts:
            if part.baseline not in names:
                raise UsageError(f"{self.registered_name}: part {part.name} has no part '{part.baseline}' as baseline")
        _ = self.origin
        for name in (*self.also, *self.compared_with):
            self.published.group(name)
        for part in self.parts:
            for compared in part.compared:
                for value in filter(None, (compared.published, compared.published_baseline)):
                    self.published.find(value)

    def outcome(self, data: ReproductionData) -> Outcome:
        """Return the result. The base class compares the quantities of the parts and draws them."""
        comparisons = self.compare(data)
        return Outcome(comparisons, self.draw(comparisons), self.remarks)

    def columns(self, trial: Trial) -> Mapping[str, float]:
        """Return columns for quantities from the trial's files, in addition to those of `results.csv`."""
        return {}

    def compare(self, data: ReproductionData) -> tuple[Comparison, ...]:
        """Compare the declared quantities of every part, and add the groups that have only published numbers."""
        lines: list[Comparison] = []
        for part in self.parts:
            held = dict(data.trials.get(part.name, {}))
            if part.baseline:
                held[BASELINE] = data.trials.get(part.baseline, {}).get(BASELINE, ())
            trials = {
                label: [replace(trial, numbers={**trial.numbers, **self.columns(trial)}) for trial in several]
                for label, several in held.items()
            }
            lines += compare(part.compared, part.name, trials, self.published)
        for name in self.also:
            lines += published_alone(self.published.group(name))
        return tuple(lines)

    def draw(self, comparisons: tuple[Comparison, ...]) -> Figure | None:
        """Return the figure, or `None` if there is nothing to draw."""
        return None
