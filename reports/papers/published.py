"""Numbers that papers print, read from TOML and checked; every number has a source.

A value is named `GROUP/KEY`, for example `sdgp-table1-cifar10-resnet9/rescaled`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from suite.errors import UsageError, nearest, validate

OWN = Path(__file__).with_name("published.toml")
MEASURED = "measured"


def _not_blank(text: str) -> str:
    if not text.strip():
        raise ValueError("must not be blank")
    return text


def _without_slash(name: str) -> str:
    if "/" in name:
        raise ValueError("must not contain '/', which separates it from a value's key")
    return name


def _decimal(value: Any) -> Decimal:
    if isinstance(value, bool) or not isinstance(value, (int, Decimal)):
        raise ValueError("must be a number")
    return Decimal(value)


Text = Annotated[str, AfterValidator(_not_blank)]
Number = Annotated[Decimal, BeforeValidator(_decimal)]


class _Table(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class _Conditions(_Table):
    task: Text = ""
    data_copy: Text = ""
    model: Text = ""
    epochs: int = 0
    batch_size: int = 0
    dtype: Text = ""
    execution: Text = ""
    hardware: Text = ""
    selection: Text = ""


class _SourceTable(_Table):
    title: Text
    where: Text


class _GroupTable(_Table):
    name: Annotated[Text, AfterValidator(_without_slash)]
    source: Text
    place: Text
    quantity: Text
    unit: Literal["%", "points", "×", "s", "FLOPs", ""]
    of: Literal["measured", "counted", "modelled"]
    conditions: _Conditions
    values: Annotated[dict[str, Number], Field(min_length=1)]
    notes: list[Text] = []
    doubt: Text = ""


class _File(_Table):
    sources: dict[str, dict[str, Any]]
    groups: list[dict[str, Any]]


@dataclass(frozen=True)
class Source:
    """A paper or repository.

    Attributes:
        name: Name in the file.
        title: Citation.
        where: Place where it is found.
    """

    name: str
    title: str
    where: str


@dataclass(frozen=True)
class Group:
    """Values of one quantity, printed in one place.

    Attributes:
        name: Name of the group.
        source: Paper or repository.
        place: Table, figure, section or row in the source.
        quantity: Quantity of the values.
        unit: Unit of the values.
        of: How the authors obtained the values: `measured`, `counted` or `modelled`.
        conditions: Conditions under which the values hold, by the fields of `_Conditions`; unknown ones are absent.
        values: Values by key.
        decimals: Number of printed decimals by key.
        notes: Notes for readers, known errors first.
        doubt: Reason why the values must not be compared with ours; empty if there is none.
    """

    name: str
    source: Source
    place: str
    quantity: str
    unit: str
    of: str
    conditions: Mapping[str, str | int]
    values: Mapping[str, float]
    decimals: Mapping[str, int]
    notes: tuple[str, ...] = ()
    doubt: str = ""

    @property
    def kind(self) -> str:
        """Kind of the values in our tables (`kind_of`)."""
        return kind_of(self.of)

    def rounding(self, key: str) -> float:
        """Return the largest rounding error of a printed value."""
        return 0.5 * 10.0 ** -self.decimals[key]

    @property
    def citation(self) -> str:
        """Source and place in one line."""
        return f"{self.source.title} ({self.source.where}), {self.place}"


def kind_of(of: str) -> str:
    """Return the kind of a published number: `published`, or `published, of a counted quantity` (or a modelled one)."""
    return "published" if of == MEASURED else f"published, of a {of} quantity"


@dataclass(frozen=True)
class Published:
    """The groups and sources of one file, by name."""

    path: Path
    groups: Mapping[str, Group]
    sources: Mapping[str, Source]

    def source(self, name: str) -> Source:
        """Return the source of a name.

        Raises:
            UsageError: No source has the name.
        """
        if name not in self.sources:
            raise UsageError(f"{self.path.name}: no source is called '{name}'{nearest(name, self.sources)}")
        return self.sources[name]

    def group(self, name: str) -> Group:
        """Return the group of a name.

        Raises:
            UsageError: No group has the name.
        """
        if name not in self.groups:
            raise UsageError(f"{self.path.name}: no group is called '{name}'{nearest(name, self.groups)}")
        return self.groups[name]

    def find(self, name: str) -> tuple[Group, float]:
        """Return the group and the value of `GROUP/KEY`.

        Raises:
            UsageError: No value has the name, or the values of its group are in doubt.
        """
        group_name, slash, key = name.partition("/")
        if not slash:
            raise UsageError(f"{self.path.name}: '{name}' is not of the form GROUP/KEY")
        group = self.group(group_name)
        if group.doubt:
            raise UsageError(f"{self.path.name}: {group.name} must not be compared with: {group.doubt}")
        if key not in group.values:
            raise UsageError(f"{self.path.name}: {group.name} has no value '{key}'{nearest(key, group.values)}")
        return group, group.values[key]


@cache
def own() -> Published:
    """Return the published numbers that this project quotes."""
    return read(OWN)


def read(path: Path) -> Published:
    """Read and check a file of published numbers.

    Raises:
        UsageError: The file cannot be read or is wrong; the message has the first error and its place.
    """
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"), parse_float=Decimal)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from error
    except ValueError as error:  # invalid UTF-8 or invalid TOML, for example a key that occurs twice
        raise UsageError(f"{path}: {error}") from error
    file = validate(_File, content, f"{path}")
    sources = {}
    for name, fields in file.sources.items():
        table = validate(_SourceTable, fields, f"{path}: sources.{name}")
        sources[name] = Source(name, table.title, table.where)
    groups: dict[str, Group] = {}
    for position, fields in enumerate(file.groups, 1):
        group = _group(fields, sources, f"{path}: group {fields.get('name', position)}")
        if group.name in groups:
            raise UsageError(f"{path}: group {group.name} occurs twice")
        groups[group.name] = group
    return Published(path, groups, sources)


def _group(fields: Mapping[str, Any], sources: Mapping[str, Source], where: str) -> Group:
    table = validate(_GroupTable, fields, where)
    if table.source not in sources:
        raise UsageError(f"{where}: no source is called '{table.source}'{nearest(table.source, sources)}")
    for key, value in table.values.items():
        if table.unit == "%" and abs(value) > 100:
            raise UsageError(f"{where}: values.{key} is {value} %; it must be between -100 and 100")
    return Group(
        name=table.name,
        source=sources[table.source],
        place=table.place,
        quantity=table.quantity,
        unit=table.unit,
        of=table.of,
        conditions=dict(fields["conditions"]),  # in the order of the file
        values={key: float(value) for key, value in table.values.items()},
        decimals={key: _decimals(value) for key, value in table.values.items()},
        notes=tuple(table.notes),
        doubt=table.doubt,
    )


def _decimals(value: Decimal) -> int:
    exponent = value.as_tuple().exponent
    assert isinstance(exponent, int)  # the value is finite
    return max(0, -exponent)
