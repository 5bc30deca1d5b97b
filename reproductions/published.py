"""Numbers that papers print: read from TOML, checked, and never without their source.

A value is named `GROUP/KEY`, for example `sdgp-table1-cifar10-resnet9/rescaled`.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

from suite.errors import UsageError, nearest

OWN = Path(__file__).with_name("published.toml")
KINDS = ("measured", "counted", "modelled")
MEASURED = "measured"
UNITS = ("%", "points", "×", "s", "FLOPs", "")
CONDITIONS = ("task", "data_copy", "model", "epochs", "batch_size", "dtype", "execution", "hardware", "selection")
_SOURCE_KEYS = ("title", "where")
_GROUP_KEYS = ("name", "source", "place", "quantity", "unit", "of", "conditions", "values")
_OPTIONAL = ("notes", "doubt")


@dataclass(frozen=True)
class Source:
    """A paper or repository: `title` as one cites it, `where` to find it."""

    name: str
    title: str
    where: str


@dataclass(frozen=True)
class Group:
    """Values of one quantity, printed in one place.

    Attributes:
        name: what it is called here.
        source, place: whose, and the table, figure, section or row.
        quantity, unit: what the values are.
        of: the kind that they had for their authors: `measured`, `counted` or `modelled`.
        conditions: under which they hold, by the names of `CONDITIONS`; what is not known is absent.
        values: by key.
        decimals: by key, with how many the value stands in the file, which is how it was printed.
        notes: what a reader must know, known errors first of all.
        doubt: why the values must not be compared with; empty where nothing is wrong.
    """

    name: str
    source: Source
    place: str
    quantity: str
    unit: str
    of: str
    conditions: Mapping[str, str | int | float]
    values: Mapping[str, float]
    decimals: Mapping[str, int]
    notes: tuple[str, ...] = ()
    doubt: str = ""

    @property
    def kind(self) -> str:
        """`published`, and what else it must say: a published projection is not a published measurement."""
        return kind_of(self.of)

    def rounding(self, key: str) -> float:
        """How far the value of a key may lie from what its authors had before they printed it."""
        return 0.5 * 10.0 ** -self.decimals[key]

    @property
    def citation(self) -> str:
        """Source and place in one line."""
        return f"{self.source.title} ({self.source.where}), {self.place}"


def kind_of(of: str) -> str:
    """The kind of a published number that for its authors was `of`, one of `KINDS`."""
    return "published" if of == MEASURED else f"published, of a {of} quantity"


@dataclass(frozen=True)
class Published:
    """The groups of one file, by name."""

    path: Path
    groups: Mapping[str, Group]

    def group(self, name: str) -> Group:
        """A group.

        Raises:
            UsageError: if there is none of that name.
        """
        if name not in self.groups:
            raise UsageError(f"{self.path.name}: no group is called '{name}'{nearest(name, self.groups)}")
        return self.groups[name]

    def find(self, name: str) -> tuple[Group, float]:
        """The value `GROUP/KEY`, with its group.

        Raises:
            UsageError: if there is none of that name, or its group is in doubt.
        """
        group_name, slash, key = name.partition("/")
        if not slash:
            raise UsageError(f"{self.path.name}: '{name}' is no GROUP/KEY")
        group = self.group(group_name)
        if group.doubt:
            raise UsageError(f"{self.path.name}: {group.name} must not be compared with: {group.doubt}")
        if key not in group.values:
            raise UsageError(f"{self.path.name}: {group.name} has no value '{key}'{nearest(key, group.values)}")
        return group, group.values[key]


@cache
def own() -> Published:
    """What this project quotes."""
    return read(OWN)


def read(path: Path) -> Published:
    """Read and check a file of published numbers.

    Raises:
        UsageError: for the first thing that is wrong: what, in which group, and the nearest right thing.
    """
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"), parse_float=Decimal)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from error
    except ValueError as error:  # bytes that are no text, and TOML that is none: a key twice, for example
        raise UsageError(f"{path}: {error}") from error
    _check_keys(content, ("sources", "groups"), (), f"{path}")
    sources = {}
    for name, fields in _table(content["sources"], f"{path}: sources").items():
        where = f"{path}: sources.{name}"
        _check_keys(_table(fields, where), _SOURCE_KEYS, (), where)
        sources[name] = Source(name, *(_text(fields[key], f"{where}.{key}") for key in _SOURCE_KEYS))
    if not isinstance(content["groups"], list) or not all(isinstance(fields, dict) for fields in content["groups"]):
        raise UsageError(f"{path}: groups must be tables, each under [[groups]]")
    groups: dict[str, Group] = {}
    for position, fields in enumerate(content["groups"], 1):
        group = _group(fields, sources, f"{path}: group {fields.get('name', position)}")
        if group.name in groups:
            raise UsageError(f"{path}: group {group.name} stands there twice")
        groups[group.name] = group
    return Published(path, groups)


def _group(fields: Mapping[str, Any], sources: Mapping[str, Source], where: str) -> Group:
    _check_keys(fields, _GROUP_KEYS, _OPTIONAL, where)
    name = _text(fields["name"], f"{where}: name")
    if "/" in name:
        raise UsageError(f"{where}: a name has no '/', which parts it from a value's key")
    source = _text(fields["source"], f"{where}: source")
    if source not in sources:
        raise UsageError(f"{where}: no source is called '{source}'{nearest(source, sources)}")
    for key, known in (("of", KINDS), ("unit", UNITS)):
        if fields[key] not in known:
            raise UsageError(
                f"{where}: {key} '{fields[key]}'{nearest(str(fields[key]), [item for item in known if item])}"
            )
    conditions = _table(fields["conditions"], f"{where}: conditions")
    for key in conditions:
        if key not in CONDITIONS:
            raise UsageError(f"{where}: no condition is called '{key}'{nearest(key, CONDITIONS)}")
    conditions = {
        key: value
        if isinstance(value, (str, int)) and not isinstance(value, bool)
        else _number(value, f"{where}: conditions.{key}")
        for key, value in conditions.items()
    }
    printed = _table(fields["values"], f"{where}: values")
    values = {key: _number(value, f"{where}: values.{key}") for key, value in printed.items()}
    if not values:
        raise UsageError(f"{where}: has no values")
    for key, value in values.items():
        if fields["unit"] == "%" and abs(value) > 100:
            raise UsageError(f"{where}: values.{key} is {value} %; it lies between -100 and 100")
    notes = fields.get("notes", [])
    if not isinstance(notes, list):
        raise UsageError(f"{where}: notes must be a list of lines")
    return Group(
        name=name,
        source=sources[source],
        place=_text(fields["place"], f"{where}: place"),
        quantity=_text(fields["quantity"], f"{where}: quantity"),
        unit=fields["unit"],
        of=fields["of"],
        conditions=conditions,
        values=values,
        decimals={key: _decimals(value) for key, value in printed.items()},
        notes=tuple(_text(note, f"{where}: notes") for note in notes),
        doubt=_text(fields["doubt"], f"{where}: doubt") if "doubt" in fields else "",
    )


def _check_keys(fields: Mapping[str, Any], required: Iterable[str], optional: Iterable[str], where: str) -> None:
    known = (*required, *optional)
    for key in fields:
        if key not in known:
            raise UsageError(f"{where}: unknown key '{key}'{nearest(key, known)}")
    for key in required:
        if key not in fields:
            raise UsageError(f"{where}: '{key}' is missing")


def _table(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise UsageError(f"{where} must be a table")
    return value


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise UsageError(f"{where} must be text")
    return value


def _number(value: Any, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, Decimal)):
        raise UsageError(f"{where} is {value!r}, which is no number")
    number = float(value)
    if not math.isfinite(number):
        raise UsageError(f"{where} is {number}; a published number is finite")
    return number


def _decimals(value: int | Decimal) -> int:
    exponent = Decimal(value).as_tuple().exponent
    assert isinstance(exponent, int)  # not of a number that is none, which was refused
    return max(0, -exponent)
