"""What may be typed as a parameter of a method, model or recipe: the signature of what it configures says so."""

from __future__ import annotations

import dataclasses
import inspect
import math
import re
import sys
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from suite.brackets import CLOSING, OPENING, split
from suite.errors import UsageError

REQUIRED = inspect.Parameter.empty
CONTEXT = ("num_classes", "input_shape", "in_channels")
"""Arguments of a model that the task gives; they cannot be typed."""


@dataclass(frozen=True)
class Parameter:
    """One keyword of a class or function. `default` is `REQUIRED` where it has none."""

    name: str
    annotation: Any
    default: Any


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


def resolve(thing: Any, *layers: Mapping[str, Any], known: Mapping[str, Parameter] | None = None) -> dict[str, Any]:
    """Return every parameter's value, in declaration order: declared defaults, overridden by each layer in turn.

    Args:
        thing: The class or function.
        layers: Values by parameter; later ones override earlier ones.
        known: What `declared(thing)` returned, if the caller has it.

    Raises:
        UsageError: A layer has a value for something that is not a parameter.
    """
    known = declared(thing) if known is None else known
    values = {name: parameter.default for name, parameter in known.items() if parameter.default is not REQUIRED}
    for layer in layers:
        if unknown := set(layer) - set(known):
            raise UsageError(f"{thing.__name__} has no parameter {', '.join(sorted(map(str, unknown)))}")
        values |= layer
    return {name: normal(values[name], known[name].annotation) for name in known if name in values}
