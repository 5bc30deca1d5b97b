"""Parameters of methods, models and recipes: their types, bounds and values, read from signatures.

A parameter is declared once, as an annotated class attribute or a keyword of a function, with its bounds next to it:

    at: Annotated[float, Interval(gt=0, le=1)] = 0.5

`declared` reads such declarations. `convert` reads typed text by them, `check` checks values given in Python, and
`allowed` describes them. Bounds are those of the package `annotated-types` (`Ge`, `Gt`, `Le`, `Lt`,
`Interval`) or of `pydantic.Field`; pydantic checks them. A text next to the bounds is added to error messages.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
import re
import sys
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from annotated_types import Ge, GroupedMetadata, Gt, Le, Lt, MultipleOf

from suite.brackets import CLOSING, OPENING, split
from suite.errors import UsageError
from suite.files import canonical_json

REQUIRED = inspect.Parameter.empty
CONTEXT = ("num_classes", "input_shape", "in_channels")
"""Arguments of a model that the task supplies; they cannot be typed."""
LISTED_LAST = types.MappingProxyType({"listed": "last"})
"""Metadata of a dataclass's field that its subclasses inherit, and that is listed after their own."""


@dataclass(frozen=True)
class Parameter:
    """A parameter of a class or function.

    Attributes:
        annotation: Type, as an object that includes the bounds.
        default: Default value, or `REQUIRED`.
    """

    name: str
    annotation: Any
    default: Any


@dataclass(frozen=True)
class Search:
    """The values among which the command `tune` chooses, declared next to a type: `Annotated[float, Search(0.1, 0.5)]`.

    Attributes:
        low, high: Smallest and largest value of a number. Without them, all values of a `Literal` or `bool` count.
        log: Whether values are spread evenly on a logarithmic scale.
        relative: Whether `low` and `high` are multiples of the default value on the task and preset.
    """

    low: float | None = None
    high: float | None = None
    log: bool = False
    relative: bool = False

    def __post_init__(self) -> None:
        low, high = (-math.inf if bound is None else bound for bound in (self.low, self.high))
        if (self.low is None) != (self.high is None) or low > high or (self.log and low <= 0):
            raise ValueError(f"{self} is not a range; low must be at most high, and above 0 with log")

    def in_words(self) -> str:
        """Return a phrase: `0.05 to 0.5, logarithmic`, `0.25 to 4 times the default, logarithmic`, `all values`."""
        bounds = "all values" if self.low is None else f"{self.low:.3g} to {self.high:.3g}"
        return f"{bounds}{' times the default' * self.relative}{', logarithmic' * self.log}"


def search_of(annotation: Any) -> Search | None:
    """Return the search that an annotation declares; `None` if it declares none."""
    metadata = typing.get_args(annotation)[1:] if typing.get_origin(annotation) is Annotated else ()
    return next((item for item in metadata if isinstance(item, Search)), None)


