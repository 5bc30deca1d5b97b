"""Methods and models as a command line names them: a registered class or function with values for its parameters.

    dense,sdgp[n=2,m=4]            a comma list; commas inside brackets separate parameters
    sdgp[mode=random|magnitude]    a grid: one choice per alternative, in the order of declaration
    net[milestones=(0.5,0.75)]     parentheses or brackets around a value protect its commas
    torchvision/vgg11              a member of a collection (`suite.registry.register_collection`)

A choice looks up its class in the registry and reads the declared parameters, each once. `suite.parameters` knows the
types.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

from suite import registry
from suite.errors import UsageError, nearest
from suite.parameters import REQUIRED, Parameter, allowed, check, convert, declared, resolve, show, split
from suite.recipe import FOR_ONE_METHOD, Recipe

if TYPE_CHECKING:  # listing and describing tasks must not wait for torch
    from torch import nn

MAX_CHOICES = 10_000  # choices in one grid
RECIPE = "recipe."  # prefix of a recipe field that is typed for one method


@dataclass(frozen=True)
class Request:
    """One item of a list, as text.

    Attributes:
        text: Item as typed.
        name: Name of a method, task or model; `COLLECTION/NAME` for a member of a collection.
        alternatives: Typed values by key; several for a grid.
    """

    text: str
    name: str
    alternatives: dict[str, list[str]] = field(default_factory=dict)


def read_list(text: str, option: str) -> list[Request]:
    """Read a comma-separated list of `name` or `name[key=value,...]`.

    Args:
        text: Text as typed.
        option: Name of the option for error messages.

    Raises:
        UsageError: The text does not have this syntax.
    """
    try:
        return [_read_item(item) for item in split(text)]
    except UsageError as error:
        raise UsageError(f"{option} {error}") from None


def _read_item(item: str) -> Request:
    matched = re.fullmatch(r"((?:\w+/)?[\w-]+)(?:\[(.*)\])?", item, flags=re.DOTALL)
    if matched is None:
        raise UsageError(f"'{item}': expected name or name[key=value,...]")
    name, inside = matched.groups()
    if inside is None:
        return Request(item, name)
    alternatives: dict[str, list[str]] = {}
    for assignment in split(inside):
        key, equals, value = (part.strip() for part in assignment.partition("="))
        values = split(value, "|")
        if not key or not equals or not all(values):
            before = next(reversed(alternatives), "")
            hint = f"; several values need parentheses: {before}=(A,B)" if before else ""
            raise UsageError(f"'{item}': '{assignment}' is not key=value{hint}")
        if key in alternatives:
            raise UsageError(f"'{item}': {key} is given twice")
        alternatives[key] = values
    return Request(item, name, alternatives)


@dataclass(frozen=True)
class Choice:
    """A registered class or function with the values that were typed for its parameters.

    Attributes:
        name: Registered name.
        typed: Values by parameter, in declaration order.
        definition: The registered class or function.
    """

    kind: ClassVar[str] = ""

    name: str
    typed: Mapping[str, Any] = field(default_factory=dict)
    definition: Any = field(default=None, repr=False, compare=False)

    @property
    def variant(self) -> str:
        """The typed parameters as text: `k=v`, joined by commas."""
        return ",".join(f"{key}={show(value)}" for key, value in self.typed.items())

    @functools.cached_property
    def declared(self) -> Mapping[str, Parameter]:
        """The declared parameters by name."""
        return declared(self.definition)

    def __str__(self) -> str:
        return f"{self.name}[{self.variant}]" if self.typed else self.name

    @classmethod
    def read(cls, text: str) -> Self:
        """Read exactly one `name[key=value,...]`.

        Raises:
            UsageError: `text` is a list or a grid, its name is not registered, or `expand` refuses a parameter.
        """
        requests = read_list(text, cls.kind)
        if len(requests) != 1:
            raise UsageError(f"{cls.kind} '{text}': expected one, not a list")
        choices = cls.expand(requests[0])
        if len(choices) != 1:
            raise UsageError(f"{cls.kind} '{text}': expected one, not a grid of {len(choices)}")
        return choices[0]

    @classmethod
    def expand(cls, request: Request, definition: Any = None) -> list[Self]:
        """Return every choice of a request's grid.

        The last declared parameter varies fastest, whatever the order of the typed keys.

        Args:
            request: A name with the alternatives that were typed for each parameter.
            definition: The class or function (default: the registered one).

        Raises:
            UsageError: There is no such parameter, or its type does not allow the value.
        """
        definition = definition or registry.get(cls.kind, request.name)
        known = {**declared(definition), **cls.also_typed()}
        for key in request.alternatives:
            if key not in known:
                end = nearest(key, known) if known else "; it takes none"
                raise UsageError(f"{request.text}: {request.name} has no parameter '{key}'{end}")
        for key, parameter in declared(definition).items():
            if parameter.default is REQUIRED and key not in request.alternatives:
                raise UsageError(f"{request.text}: {request.name} needs {key}: {allowed(parameter.annotation)}")
        grid = []
        for key, parameter in known.items():
            if key in request.alternatives:
                try:
                    values = [convert(text, parameter.annotation, key) for text in request.alternatives[key]]
                except UsageError as error:
                    raise UsageError(f"{request.text}: {error}") from None
                grid.append([(key, value) for value in values])
        if (size := math.prod(map(len, grid))) > MAX_CHOICES:
            raise UsageError(f"{request.text}: a grid of {size:,} choices; the largest allowed is {MAX_CHOICES:,}")
        return [cls(request.name, dict(values), definition) for values in itertools.product(*grid)]

    @classmethod
    def also_typed(cls) -> Mapping[str, Parameter]:
        """Return what brackets may contain besides declared parameters."""
        return {}

    def canonical(self, *layers: Mapping[str, Any]) -> Self:
        """Return the choice without values that equal the defaults, so that one network or task has one name.

        Args:
            layers: Defaults by parameter that override the declared ones, the last one first.
        """
        defaults = {key: (type(value), value) for key, value in self._values(*layers).items()}  # 1 is not `true`
        typed = {key: value for key, value in self.typed.items() if defaults.get(key) != (type(value), value)}
        return replace(self, typed=typed)

    def _values(self, *layers: Mapping[str, Any]) -> dict[str, Any]:
        return resolve(self.definition, *layers)

    def _construct(self, label: str, values: Mapping[str, Any]) -> Any:
        """Call the definition.

        Raises:
            UsageError: It raised a `ValueError`. For a plugin, any exception counts.
        """
        try:
            return self.definition(**values)
        except Exception as error:
            if message := self._refusal(error):
                raise UsageError(f"{label}: {message}") from error
            raise

    def _refusal(self, error: Exception) -> str:
        """Return a message for the user about a failed constructor; empty for an error of the project's own."""
        if isinstance(error, (ValueError, UsageError)):
            return " ".join(str(error).removeprefix(f"{self.name}: ").split())  # libraries write several lines
        # With these messages, torch reports too little memory and a size beyond 64 bits.
        if isinstance(error, (MemoryError, OverflowError)) or "allocate" in str(error) or "verflow" in str(error):
            return "does not fit into memory"
        if registry.is_own(self.kind, self.name):
            return ""
        place = registry.fault_in_plugin(error)
        return f"its constructor raises {type(error).__name__}: {error}" + (f" ({place})" if place else "")


