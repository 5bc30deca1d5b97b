"""A paper as its TOML file declares it: published numbers with their places, and the reproductions of its pages.

A published number is named `GROUP/KEY`, for example `sdgp-table1-cifar10-resnet9/rescaled`. docs/reproduce.md shows a
whole file. In lists of `reproductions` and `templates`, a table may stand for several ones (`expand`).
"""

from __future__ import annotations

import itertools
import tomllib
from collections.abc import Iterator, Mapping
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, Strict, field_validator, model_validator

from suite.errors import UsageError, nearest, validate
from suite.parameters import declared
from suite.recipe import Recipe
from suite.trials.spec import PRESETS

OWN = tuple(sorted(Path(__file__).parent.glob("*.toml")))
MEASURED = "measured"

Text = Annotated[str, Field(pattern=r"\S")]
Number = Annotated[float, Strict(False)]
Obtained = Literal["measured", "counted", "modelled"]
Preset = Annotated[str, Field(pattern=f"^({'|'.join(PRESETS)})$")]
SEEDS = {"smoke": 1, "quick": 3, "paper": 3}
RecipeField = Annotated[str, Field(pattern=f"^({'|'.join(declared(Recipe))})$")]
Condition = Annotated[
    str, Field(pattern="^(task|data_copy|model|epochs|batch_size|dtype|execution|hardware|selection)$")
]  # fmt: skip