@functools.cache
def declared(thing: Any) -> Mapping[str, Parameter]:
    """Return the parameters of a class or function by name, in declaration order, without keywords in `CONTEXT`.

    Fields with the metadata `LISTED_LAST` come last. A dataclass in the annotation of a dataclass's field is a group,
    whose fields are declared by their own names (`takes_leaves`).

    Raises:
        UsageError: The annotation of a parameter cannot be evaluated.
    """
    fields = dataclasses.fields(thing) if dataclasses.is_dataclass(thing) else ()
    factories = {item.name: item.default_factory for item in fields}
    last = {item.name for item in fields if item.metadata == LISTED_LAST}
    parameters: dict[str, Parameter] = {}
    for name, parameter in sorted(inspect.signature(thing).parameters.items(), key=lambda one: one[0] in last):
        if name in CONTEXT or parameter.kind not in (parameter.KEYWORD_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            continue
        factory = factories.get(name)  # dataclasses.MISSING, which cannot be called, if the default is a value
        default = factory() if callable(factory) else parameter.default
        annotation = _annotation(thing, name, parameter.annotation)
        is_group = fields and dataclasses.is_dataclass(annotation)
        parameters |= declared(annotation) if is_group else {name: Parameter(name, annotation, default)}
    return types.MappingProxyType(parameters)


def _annotation(thing: Any, name: str, annotation: Any) -> Any:
    """Evaluate an annotation that is a string.

    A dataclass inherits fields. Their string annotations must be evaluated in the module that declares them.
    """
    if not isinstance(annotation, str):
        return annotation
    if dataclasses.is_dataclass(thing):
        kinds = inspect.getmro(thing)  # type: ignore[arg-type]
        declaring = next(parent for parent in kinds if name in inspect.get_annotations(parent))
        namespace = vars(sys.modules[declaring.__module__])
    else:
        namespace = (thing.__init__ if inspect.isclass(thing) else thing).__globals__
    try:
        return eval(annotation, namespace)  # no new risk: the file with the annotation is imported already
    except NameError as error:
        raise UsageError(
            f"{thing.__name__}: the type of parameter '{name}' is not defined in its module: {error}"
        ) from error


def takes_leaves(cls: Any) -> Any:
    """Let the constructor of a dataclass take fields of its groups by their own names: `Recipe(flip=False)`.

    A group is a field whose default is a dataclass. `dataclasses.replace` then takes these names too.
    """
    groups = {item.name: item.default for item in dataclasses.fields(cls) if dataclasses.is_dataclass(item.default)}
    construct = cls.__init__

    @functools.wraps(construct)
    def __init__(self: Any, **values: Any) -> None:
        for name, default in groups.items():
            if leaves := {leaf: values.pop(leaf) for leaf in vars(default) if leaf in values}:
                values[name] = dataclasses.replace(values.get(name, default), **leaves)
        construct(self, **values)

    cls.__init__ = __init__
    return cls


def check(thing: Any, values: Mapping[str, Any], prefix: str = "") -> None:
    """Check values against the declared types and bounds, and ignore names that are not declared.

    Args:
        thing: Class or function that declares the parameters.
        values: Value of each parameter by name.
        prefix: Text in front of the parameter's name in the error message, for example `recipe.`.

    Raises:
        ValueError: One line with the first parameter that is wrong, its value, and the allowed values.
    """
    for name, parameter in declared(thing).items():
        if name in values:
            _check_value(values[name], parameter.annotation, prefix + name)


def _check_value(value: Any, annotation: Any, name: str) -> None:
    if not _validator(annotation)(value):
        plain = value is None or type(value) in (bool, int, float, tuple, list)
        shown = f"'{value}'" if isinstance(value, str) else show(value) if plain else repr(value)
        raise ValueError(f"{name} is {shown}; allowed: {allowed(annotation)}")


@functools.cache
def _validator(annotation: Any) -> Callable[[Any], bool]:
    """Return a function that checks whether a value has the type and is within the bounds."""
    from pydantic import ConfigDict, TypeAdapter, ValidationError  # not needed to list or describe

    config = ConfigDict(strict=True, allow_inf_nan=False, arbitrary_types_allowed=True)
    adapter: TypeAdapter[Any] = TypeAdapter(Any if annotation is inspect.Parameter.empty else annotation, config=config)

    def is_valid(value: Any) -> bool:
        try:
            adapter.validate_python(value)
        except ValidationError:
            return False
        return True

    return is_valid


def convert(text: str, annotation: Any, name: str) -> Any:
    """Convert typed text into a value of the annotated type, and check its bounds.

    Raises:
        UsageError: `name is 'text'; allowed: ...`.
    """
    try:
        value = _convert(text.strip(), annotation)
        _check_value(value, annotation, name)
    except ValueError:
        raise UsageError(f"{name} is '{text}'; allowed: {allowed(annotation)}") from None
    return value


def _convert(text: str, annotation: Any) -> Any:
    annotation, _ = _type_and_bounds(annotation)
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Literal:
        for value in arguments:
            if show(value) == text:
                return value
        raise ValueError(text)
    if origin in (typing.Union, types.UnionType):
        # `str` accepts any text, so it must come last.
        for member in sorted(arguments, key=lambda member: member is str):
            try:
                return _convert(text, member)
            except ValueError:
                continue
        raise ValueError(text)
    if origin is tuple:
        inside = text[1:-1] if text[:1] in OPENING and text[-1:] in CLOSING else text
        parts = split(inside) if inside.strip() else []
        if len(parts) > 1 and not parts[-1]:
            parts.pop()  # drops the empty part after a last comma: Python writes a tuple of one value as `(1,)`
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
        # torch, numpy and Parquet store 64 bits. Python itself refuses more than 4,300 digits.
        if not re.fullmatch(r"[+-]?[0-9]{1,19}", text) or not -(2**63) <= int(text) < 2**63:
            raise ValueError(text)
        return int(text)
    if annotation is float:
        # JSON has no infinities. "1_0" is more likely a typing error than a number.
        if "_" in text or not math.isfinite(value := float(text)):
            raise ValueError(text)
        return value + 0.0  # turns -0.0 into 0.0, so that equal values have equal hashes
    if annotation in (None, types.NoneType):
        if text.lower() != "none":
            raise ValueError(text)
        return None
    if annotation is str:
        return text
    raise UsageError(f"a parameter of type {inspect.formatannotation(annotation)} cannot be typed")


def _type_and_bounds(annotation: Any) -> tuple[Any, list[Any]]:
    if typing.get_origin(annotation) is not Annotated:
        return annotation, []
    plain, *metadata = typing.get_args(annotation)
    return plain, [bound for item in metadata for bound in _bounds(item)]


def _bounds(item: Any) -> Iterable[Any]:
    """Yield the bounds in an item of metadata. An `Interval` or a `pydantic.Field` holds several."""
    parts = item if isinstance(item, GroupedMetadata) else getattr(item, "metadata", None) or [item]
    return [part for part in parts if isinstance(part, (Ge, Gt, Le, Lt, MultipleOf))]


def _bounds_in_words(bounds: Iterable[Any]) -> str:
    """Describe bounds after a leading space: ` from 2 to 32`, ` above 0 and at most 1`; empty without bounds."""
    found: dict[str, str] = {}
    for bound in bounds:
        (operator, limit), *_ = dataclasses.asdict(bound).items()
        found[operator] = f"{limit:,}" if isinstance(limit, int) else show(limit)
    multiple = f" that is a multiple of {found.pop('multiple_of')}" if "multiple_of" in found else ""
    if found.keys() == {"ge", "le"}:
        return f" from {found['ge']} to {found['le']}{multiple}"
    words = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}
    text = " and ".join(f"{words[operator]} {found[operator]}" for operator in words if operator in found)
    return (" of" if text.startswith("at") else "") + (f" {text}" if text else "") + multiple