class MethodChoice(Choice):
    """A method with the values typed for its parameters and for fields of the recipe.

    `sdgp[n=2,recipe.learning_rate=0.1]` changes the learning rate for SDGP alone. Only the fields `FOR_ONE_METHOD` can
    be typed like this.
    """

    kind = "method"

    @classmethod
    def also_typed(cls) -> Mapping[str, Parameter]:
        """Return the fields of the recipe that can be typed for one method, as `recipe.FIELD`."""
        fields = declared(Recipe)
        return {f"{RECIPE}{name}": fields[name] for name in FOR_ONE_METHOD}

    @property
    def recipe_fields(self) -> dict[str, Any]:
        """The fields of the recipe that were typed for this method."""
        return {name.removeprefix(RECIPE): value for name, value in self.typed.items() if name.startswith(RECIPE)}

    @property
    def typed_parameters(self) -> dict[str, Any]:
        """The typed values of the method's parameters, without fields of the recipe."""
        return {name: value for name, value in self.typed.items() if not name.startswith(RECIPE)}

    def with_typed(self, values: Mapping[str, Any]) -> Self:
        """Return the choice with further typed values, in the order of declaration."""
        typed = {**self.typed, **values}
        order = (*self.declared, *self.also_typed())
        return replace(self, typed={name: typed[name] for name in order if name in typed})

    def parameters(self, task: str, preset: str) -> dict[str, Any]:
        """Return the value of every parameter on a task.

        Typed values override the method's defaults for the task and preset, which override the declared defaults.
        """
        return self._values(self.definition.defaults(task, preset), self.typed_parameters)

    def build(self, parameters: Mapping[str, Any] | None = None, label: str = "") -> Any:
        """Construct the method.

        Args:
            parameters: Values that replace the typed ones. The other parameters keep their declared defaults.
            label: Name of the method in errors (default: the choice as text).

        Raises:
            UsageError: The constructor raised a `ValueError`. For a method of a plugin, any exception counts.
        """
        values = self._values(self.typed_parameters if parameters is None else parameters)
        return self._construct(label or str(self), values)


