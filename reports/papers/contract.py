"""Contract of a reproduction: a declared table or figure of a paper, and what computes its page from trials.

The files `reports/papers/*.toml` declare the project's own reproductions, and `reproduce NAME` runs them. A plugin
registers a class that names its file:

    @register("reproduction", "my-table")
    class MyTable(Reproduction):
        \"\"\"One line that says what it is.\"\"\"

        file = Path(__file__).with_name("my_paper.toml")  # which has a table [reproductions.my-table]

This module imports no torch, because the verb reads declarations before it checks anything.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from reports.data.estimates import Estimate, Quantity, estimate
from reports.figures.figure import Figure
from reports.papers import paper as papers
from reports.papers.comparison import Comparison, comparison, line, published_alone
from reports.papers.paper import Declaration, Paper, Part, Source
from suite.errors import UsageError, nearest
from suite.registry import register
from suite.trials.folder.records import TrialRecord
from suite.trials.groups import BASELINE, seed_of
from suite.trials.spec import TrialSpec


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
    trials: Mapping[str, Mapping[str, tuple[TrialRecord, ...]]]
    specs: Mapping[str, TrialSpec]
    device: str

    def done(self, part: str, label: str) -> list[TrialRecord]:
        """Return the finished trials of one method in a part, by seed."""
        return sorted((trial for trial in self.trials.get(part, {}).get(label, ()) if trial.done), key=seed_of)

    def model_file(self, trial: TrialRecord) -> Path:
        """Return the path of a trial's final network."""
        return self.folder / "trials" / trial.name / "model.pt"


@dataclass(frozen=True)
class Outcome:
    """Result of a reproduction: comparisons with published numbers, a figure, remarks and provenance."""

    comparisons: tuple[Comparison, ...]
    figure: Figure | None = None
    remarks: tuple[str, ...] = ()
    provenance: tuple[str, ...] = ()


class Reproduction:
    """A declared reproduction. A subclass says by its registered name and `file` which one.

    Class attributes:
        file: TOML file of the paper.

    Attributes:
        paper: Published numbers.
        declared: Trials, quantities and texts.
    """

    registered_name: ClassVar[str] = ""
    file: ClassVar[Path]

    def __init__(self) -> None:
        """Read the file.

        Raises:
            UsageError: The file cannot be read, is wrong, or does not declare this reproduction.
        """
        self.paper: Paper = papers.read(self.file)
        known = self.paper.reproductions
        if self.registered_name not in known:
            raise UsageError(
                f"{self.file}: no reproduction is called '{self.registered_name}'{nearest(self.registered_name, known)}"
            )
        self.declared: Declaration = known[self.registered_name]

    @property
    def origin(self) -> Source:
        """The paper."""
        reference, source = self.declared.reference, self.declared.source
        return self.paper.sources[self.paper.groups[reference].source if reference else source]

    def outcome(self, data: ReproductionData) -> Outcome:
        """Compare the quantities of the parts, and compute and draw what the declaration names."""
        lines = self.compare(data)
        declared = self.declared
        made: Outcome = named(declared.measured)(self, data, lines) if declared.measured else Outcome(tuple(lines))
        alone = [line for name in declared.also for line in published_alone(self.paper, name)]
        figure = made.figure
        if declared.chart is not None:
            draw = named(f"reports.papers.charts:{declared.chart.draw}")
            figure = draw(self.registered_name, declared.chart, made.comparisons, data)
        remarks = (*made.remarks, *declared.remarks)
        return replace(made, comparisons=(*made.comparisons, *alone), figure=figure, remarks=remarks)

    def compare(self, data: ReproductionData) -> list[Comparison]:
        """Compare the declared quantities of every part."""
        functions = [named(name) for name in self.declared.columns]

        def with_columns(trial: TrialRecord) -> TrialRecord:
            columns = {name: value for function in functions for name, value in function(trial).items()}
            return trial.model_copy(update={"result": {**trial.result, **columns}})

        lines: list[Comparison] = []
        for part in self.declared.parts:
            held = dict(data.trials.get(part.name, {}))
            if part.baseline:
                held[BASELINE] = data.trials.get(part.baseline, {}).get(BASELINE, ())
            trials = {label: [*map(with_columns, several)] for label, several in held.items()}
            lines += (comparison(one, part.name, trials, self.paper) for one in part.compared)
        return lines

    def line(
        self, quantity: str, ours: Quantity | float, kind: str = "measured", *, part: str = "", unit: str = "%",
        published: str = "", note: str = "",
    ) -> Comparison:  # fmt: skip
        """Return a line whose number was computed from files of trials, in the first part unless `part` names one."""
        value = Estimate(float(ours), None, 1) if isinstance(ours, (int, float)) else ours
        part = part or self.declared.parts[0].name
        return line(quantity, part, value, kind, unit=unit, published=published, paper=self.paper, note=note)

    def with_own_trials(self, data: ReproductionData) -> list[tuple[Part, dict[str, list[TrialRecord]]]]:
        """Return each part with its finished trials by label, without parts that repeat the trials of an earlier part.

        With `--model`, parts that differ only in their network have the same trials.
        """
        parts: list[tuple[Part, dict[str, list[TrialRecord]]]] = []
        seen: list[set[str]] = []
        for part in self.declared.parts:
            trials = {label: data.done(part.name, label) for label in data.trials.get(part.name, {})}
            names = {trial.name for several in trials.values() for trial in several}
            if not names or names not in seen:
                parts.append((part, trials))
                seen.append(names)
        return parts


def named(name: str) -> Callable[..., Any]:
    """Return the function that a declaration names as `module:name`.

    Raises:
        UsageError: There is no such module or function.
    """
    module, _, function = name.partition(":")
    try:
        found: Callable[..., Any] = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise UsageError(f"'{name}' is no function module:name: {error}") from error
    return found


def over_seeds(trials: Iterable[TrialRecord], value: Callable[[TrialRecord], float | None], reason: str) -> Quantity:
    """Return the mean of a value over trials, with its interval."""
    return estimate([number for trial in trials if (number := value(trial)) is not None], reason)


for _file in papers.OWN:
    for _name, _declared in papers.read(_file).reproductions.items():
        register("reproduction", _name)(type(_name, (Reproduction,), {"__doc__": _declared.summary, "file": _file}))