def allowed(annotation: Any) -> str:
    """Describe the values that an annotation allows: `a number above 0 or none`, with the text next to its bounds."""
    words = [item for item in getattr(annotation, "__metadata__", ()) if isinstance(item, str)]
    return ", ".join([_allowed(annotation), *words])


def _allowed(annotation: Any) -> str:
    annotation, bounds = _type_and_bounds(annotation)
    if annotation == int | float:
        annotation = float
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Literal:
        return ", ".join(show(value) for value in arguments)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(allowed(member) for member in arguments)
    if origin is tuple:
        member, member_bounds = _type_and_bounds(arguments[0])
        example = {float: "(0.5,0.75)", str: "(features.0.*,fc)"}.get(member, "(1,2)")
        each = f", each{_bounds_in_words(member_bounds)}" if member_bounds else ""
        return f"a list in parentheses, like {example}{each}"
    words = {
        int: "an integer" if bounds else "an integer of at most 64 bits",
        float: "a number",
        bool: "true, false",
        str: "text",
        types.NoneType: "none",
        None: "none",
    }
    return words.get(annotation, str(annotation)) + _bounds_in_words(bounds)


def show(value: Any) -> str:
    """Return a value as a user types it."""
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (tuple, list)):
        return f"({','.join(show(item) for item in value)})"
    return str(value)


def normal(value: Any, annotation: Any) -> Any:
    """Return the normal form of a value: `1.0` for `1` if the type is float, a tuple for a list read from JSON."""
    annotation, _ = _type_and_bounds(annotation)
    if isinstance(value, (tuple, list)):
        inner = (typing.get_args(annotation) or (None,))[0]
        return tuple(normal(item, inner) for item in value)
    union = typing.get_origin(annotation) in (typing.Union, types.UnionType)
    members = [_type_and_bounds(member)[0] for member in typing.get_args(annotation)] if union else []
    is_float = annotation is float or (float in members and int not in members)
    return float(value) if is_float and isinstance(value, int) and not isinstance(value, bool) else value


def resolve(thing: Any, *layers: Mapping[str, Any]) -> dict[str, Any]:
    """Return every parameter's value, in declaration order: declared defaults, which each layer in turn overrides.

    Args:
        thing: Class or function that declares the parameters.
        layers: Values by parameter; later layers override earlier ones.

    Raises:
        UsageError: A layer has a value for a name that is not a parameter.
    """
    known = declared(thing)
    values = {name: parameter.default for name, parameter in known.items() if parameter.default is not REQUIRED}
    for layer in layers:
        if unknown := set(layer) - set(known):
            raise UsageError(f"{thing.__name__} has no parameter {', '.join(sorted(map(str, unknown)))}")
        values |= layer
    return {name: normal(values[name], known[name].annotation) for name in known if name in values}


def at_default(thing: Any, values: Mapping[str, Any]) -> list[str]:
    """Return the names of values that equal the defaults that a class or function declares."""
    defaults = resolve(thing)
    shared = [name for name in values if name in defaults]
    return [name for name in shared if canonical_json(values[name]) == canonical_json(defaults[name])]


def can_be_set(annotation: Any) -> bool:
    """Return whether the command line can set a value of this type."""
    plain, _ = _type_and_bounds(annotation)
    if typing.get_origin(plain) in (typing.Union, types.UnionType, tuple):
        return all(can_be_set(member) for member in typing.get_args(plain) if member is not Ellipsis)
    return typing.get_origin(plain) is Literal or plain in (bool, int, float, str, None, types.NoneType)


def without_lists(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return values read from JSON with tuples in place of lists, which parameters do not have."""
    return {key: _tuple(value) for key, value in data.items()}


def _tuple(value: Any) -> Any:
    return tuple(_tuple(item) for item in value) if isinstance(value, list) else value