class Table(BaseModel):
    """A table of the file, without unknown keys."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)


class Source(Table):
    """A paper or repository: its citation, and the place where it is found."""

    title: Text
    where: Text


class Group(Table):
    """Values of one quantity, printed in one place.

    Attributes:
        source: Name of the paper or repository.
        place: Table, figure, section or row in the source.
        quantity, unit: Quantity of the values, and its unit.
        of: How the authors obtained the values. `modelled` values were projected and not observed.
        conditions: Conditions under which the values hold; unknown ones are absent.
        values: Values by key.
        decimals: Number of printed decimals by key, which the file gives by the way it writes the values.
        notes: Notes for readers, known errors first.
        doubt: Reason why the values must not be compared with ours; empty if there is none.
    """

    source: Text
    place: Text
    quantity: Text
    unit: Literal["%", "points", "×", "s", "FLOPs", ""]
    of: Obtained
    conditions: dict[Condition, str | int]
    values: Annotated[dict[str, Number], Field(min_length=1)]
    decimals: dict[str, int]
    notes: list[Text] = []
    doubt: str = ""

    @model_validator(mode="before")
    @classmethod
    def _count_decimals(cls, fields: Any) -> Any:
        values = fields.get("values") if isinstance(fields, dict) else None
        texts = {key: str(value) for key, value in values.items()} if isinstance(values, dict) else {}
        return {**fields, "decimals": {key: len(text.partition(".")[2]) for key, text in texts.items()}}

    @property
    def kind(self) -> str:
        """Kind of the values in our tables (`kind_of`)."""
        return kind_of(self.of)

    def rounding(self, key: str) -> float:
        """Return the largest rounding error of a printed value: half a unit of its last decimal."""
        return 0.5 * 10.0 ** -self.decimals[key]


def kind_of(of: str) -> str:
    """Return the kind of a published number: `published`, or `published, of a counted quantity` (or a modelled one)."""
    return "published" if of == MEASURED else f"published, of a {of} quantity"


class Compared(Table):
    """One quantity to compare.

    Attributes:
        quantity: Name for readers.
        method: Label of the method in the list of the part, for example `sdgp[n=2,m=4,mode=random]`.
        column: Column of `results.csv`, or one that a function in `columns` of the reproduction computes.
        against: `""` for the column itself. Otherwise the number is paired with dense by seed: `difference`, `ratio`,
            or `saving`, which is 1 minus the ratio.
        over: Column of the same trial to divide by (`train_flops_dense`); only without `against`.
        scale: Factor from the unit of the table to the published unit; 100 converts shares to percent.
        unit: Unit after scaling.
        kind: Kind of our number.
        published: `GROUP/KEY` of the published number; empty if none was printed.
        published_baseline: `GROUP/KEY` of the number to subtract, if the paper prints both terms of a difference.
        note: Remark for readers.
    """

    quantity: Text
    method: Text
    column: Text = "test_accuracy"
    against: Literal["", "difference", "ratio", "saving"] = ""
    over: str = ""
    scale: Number = 100.0
    unit: str = "%"
    kind: Obtained = "measured"
    published: str = ""
    published_baseline: str = ""
    note: str = ""


class Part(Table):
    """Trials that belong together, and the quantities read from them.

    Attributes:
        name: Name for `--parts`.
        title: One line for readers.
        methods: Methods as in `--methods`. They include dense if a quantity is compared with it and there is no
            `baseline`.
        task: Name of the task.
        model: Model as in `--model`; empty for the default of the task. The command can set another one.
        small_model: Model in the presets `smoke` and `quick`, for two cores.
        seeds: Number of seeds by preset, where it is not that of `SEEDS`.
        presets: Presets that run the part unless `--parts` is given.
        overrides: Recipe fields. The command can set other values.
        recipe: Name of the recipe in `Task.paper_recipes` for the preset `paper`; empty for the default of the task.
        paper_recipe: Recipe fields that the preset `paper` changes in that recipe.
        baseline: Name of the part with the dense trials for this part, if a paper trained dense and pruned networks
            differently; empty if this part trains dense itself.
        compared: Quantities to compare.
    """

    name: Text
    title: Text
    methods: Text
    task: Text
    model: str = ""
    small_model: str = ""
    seeds: dict[Preset, Annotated[int, Field(ge=1)]] = SEEDS
    presets: list[Preset] = [*PRESETS]
    overrides: dict[RecipeField, Any] = {}
    recipe: str = ""
    paper_recipe: dict[RecipeField, Any] = {}
    baseline: str = ""
    compared: list[Compared] = []

    @field_validator("seeds")
    @classmethod
    def _of_every_preset(cls, seeds: dict[Preset, int]) -> dict[Preset, int]:
        return {**SEEDS, **seeds}

    @property
    def quick_recipe(self) -> str:
        """Name of the recipe for the preset `quick`, whose default on CIFAR-10 suits only the network `airbench`."""
        return "resnet9" if self.task == "cifar10" else ""


class ChartPanel(Table):
    """One panel of a chart.

    Attributes:
        title: Title of the panel.
        x, y: Names of the axes.
        values: For `epochs`, the function `module:name` of a trial that returns a value by epoch.
        seeds: For `epochs`, the number of seeds to average; all of them if left out.
        column, over: For `tradeoff`, the cost, and that of the dense network.
        from_zero: Whether the axis of y starts at 0.
    """

    title: str = ""
    x: str = ""
    y: str = ""
    values: str = ""
    seeds: int | None = None
    column: str = ""
    over: str = ""
    from_zero: bool = False


class Chart(Table):
    """A figure that is drawn from comparisons or trials.

    Attributes:
        draw: Function of `reports.papers.charts`.
        title, caption: Texts of the figure.
        lines: For `epochs`, methods by label and part; for `tradeoff`, lists of methods by label; for `grid`, names of
            quantities by row and column.
        panels: Panels of the figure.
    """

    draw: Literal["differences", "epochs", "tradeoff", "grid"]
    title: Text
    caption: str = ""
    lines: dict[str, Any] = {}
    panels: list[ChartPanel] = []


class Declaration(Table):
    """A reproduction of a table or figure.

    Attributes:
        title: Title of the page.
        summary: One line that says what it is.
        reference: Group of published numbers whose setting is reproduced; empty if the original has no number.
        source: Name of the paper, if there is no `reference`.
        also: Groups that the page shows without numbers of ours.
        compared_with: Groups that `measured` compares with, in addition to `reference` and those that parts name.
        remarks: Lines above the numbers on the page.
        parts: Parts to run. The file may give what they share in a table `each_part`.
        columns: Functions `module:name` that compute further columns from a trial's files.
        measured: Function `module:name` that computes further quantities, figures and remarks; empty for none.
        chart: The figure, if `measured` does not draw it.
    """

    title: Text
    summary: Text
    reference: str = ""
    source: str = ""
    also: list[str] = []
    compared_with: list[str] = []
    remarks: list[Text] = []
    parts: list[Part] = []
    columns: list[str] = []
    measured: str = ""
    chart: Chart | None = None


class Printed(NamedTuple):
    """A published number with its source."""

    value: float
    kind: str
    citation: str
    place: str
    rounding: float


class Paper(Table):
    """The content of a file: sources, groups and reproductions by name."""

    sources: dict[str, Source]
    groups: dict[str, Group]
    reproductions: dict[str, Declaration] = {}

    @model_validator(mode="after")
    def _check_names(self) -> Paper:
        for name, group in self.groups.items():
            _check(group.source, self.sources, f"{name}: no source")
        for page, declaration in self.reproductions.items():
            if not declaration.reference:
                _check(declaration.source, self.sources, f"{page}: no source")
            for name in filter(None, [declaration.reference, *declaration.also, *declaration.compared_with]):
                _check(name, self.groups, f"{page}: no group")
            for part in declaration.parts:
                if part.baseline:
                    _check(part.baseline, [one.name for one in declaration.parts], f"{page}: no part")
                for one in part.compared:
                    for name in filter(None, (one.published, one.published_baseline)):
                        self.find(name)
        return self

    def find(self, name: str) -> Printed:
        """Return the value of `GROUP/KEY`.

        Raises:
            ValueError: No value has the name, or the values of its group are in doubt.
        """
        group_name, _, key = name.partition("/")
        _check(group_name, self.groups, "no group")
        group = self.groups[group_name]
        if group.doubt:
            raise ValueError(f"{group_name} must not be compared with: {group.doubt}")
        _check(key, group.values, f"{group_name}: no value")
        return Printed(group.values[key], group.kind, self.citation(group), group.place, group.rounding(key))

    def citation(self, group: Group) -> str:
        """Return source and place of a group in one line."""
        source = self.sources[group.source]
        return f"{source.title} ({source.where}), {group.place}"


def _check(name: str, known: Any, what: str) -> None:
    if name not in known:
        raise ValueError(f"{what} is called '{name}'{nearest(name, known)}")


@cache
def read(path: Path) -> Paper:
    """Read and check a file.

    Raises:
        UsageError: The file cannot be read or is wrong; the message has the first error and its place.
    """
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"), parse_float=Decimal)
        templates, texts = (content.pop(name, {}) for name in ("templates", "texts"))
        for page in content.get("reproductions", {}).values():
            shared = page.pop("each_part", {})
            page["parts"] = [{**shared, **part} for part in page.get("parts", [])]
        content["reproductions"] = expand(content.get("reproductions", {}), templates, texts)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from error
    except KeyError as error:
        raise UsageError(f"{path}: a text or a table names {error}, which has no value") from error
    except ValueError as error:  # invalid UTF-8 or invalid TOML, for example a key that occurs twice
        raise UsageError(f"{path}: {error}") from error
    paper: Paper = validate(Paper, content, f"{path}")
    return paper


def expand(node: Any, templates: Mapping[str, Any], variables: Mapping[str, Any]) -> Any:
    """Fill in the variables of texts, and replace tables of lists that stand for several ones.

    `for` gives variables, with each of whose values the table is repeated: a list of tables of variables, or a table
    with a list for each variable, whose combinations are taken. `template` names a list of tables, which takes the
    place of the table; the table's other keys are its variables. A text names a variable in braces. Those of `texts`
    are known everywhere.

    Raises:
        KeyError: A text names a variable without a value, or there is no such template.
    """
    if isinstance(node, str):
        return node.format_map(variables)
    if isinstance(node, Mapping):
        return {key: expand(value, templates, variables) for key, value in node.items()}
    if isinstance(node, list):
        return [one for item in node for one in _several(item, templates, variables)]
    return float(node) if isinstance(node, Decimal) else node


def _several(item: Any, templates: Mapping[str, Any], variables: Mapping[str, Any]) -> Iterator[Any]:
    if not isinstance(item, Mapping):
        yield expand(item, templates, variables)
        return
    fields = {key: value for key, value in item.items() if key not in ("for", "template")}
    repeated = item.get("for", [{}])
    if isinstance(repeated, Mapping):
        repeated = [dict(zip(repeated, values, strict=True)) for values in itertools.product(*repeated.values())]
    for more in repeated:
        scope = {**variables, **expand(more, templates, variables)}
        if "template" in item:
            yield from expand(templates[item["template"]], templates, {**scope, **expand(fields, templates, scope)})
        else:
            yield expand(fields, templates, scope)
