"""The search of `tune`: the search space of a method, and the settings that a budget allows.

The space of a method has the recipe's learning rate and each parameter whose annotation has a
`suite.parameters.Search`. The first setting of every budget is the default. The others are points of a Halton sequence
(`scipy.stats.qmc`), shifted by the seed. A setting depends on the space, the seed and its number, and not on results or
on the budget. An interrupted search therefore continues, and a larger budget adds settings to the same ones. The
learning rate is the first dimension of every space, so that all methods try the same learning rates.
"""

from __future__ import annotations

import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from suite.choices import RECIPE, MethodChoice
from suite.errors import UsageError, nearest
from suite.files import canonical_json
from suite.parameters import Parameter, Search, normal, search_of
from suite.recipe import Recipe
from suite.trials.spec import TrialSpec

MOST_POINTS = 200
"""Points of the sequence that are tried for each setting of the budget before a space counts as too small."""


@dataclass(frozen=True)
class Dimension:
    """A parameter that is searched.

    Attributes:
        name: Name of the parameter, or `recipe.FIELD`.
        default: Value of the default setting.
        values: All values if there are only a few; otherwise empty.
        low, high: Bounds of a number.
        log: Whether numbers are spread evenly on a logarithmic scale.
        is_integer: Whether numbers are rounded to integers.
    """

    name: str
    default: Any
    values: tuple[Any, ...] = ()
    low: float = 0.0
    high: float = 0.0
    log: bool = False
    is_integer: bool = False

    def value(self, share: float) -> Any:
        """Return the value at a position in [0, 1); numbers are rounded to three digits."""
        if self.values:
            return self.values[int(share * len(self.values))]
        low, high = self.low, self.high
        number = low * (high / low) ** share if self.log else low + (high - low) * share
        return round(number) if self.is_integer else float(f"{number:.3g}")


@dataclass(frozen=True)
class MethodSearch:
    """The settings that `tune` tries for one method.

    Attributes:
        method: The method as typed.
        settings: Values of the searched dimensions, by setting.
        labels: The method with the values of each setting, without those of the recipe.
        trials: Trials of each setting, by seed.
        needed: Other trials that these depend on.
    """

    method: str
    dimensions: list[Dimension]
    settings: list[dict[str, Any]]
    labels: list[str]
    trials: list[list[TrialSpec]]
    needed: list[TrialSpec]

    @property
    def in_order(self) -> list[TrialSpec]:
        """All trials. Those that others depend on come first."""
        return [*self.needed, *(trial for trials in self.trials for trial in trials)]


def space(
    choice: MethodChoice,
    recipe: Recipe,
    task: str,
    preset: str,
    only: Sequence[str] = (),
    set_for_all: Sequence[str] = (),
) -> list[Dimension]:
    """Return the search space of a method on a task.

    Args:
        choice: The method. Its typed parameters are fixed.
        recipe: The recipe with the fields that were typed for all methods.
        task, preset: Names that decide default values.
        only: Names to search; empty for all that the method declares.
        set_for_all: Fields of the recipe that were typed for all methods.

    Raises:
        UsageError: A value is both typed and searched, or nothing is left to search.
    """
    annotations = {name: item.annotation for name, item in _searched(choice).items()}
    defaults = {**{RECIPE + name: value for name, value in recipe.fields().items()}, **choice.parameters(task, preset)}
    typed = {*choice.typed, *(RECIPE + name for name in set_for_all)}
    dimensions = []
    for name, annotation in annotations.items():
        if only and name not in only:
            continue
        if name in typed:
            raise UsageError(
                f"{choice}: {name} is typed and searched at once; leave it out, or list what is searched with --search"
            )
        dimensions.append(_dimension(choice.name, name, annotation, defaults[name]))
    if not dimensions:
        raise UsageError(
            f"--search {','.join(only)}: {choice} has none of these; it can search {', '.join(annotations)}"
        )
    return dimensions


