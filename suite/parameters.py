"""What may be typed as a parameter of a method, model or recipe: the signature of what it configures says so."""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import math
import os
import re
import sys
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from suite import registry
from suite.brackets import CLOSING, OPENING, Request, read_list, split
from suite.errors import UsageError, nearest

if TYPE_CHECKING:
    from torch import nn

REQUIRED = inspect.Parameter.empty
MOST_CHOICES = 10_000  # of a grid
CONTEXT = ("num_classes", "input_shape", "in_channels")
"""Arguments of a model that the task gives; they cannot be typed."""


@dataclass(frozen=True)
class Parameter:
    """One keyword of a class or function. `default` is `REQUIRED` where it has none."""

    name: str
    annotation: Any
    default: Any


@dataclass(frozen=True)
class Choice:
    """A name with one value for each typed key, in declaration order."""

    name: str
    typed: dict[str, Any] = field(default_factory=dict)

    @property
    def variant(self) -> str:
        """The parameters as typed: `k=v`, joined by commas."""
        return ",".join(f"{key}={show(value)}" for key, value in self.typed.items())

    def __str__(self) -> str:
        return f"{self.name}[{self.variant}]" if self.typed else self.name


def choices(request: Request, thing: Any) -> list[Choice]:
    """Every choice that a request's grid holds, typed by the signature of `thing`.

    The product runs in declaration order, the last parameter fastest, however the keys were typed.

    Raises:
        UsageError: for a key that `thing` does not have, or a value that its type does not allow.
    """
    known = declared(thing)
    for key in request.alternatives:
        if key not in known:
            end = nearest(key, known) if known else "; it takes none"
            raise UsageError(f"{request.text}: {request.name} has no parameter '{key}'{end}")
    for key, parameter in known.items():
        if parameter.default is REQUIRED and key not in request.alternatives:
            raise UsageError(f"{request.text}: {request.name} needs {key}: {allowed(parameter.annotation)}")
    grid: list[list[tuple[str, Any]]] = []
    for key, parameter in known.items():
        if key in request.alternatives:
            try:
                grid.append([(key, convert(value, parameter.annotation, key)) for value in request.alternatives[key]])
            except UsageError as error:
                raise UsageError(f"{request.text}: {error}") from None
    if (size := math.prod(map(len, grid))) > MOST_CHOICES:
        raise UsageError(f"{request.text}: a grid of {size:,}; the largest is {MOST_CHOICES:,}")
    return [Choice(request.name, dict(combination)) for combination in itertools.product(*grid)]


def read_one(text: str, kind: str) -> Choice:
    """Read exactly one `name[key=value,...]` of a kind; a grid is an error."""
    requests = read_list(text, kind)
    if len(requests) != 1:
        raise UsageError(f"{kind} '{text}': expected one, not a list")
    found = choices(requests[0], registry.get(kind, requests[0].name))
    if len(found) != 1:
        raise UsageError(f"{kind} '{text}': a grid of {len(found)}; expected one")
    return found[0]


