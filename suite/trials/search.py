"""The search of `tune`: its space, the settings that a budget allows, the choice of one, and the file `tune.json`.

The space of a method has the recipe's learning rate and each parameter whose annotation has a
`suite.parameters.Search`. The first setting of every budget is the default. The others are points of a Halton sequence
(`scipy.stats.qmc`), shifted by the seed. A setting depends on the space, the seed and its number, and not on results or
on the budget. An interrupted search therefore continues, and a larger budget adds settings to the same ones. The
learning rate is the first dimension of every space, so that all methods try the same learning rates.
"""

from __future__ import annotations

import contextlib
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from annotated_types import Ge
from pydantic import Field, model_validator

from suite import files
from suite.choices import RECIPE, MethodChoice
from suite.errors import UsageError, validate
from suite.files import canonical_json
from suite.parameters import Parameter, search_of
from suite.trials.folder.records import Strict
from suite.trials.spec import TrialSpec

NAME = "tune.json"
MOST_POINTS = 200
"""Points of the sequence that are tried for each setting of the budget before a space counts as too small."""
TOLERANCE = 1.02
"""A setting may cost this many times the default's FLOPs. The verdict takes costs up to 2 % apart for equal."""
COSTS = ("train_flops_effective", "inference_flops_effective")
"""Columns with the cost of a setting."""
RULE = (
    "The setting with the highest validation accuracy, among those that cost at most 1.02 times the effective training "
    "and inference FLOPs of the default setting; the first of equal ones. Without the limit, a method would be tuned "
    "by pruning less."
)
Share = Annotated[float, Ge(0)]


class Dimension(Strict):
    """A parameter that is searched.

    Attributes:
        name: Name of the parameter, or `recipe.FIELD`.
        default: Value of the default setting.
        values: All values if there are only a few; otherwise empty.
        low, high: Bounds of a number; `None` if there are values.
        log: Whether numbers are spread evenly on a logarithmic scale.
        is_integer: Whether numbers are rounded to integers; not in the file.
    """

    name: str
    default: Any
    values: tuple[Any, ...] = ()
    low: float | None = None
    high: float | None = None
    log: bool = False
    is_integer: bool = Field(default=False, exclude=True)

    def value(self, share: float) -> Any:
        """Return the value at a position in [0, 1); numbers are rounded to three digits."""
        low, high = self.low, self.high
        if low is None or high is None:
            return self.values[int(share * len(self.values))]
        number = low * (high / low) ** share if self.log else low + (high - low) * share
        return round(number) if self.is_integer else float(f"{number:.3g}")


class Setting(Strict):
    """One setting of a method, as a mean over the seeds.

    Attributes:
        values: Values of the searched dimensions; empty for the default setting.
        trial_ids: Its trials, one for each seed.
        val_accuracy: Accuracy on the validation images; `None` unless all trials are done.
        train_flops_effective, inference_flops_effective: Cost of the setting.
        reason: Why it could not be chosen; empty if it could.
        label, label_with_rate: The method with these values, without those of the recipe, or with its learning rate;
            not in the file.
    """

    values: dict[str, Any]
    trial_ids: tuple[str, ...]
    val_accuracy: Share | None = None
    train_flops_effective: Share | None = None
    inference_flops_effective: Share | None = None
    reason: str = ""
    label: str = Field(default="", exclude=True)
    label_with_rate: str = Field(default="", exclude=True)


class TunedMethod(Strict):
    """One method.

    Attributes:
        method: The method as typed.
        space: What was searched.
        settings: The settings that were tried; as many as the budget.
        chosen: Index of the chosen setting; `None` if no setting could be chosen.
        label: The method with the chosen values, as the final comparison names it; empty if no setting was chosen.
    """

    method: str
    space: tuple[Dimension, ...]
    settings: tuple[Setting, ...]
    chosen: Annotated[int, Ge(0)] | None = None
    label: str = ""

    @model_validator(mode="after")
    def _has_the_chosen_setting(self) -> Self:
        if self.chosen is not None and self.chosen >= len(self.settings):
            raise ValueError(f"{self.method} has no setting {self.chosen}")
        return self


class Tuned(Strict):
    """The content of `tune.json`.

    Attributes:
        budget: Number of settings of each method.
        search_seed: Seed of the settings.
        seeds: Seeds of the trials of each setting.
        task, model, preset: The trials' task, model and preset.
        validation_images, split_seed: The validation split: this many training images, stratified by class.
        rule: How a setting is chosen.
        command: The command of the final comparison; empty if a method has no chosen setting.
    """

    version: Literal[1] = 1
    budget: Annotated[int, Ge(1)]
    search_seed: Annotated[int, Ge(0)]
    seeds: tuple[int, ...]
    task: str
    model: str
    preset: str
    validation_images: Annotated[int, Ge(1)]
    split_seed: Annotated[int, Ge(0)]
    rule: str = RULE
    methods: tuple[TunedMethod, ...]
    command: str = ""


def write_tuned(folder: Path, content: Tuned) -> Path:
    """Write `tune.json` atomically, and return its path."""
    files.write(folder / NAME, content.model_dump_json(indent=2) + "\n")
    return folder / NAME


