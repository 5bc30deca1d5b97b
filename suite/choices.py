"""Methods and models as a command line names them: a registered class or function with values for its parameters.

A choice looks up its class in the registry and reads the declared parameters, each once. `suite.parameters` knows the
types, and `suite.brackets` the syntax.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

from suite import registry
from suite.brackets import Request, read_list
from suite.errors import UsageError, nearest
from suite.parameters import REQUIRED, Parameter, allowed, check, convert, declared, normal, resolve, show
from suite.recipe import FOR_ONE_METHOD, Recipe

if TYPE_CHECKING:  # listing and describing tasks must not wait for torch
    from torch import nn

MAX_CHOICES = 10_000  # choices in one grid
RECIPE = "recipe."  # prefix of a recipe field that is typed for one method


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
        defaults = {key: normal(value, self.declared[key].annotation) for key, value in self._values(*layers).items()}
        return replace(self, typed={key: one for key, one in self.typed.items() if not _is_default(key, one, defaults)})

    def _values(self, *layers: Mapping[str, Any]) -> dict[str, Any]:
        return resolve(self.definition, *layers)


def _is_default(key: str, value: Any, defaults: Mapping[str, Any]) -> bool:
    """Return whether a value is the default. 1 is not `true`, and a parameter without a default has none."""
    return key in defaults and type(value) is type(defaults[key]) and value == defaults[key]


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
        label = label or str(self)
        values = self._values(self.typed_parameters if parameters is None else parameters)
        try:
            method = self.definition(**values)
        except Exception as error:
            if message := _refusal(error, "method", self.name):
                raise UsageError(f"{label}: {message}") from error
            raise
        depends_on, files = method.depends_on(), method.files()
        if not (isinstance(depends_on, (tuple, list)) and all(map(_is_text, depends_on))):
            raise UsageError(f"{label}: depends_on() returned {depends_on!r}, not a tuple of methods as text")
        if not (isinstance(files, Mapping) and set(files) <= set(values) and all(map(_is_text, files.values()))):
            raise UsageError(f"{label}: files() returned {files!r}, not a mapping from parameters to paths")
        return method


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
            return self.definition(**values)
        except Exception as error:
            if message := _refusal(error, "task", self.name):
                raise UsageError(f"{self}: {message}") from error
            raise


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
        try:
            model = self.definition(**self.typed, **{name: value for name, value in given.items() if name in accepted})
        except Exception as error:
            if message := _refusal(error, "model", self.name):
                raise UsageError(f"{self}: {message}") from error
            raise
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


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _refusal(error: Exception, kind: str, name: str) -> str:
    """Return a message for the user about a failed constructor; empty for a programming error in the project itself."""
    if isinstance(error, (ValueError, UsageError)):
        return " ".join(str(error).removeprefix(f"{name}: ").split())  # libraries write several lines
    # With these messages, torch reports too little memory and a size beyond 64 bits.
    if isinstance(error, (MemoryError, OverflowError)) or "allocate" in str(error) or "verflow" in str(error):
        return "does not fit into memory"
    if registry.is_own(kind, name):
        return ""
    place = registry.fault_in_plugin(error)
    return f"its constructor raises {type(error).__name__}: {error}" + (f" ({place})" if place else "")