def declared(thing: Any) -> dict[str, Parameter]:
    """The keywords that may be typed for a class or function, in declaration order."""
    fields = dataclasses.fields(thing) if dataclasses.is_dataclass(thing) else ()
    factories = {item.name: item.default_factory for item in fields}
    found = {}
    for name, parameter in inspect.signature(thing).parameters.items():
        if name in CONTEXT or parameter.kind not in (parameter.KEYWORD_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            continue
        factory = factories.get(name)  # dataclasses.MISSING, which cannot be called, where the default is a value
        default = factory() if callable(factory) else parameter.default
        found[name] = Parameter(name, _annotation(thing, name, parameter.annotation), default)
    return found


def _annotation(thing: Any, name: str, annotation: Any) -> Any:
    """The annotation as an object.

    A string is evaluated where it was written: a dataclass takes its parents' fields, whose modules have other imports.
    """
    if not isinstance(annotation, str):
        return annotation
    namespace = getattr(thing, "__globals__", None)
    for parent in inspect.getmro(thing) if inspect.isclass(thing) else ():
        if name in inspect.get_annotations(parent):
            namespace = vars(sys.modules[parent.__module__])
            break
    else:
        if inspect.isclass(thing):
            namespace = thing.__init__.__globals__
    try:
        return eval(annotation, namespace)  # the text of an annotation in a file that was imported already
    except NameError as error:
        raise UsageError(
            f"{thing.__name__}: the type of parameter '{name}' is not known where it is: {error}"
        ) from error


def convert(text: str, annotation: Any, name: str) -> Any:
    """Turn typed text into a value of the annotated type.

    Raises:
        UsageError: `name is 'text'; allowed: ...`.
    """
    try:
        return _convert(text.strip(), annotation)
    except ValueError:
        raise UsageError(f"{name} is '{text}'; allowed: {allowed(annotation)}") from None


def _convert(text: str, annotation: Any) -> Any:
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Literal:
        for value in arguments:
            if show(value) == text:
                return value
        raise ValueError(text)
    if origin in (typing.Union, types.UnionType):
        # A string takes any text, so it is the last to be asked.
        for member in sorted(arguments, key=lambda member: member is str):
            try:
                return _convert(text, member)
            except ValueError:
                continue
        raise ValueError(text)
    if origin is tuple:
        inside = text[1:-1] if text[:1] in OPENING and text[-1:] in CLOSING else text
        parts = split(inside) if inside.strip() else []
        if len(arguments) == 2 and arguments[1] is Ellipsis:
            arguments = (arguments[0],) * len(parts)
        if len(parts) != len(arguments):
            raise ValueError(text)
        return tuple(_convert(part, argument) for part, argument in zip(parts, arguments, strict=True))
    if annotation is bool:
        lowered = text.lower()
        if lowered not in ("true", "false"):
            raise ValueError(text)
        return lowered == "true"
    if annotation is int:
        # 64 bits are what torch, numpy and Parquet take; Python would fail at 4,300 digits.
        if not re.fullmatch(r"[+-]?[0-9]{1,19}", text) or not -(2**63) <= int(text) < 2**63:
            raise ValueError(text)
        return int(text)
    if annotation is float:
        # Infinities are no JSON and no hyper-parameter; "1_0" is a slip, not a number.
        if "_" in text or not math.isfinite(value := float(text)):
            raise ValueError(text)
        return value + 0.0  # -0.0 + 0.0 is 0.0: one value, one hash
    if annotation in (None, types.NoneType):
        if text.lower() != "none":
            raise ValueError(text)
        return None
    if annotation is str:
        return text
    raise UsageError(f"a parameter of type {type_name(annotation)} cannot be typed")


def allowed(annotation: Any) -> str:
    """What may be typed for an annotation, in words."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Literal:
        return ", ".join(show(value) for value in arguments)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(allowed(member) for member in arguments)
    if origin is tuple:
        return "a list in parentheses, like (0.5,0.75)" if float in arguments else "a list in parentheses, like (1,2)"
    words = {
        int: "an integer of at most 64 bits",
        float: "a number",
        bool: "true, false",
        str: "text",
        types.NoneType: "none",
        None: "none",
    }
    return words.get(annotation, str(annotation))


def type_name(annotation: Any) -> str:
    """A type as one reads it: `int`, `float or none`, `random | magnitude`."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Literal:
        return " | ".join(show(value) for value in arguments)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(type_name(member) for member in arguments)
    if annotation is types.NoneType:
        return "none"
    return (
        annotation.__name__
        if isinstance(annotation, type) and not arguments
        else str(annotation).replace("typing.", "")
    )


def show(value: Any) -> str:
    """A value as one types it."""
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (tuple, list)):
        return f"({','.join(show(item) for item in value)})"
    return str(value)


def normal(value: Any, annotation: Any) -> Any:
    """The one form of a value that has several: `1` and `1.0` for a float, a list read from JSON for a tuple."""
    if isinstance(value, (tuple, list)):
        inner = (typing.get_args(annotation) or (None,))[0]
        return tuple(normal(item, inner) for item in value)
    members = typing.get_args(annotation) if typing.get_origin(annotation) in (typing.Union, types.UnionType) else ()
    is_float = annotation is float or (float in members and int not in members)
    return float(value) if is_float and isinstance(value, int) and not isinstance(value, bool) else value


def resolve(thing: Any, *layers: Mapping[str, Any]) -> dict[str, Any]:
    """Every parameter's value: the declared defaults, overlaid by each layer in turn, in declaration order."""
    known = declared(thing)
    values = {name: parameter.default for name, parameter in known.items() if parameter.default is not REQUIRED}
    for layer in layers:
        if unknown := set(layer) - set(known):
            raise UsageError(f"{thing.__name__} has no parameter {', '.join(sorted(map(str, unknown)))}")
        values |= layer
    return {name: normal(values[name], known[name].annotation) for name in known if name in values}