class TaskChoice(Choice):
    """A task with the parameters that were typed for it."""

    kind = "task"

    def parameters(self, preset: str, recipe: str = "") -> dict[str, Any]:
        """Return the value of every parameter in a preset, or with a named recipe (`Task.defaults`)."""
        return self._values(self.definition.defaults(preset, recipe), self.typed)

    def build(self, parameters: Mapping[str, Any] | None = None) -> Any:
        """Construct the task.

        Args:
            parameters: Values that replace the typed ones. The other parameters keep their declared defaults.

        Raises:
            UsageError: The constructor raised a `ValueError`. For a task of a plugin, any exception counts.
        """
        values = self._values(self.typed if parameters is None else parameters)
        try:
            check(self.definition, values)
        except ValueError as error:
            raise UsageError(f"{self}: {error}") from None
        return self._construct(str(self), values)


class ModelChoice(Choice):
    """A model with the parameters that were typed for it."""

    kind = "model"

    def parameters(self) -> dict[str, Any]:
        """Return the value of every parameter."""
        return self._values(self.typed)

    def build(self, input_shape: tuple[int, int, int], num_classes: int) -> nn.Module:
        """Construct the network for images of shape (C, H, W).

        The model receives `num_classes`, `input_shape` and `in_channels` as far as it declares them.

        Raises:
            UsageError: The function refuses the parameters, needs more memory than there is, or does not return a
                module with parameters. For a model of a plugin, any exception counts.
        """
        import torch  # listing and describing do not need torch

        given = {"num_classes": num_classes, "input_shape": input_shape, "in_channels": input_shape[0]}
        accepted = inspect.signature(self.definition).parameters
        given = {name: value for name, value in given.items() if name in accepted}
        model = self._construct(str(self), {**self.typed, **given})
        if not isinstance(model, torch.nn.Module):
            raise UsageError(f"{self}: its function returned {type(model).__name__}, not a torch.nn.Module")
        if not any(True for _ in model.parameters()):
            raise UsageError(f"{self}: the model has no parameters to train")
        return model

    def check_size(self, input_shape: tuple[int, int, int], num_classes: int) -> None:
        """Check that the weights fit into this machine's memory, before they are allocated.

        Without this check, the kernel would kill the command without a message. A network that cannot be built on
        torch's `meta` device is not checked.

        Raises:
            UsageError: The weights alone are larger than the memory.
        """
        larger = (
            isinstance(value, (int, float)) and isinstance(default, (int, float)) and value > default
            for value, default in ((value, self.declared[key].default) for key, value in self.typed.items())
        )
        if not any(larger) or not hasattr(os, "sysconf"):
            return  # no parameter exceeds its default; the first use of `meta` takes seconds. Windows has no `sysconf`
        import torch  # as in `build`

        with torch.device("meta"):
            try:
                model = self.build(input_shape, num_classes)
            except Exception:  # `build` on the real device reports the error
                return
        size = sum(
            tensor.numel() * tensor.element_size()
            for tensor in model.parameters()
            if not torch.nn.parameter.is_lazy(tensor)
        )
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        if size > memory:
            gib = 2**30
            raise UsageError(
                f"{self}: does not fit into memory: the weights need {size / gib:,.0f} GiB, this machine has "
                f"{memory / gib:,.0f} GiB"
            )


def build_method(name: str, parameters: Mapping[str, Any], label: str = "") -> Any:
    """Construct a registered method, with the arguments and errors of `MethodChoice.build`."""
    return MethodChoice(name, definition=registry.get("method", name)).build(parameters, label or name)


def build_model(text: str, input_shape: tuple[int, int, int], num_classes: int) -> nn.Module:
    """Construct the network that `text` (`resnet9[width=0.25]`) names, with the errors of `ModelChoice.build`."""
    return ModelChoice.read(text).build(input_shape, num_classes)


def build_task(name: str, parameters: Mapping[str, Any]) -> Any:
    """Construct a registered task, with the errors of `TaskChoice.build`."""
    return TaskChoice(name, definition=registry.get("task", name)).build(parameters)