def check_names(choices: Sequence[MethodChoice], names: Sequence[str]) -> None:
    """Check that one of the methods declares a search of each name.

    Raises:
        UsageError: No method declares a search of a name.
    """
    known = {name for choice in choices for name in _searched(choice)}
    for name in names:
        if name not in known:
            raise UsageError(f"--search '{name}': no method declares a search of it{nearest(name, sorted(known))}")


def _searched(choice: MethodChoice) -> dict[str, Parameter]:
    """Return what declares a search: fields of the recipe as `recipe.FIELD`, and parameters of the method."""
    typed = {**choice.also_typed(), **choice.declared}
    return {name: item for name, item in typed.items() if search_of(item.annotation)}


def _dimension(method: str, name: str, annotation: Any, default: Any) -> Dimension:
    search, plain = search_of(annotation), typing.get_args(annotation)[0]
    assert isinstance(search, Search)
    if search.low is None or search.high is None:
        values = (False, True) if plain is bool else typing.get_args(plain)
        if plain is not bool and typing.get_origin(plain) is not Literal:
            raise UsageError(f"{method}: the search of {name} has no bounds, and its type has no list of values")
        return Dimension(name, default, values=tuple(values))
    if search.relative and (isinstance(default, bool) or not isinstance(default, (int, float)) or default <= 0):
        raise UsageError(f"{method}: the search of {name} is relative to its default, which is {default}")
    scale = float(default) if search.relative else 1.0
    return Dimension(
        name, default, low=search.low * scale, high=search.high * scale, log=search.log, is_integer=plain is int
    )


def settings(choice: MethodChoice, dimensions: Sequence[Dimension], budget: int, seed: int) -> list[dict[str, Any]]:
    """Return the different settings that a budget allows: the default one, which is empty, and then the sequence's.

    Settings that the method refuses are left out.

    Args:
        choice: The method, with typed parameters.
        budget: Number of settings.
        seed: Seed of the sequence, from 0.

    Raises:
        UsageError: The space has fewer settings.
    """
    settings_by_text: dict[str, dict[str, Any]] = {canonical_json({axis.name: axis.default for axis in dimensions}): {}}
    for point in _points(len(dimensions), budget * MOST_POINTS, seed):
        if len(settings_by_text) == budget:
            break
        values = {
            axis.name: normal(axis.value(share), _annotation(choice, axis.name))
            for axis, share in zip(dimensions, point, strict=True)
        }
        try:
            choice.with_typed(values).build()
        except UsageError:
            continue
        settings_by_text.setdefault(canonical_json(values), values)
    if len(settings_by_text) < budget:
        names = ", ".join(axis.name for axis in dimensions)
        raise UsageError(f"--budget {budget}: {choice} has only {len(settings_by_text)} different settings of {names}")
    return list(settings_by_text.values())


def _annotation(choice: MethodChoice, name: str) -> Any:
    return (choice.also_typed()[name] if name.startswith(RECIPE) else choice.declared[name]).annotation


def _points(dimensions: int, count: int, seed: int) -> Iterator[Sequence[float]]:
    """Yield `count` points in [0, 1): a Halton sequence without its first point, shifted modulo 1."""
    # The process that waits for the trials uses neither these libraries nor their memory.
    import numpy as np
    from scipy.stats import qmc

    # The stream of RandomState never changes, that of default_rng may. The first dimension has one shift in every
    # space.
    shift = np.random.RandomState(seed).random_sample(dimensions)
    sequence = qmc.Halton(dimensions, scramble=False)
    sequence.fast_forward(1)
    for _ in range(count):
        yield ((sequence.random(1)[0] + shift) % 1.0).tolist()


def shown(dimension: Dimension) -> Mapping[str, Any]:
    """Return a dimension as plain data, for `tune.json`."""
    bounds = {"low": dimension.low, "high": dimension.high, "log": dimension.log}
    described = {"values": list(dimension.values)} if dimension.values else bounds
    return {"name": dimension.name, "default": dimension.default, **described}