def canonical(choice: Choice, thing: Any) -> Choice:
    """The choice without the values that are defaults anyway: the same network has one name."""
    known = declared(thing)
    kept = {
        key: value for key, value in choice.typed.items() if value != normal(known[key].default, known[key].annotation)
    }
    return Choice(choice.name, kept)


def build_method(name: str, parameters: Mapping[str, Any], label: str = "") -> Any:
    """An instance of a registered method.

    Raises:
        UsageError: for the constructor's `ValueError`, which is the user's: `sdgp[n=5,m=4]: n is 5; ...`; and for all
            that the constructor of a plugin's method raises.
    """
    thing = registry.get("method", name)
    values = resolve(thing, parameters)
    try:
        method = thing(**values)
    except Exception as error:
        if message := _refusal(error, "method", name):
            raise UsageError(f"{label or name}: {message}") from error
        raise
    depends_on, files = method.depends_on(), method.files()
    if not (isinstance(depends_on, (tuple, list)) and all(map(_is_text, depends_on))):
        raise UsageError(f"{label or name}: depends_on() returned {depends_on!r}, not a tuple of methods as typed")
    if not (isinstance(files, Mapping) and set(files) <= set(values) and all(map(_is_text, files.values()))):
        raise UsageError(f"{label or name}: files() returned {files!r}, not paths by parameters of the method")
    return method


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def build_model(text: str, input_shape: tuple[int, int, int], num_classes: int) -> nn.Module:
    """The network that `text` (`resnet9[width=0.25]`) names, for images (C, H, W) of a task.

    A registered model takes from the task those of `num_classes`, `input_shape` and `in_channels` that it declares.

    Raises:
        UsageError: if the text names none, or its function refuses the parameters, needs more memory than there is, or
            returns something else than a model with parameters; for a plugin's model, for all that its function raises.
    """
    from torch import nn

    choice = read_one(text, "model")
    thing = registry.get("model", choice.name)
    given = {"num_classes": num_classes, "input_shape": input_shape, "in_channels": input_shape[0]}
    accepted = inspect.signature(thing).parameters
    try:
        model = thing(**choice.typed, **{name: value for name, value in given.items() if name in accepted})
    except Exception as error:
        if message := _refusal(error, "model", choice.name):
            raise UsageError(f"{choice}: {message}") from error
        raise
    if not isinstance(model, nn.Module):
        raise UsageError(f"{choice}: its function returned {type(model).__name__}, not a torch.nn.Module")
    if not any(True for _ in model.parameters()):
        raise UsageError(f"{choice}: the model has no parameters to train")
    return model


def check_model_size(text: str, input_shape: tuple[int, int, int], num_classes: int) -> None:
    """Refuse a network whose weights alone are larger than this machine's memory, before they are drawn.

    The kernel would end the command without a word otherwise. A network that cannot be built without memory (on torch's
    device `meta`) is left to `build_model`.

    Raises:
        UsageError: with both sizes.
    """
    choice = read_one(text, "model")
    known = declared(registry.get("model", choice.name))
    larger = (
        isinstance(value, (int, float)) and isinstance(known[key].default, (int, float)) and value > known[key].default
        for key, value in choice.typed.items()
    )
    if not any(larger):
        return  # a network as it comes, or a smaller one; the first use of `meta` takes seconds
    import torch
    from torch.nn.parameter import is_lazy

    with torch.device("meta"):
        try:
            model = build_model(text, input_shape, num_classes)
        except Exception:  # `build_model` says what is wrong, where the network is built for good
            return
    size = sum(tensor.numel() * tensor.element_size() for tensor in model.parameters() if not is_lazy(tensor))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if size > memory:
        gib = 2**30
        raise UsageError(
            f"{choice}: does not fit into memory: its weights have {size / gib:,.0f} GiB, this machine has "
            f"{memory / gib:,.0f}"
        )


def _refusal(error: Exception, kind: str, name: str) -> str:
    """What a failed constructor says to the user; empty for a programming error of the project's own."""
    if isinstance(error, (ValueError, UsageError)):
        return str(error)
    # How torch says that the CPU's memory does not suffice, and that a size does not fit into 64 bits.
    if isinstance(error, (MemoryError, OverflowError)) or "allocate" in str(error) or "verflow" in str(error):
        return "does not fit into memory"
    if registry.is_own(kind, name):
        return ""
    place = registry.fault_in_plugin(error)
    return f"its constructor raises {type(error).__name__}: {error}" + (f" ({place})" if place else "")