def read_tuned(folder: Path) -> Tuned | None:
    """Return the content of `tune.json`; `None` if it does not exist.

    Raises:
        UsageError: The file is damaged; one line.
    """
    path = folder / NAME
    if not path.exists():
        return None
    try:
        tuned: Tuned = validate(Tuned, files.read_json(path.read_bytes()), f"{path} is damaged")
    except ValueError as error:
        raise UsageError(f"{path} is damaged: {error}") from error
    return tuned


def choose(settings: Sequence[Setting]) -> tuple[tuple[Setting, ...], int | None]:
    """Return the settings with the reasons why some cannot be chosen, and the index of the chosen one (`RULE`).

    The first setting is the default. If it is not done, the cost has no limit.
    """
    default, judged = settings[0], []
    for setting in settings:
        reason = "" if setting.val_accuracy is not None else "not all of its trials are done"
        for column in COSTS:
            cost, limit = getattr(setting, column), getattr(default, column)
            known = not reason and None not in (default.val_accuracy, cost, limit)
            if known and cost > TOLERANCE * limit:
                reason = f"its {column} are {cost / limit:.3g} times those of the default setting"
        judged.append(setting.model_copy(update={"reason": reason}))
    free = [index for index, setting in enumerate(judged) if not setting.reason]
    return tuple(judged), max(free, key=lambda index: (judged[index].val_accuracy or 0.0, -index), default=None)


def searchable(choice: MethodChoice) -> Mapping[str, Parameter]:
    """Return what declares a search: fields of the recipe as `recipe.FIELD`, and parameters of the method."""
    typed = {**choice.also_typed(), **choice.declared}
    return {name: parameter for name, parameter in typed.items() if search_of(parameter.annotation)}


def space(
    choice: MethodChoice, dense: TrialSpec, only: Sequence[str] = (), overrides: Sequence[str] = ()
) -> tuple[Dimension, ...]:
    """Return the search space of a method.

    Args:
        choice: The method. Its typed parameters are fixed.
        dense: A trial of dense training, with the recipe, the task and the preset, which decide default values.
        only: Names to search; empty for all that the method declares.
        overrides: Fields of the recipe that were typed for all methods.

    Raises:
        UsageError: A value is both typed and searched, or nothing is left to search.
    """
    known = searchable(choice)
    defaults = {RECIPE + name: value for name, value in dense.recipe.items()}
    defaults |= choice.parameters(dense.task_name, dense.preset)
    names = [name for name in known if name in only or not only]
    if not names:
        raise UsageError(f"--search {','.join(only)}: {choice} has none of these; it can search {', '.join(known)}")
    if typed := {*choice.typed, *(RECIPE + field for field in overrides)}.intersection(names):
        raise UsageError(
            f"{choice}: {min(typed)} is typed and searched at once; leave it out, or restrict the search by --search"
        )
    return tuple(_dimension(choice.name, name, known[name].annotation, defaults[name]) for name in names)


def _dimension(method: str, name: str, annotation: Any, default: Any) -> Dimension:
    search, plain = search_of(annotation), typing.get_args(annotation)[0]
    assert search is not None
    values = (False, True) if plain is bool else typing.get_args(plain) if typing.get_origin(plain) is Literal else ()
    unit = default if search.relative else 1.0
    if (search.low is None and not values) or type(unit) not in (int, float) or unit <= 0:
        raise UsageError(f"{method}: {name} cannot be searched over {search.in_words()}; its default is {default}")
    if search.low is None or search.high is None:
        return Dimension(name=name, default=default, values=values)
    low, high = search.low * unit, search.high * unit
    return Dimension(name=name, default=default, low=low, high=high, log=search.log, is_integer=plain is int)


def draw(choice: MethodChoice, dimensions: Sequence[Dimension], budget: int, seed: int) -> list[dict[str, Any]]:
    """Return the different settings that a budget allows: the default one, which is empty, and then the sequence's.

    Settings that the method refuses are left out.

    Args:
        choice: The method, with typed parameters.
        budget: Number of settings.
        seed: Seed of the sequence, from 0.

    Raises:
        UsageError: The space has fewer settings.
    """
    # The process that waits for the trials uses neither these libraries nor their memory.
    import numpy as np
    from scipy.stats import qmc

    # The stream of RandomState never changes, that of default_rng may. The first dimension has one shift in every
    # space. The first point of the sequence, zero, is left out.
    shift = np.random.RandomState(seed).random_sample(len(dimensions))
    points = qmc.Halton(len(dimensions), scramble=False).random(1 + budget * MOST_POINTS)[1:]
    drawn: dict[str, dict[str, Any]] = {canonical_json({axis.name: axis.default for axis in dimensions}): {}}
    for point in ((points + shift) % 1.0).tolist():
        if len(drawn) == budget:
            break
        values = {axis.name: axis.value(share) for axis, share in zip(dimensions, point, strict=True)}
        with contextlib.suppress(UsageError):  # the method refuses them
            choice.with_typed(values).build()
            drawn.setdefault(canonical_json(values), values)
    if len(drawn) < budget:
        names = ", ".join(axis.name for axis in dimensions)
        raise UsageError(f"--budget {budget}: {choice} has only {len(drawn)} different settings of {names}")
    return list(drawn.values())
