"""Parameters of methods, models and recipes: their types, bounds and values, read from signatures.

A parameter is declared once, as an annotated class attribute or a keyword of a function, with its bounds next to it:

    at: Annotated[float, Interval(gt=0, le=1)] = 0.5

`declared` reads such declarations. `convert` reads typed text by them, `check` checks values given in Python, and
`allowed` describes them. Bounds are those of the package `annotated-types` (`Ge`, `Gt`, `Le`, `Lt`,
`Interval`) or of `pydantic.Field`; pydantic checks them. A text next to the bounds is added to error messages.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import functools
import inspect
import math
import re
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from annotated_types import Ge, GroupedMetadata, Gt, Le, Lt, MultipleOf

from suite.errors import UsageError, nearest
from suite.files import canonical_json

OPENING, CLOSING = "[(", "])"
REQUIRED = inspect.Parameter.empty
CONTEXT = ("num_classes", "input_shape", "in_channels")
"""Arguments of a model that the task supplies; they cannot be typed."""
LISTED_LAST = types.MappingProxyType({"listed": "last"})
"""Metadata of a dataclass's field that its subclasses inherit, and that is listed after their own."""
SIMILAR = 0.75
"""How similar the name of a method is to that of a hook with the same arguments which is probably meant."""
_WORDS = {"none": None, "true": True, "false": False}


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
    constructor = thing if fields or not inspect.isclass(thing) else thing.__init__  # fields have their class's names
    try:
        annotations = typing.get_type_hints(constructor, include_extras=True)
    except NameError as error:
        raise UsageError(f"{thing.__name__}: a type is not defined in its module: {error}") from error
    parameters: dict[str, Parameter] = {}
    for name, parameter in sorted(inspect.signature(thing).parameters.items(), key=lambda item: item[0] in last):
        if name in CONTEXT or parameter.kind not in (parameter.KEYWORD_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            continue
        factory = factories.get(name)  # dataclasses.MISSING, which cannot be called, if the default is a value
        default = factory() if callable(factory) else parameter.default
        annotation = annotations.get(name, Any)
        is_group = fields and dataclasses.is_dataclass(annotation)
        parameters |= declared(annotation) if is_group else {name: Parameter(name, annotation, default)}
    return types.MappingProxyType(parameters)


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


def check_class(cls: Any, base: Any) -> None:
    """Check a new class of parameters and hooks, a dataclass that derives from `base`.

    Without this, an attribute could become or miss becoming a parameter without a message, a misspelt hook would never
    be called, and a hook with wrong arguments would fail only in the middle of a trial.

    Raises:
        TypeError: One line that names class and attribute.
        UsageError: The annotation of a parameter cannot be evaluated.
    """
    known, fields = declared(cls), {field.name for field in dataclasses.fields(base)}
    annotations = inspect.get_annotations(cls)
    signatures = {name: inspect.signature(hook) for name, hook in inspect.getmembers(base, inspect.isfunction)}
    for name, value in ({**dict.fromkeys(annotations), **vars(cls)}).items():
        where, constant = f"{cls.__name__}.{name}", "; annotate a constant as ClassVar[...]"
        is_member = isinstance(value, type) or inspect.isroutine(value) or hasattr(value, "__get__")
        is_own_parameter = name in annotations and name in known
        if name in fields or (hasattr(base, name) and is_own_parameter) or (name in signatures and not is_member):
            raise TypeError(f"{where} would replace {base.__name__}.{name}; rename it{constant * is_own_parameter}")
        if is_own_parameter and (name.startswith("_") or not can_be_set(known[name].annotation)):
            kind = inspect.formatannotation(known[name].annotation)
            raise TypeError(
                f"{where} is annotated, but cannot be a parameter that users type (of type {kind}); create state in "
                f"setup(), as self.{name} = ...{constant}"
            )
        if name.startswith("_"):
            continue
        if not (is_member or name in annotations or hasattr(base, name)):
            raise TypeError(
                f"{where} has no type annotation, so it is not a parameter; write '{name}: {type(value).__name__} = "
                f"{value!r}' for a parameter{constant}"
            )
        if inspect.isfunction(value):
            taken = list(inspect.signature(value).parameters)
            if name in signatures:
                wanted = list(signatures[name].parameters)
                if not accepts(value, len(wanted)):
                    hook = f"{name}({', '.join(wanted)})"
                    raise TypeError(f"{where}({', '.join(taken)}) has other arguments than the hook {hook}")
            elif difflib.get_close_matches(
                name, alike := [hook for hook, item in signatures.items() if list(item.parameters) == taken], 1, SIMILAR
            ):  # nothing would ever call it
                raise TypeError(f"{where} is not a hook{nearest(name, alike)} A helper may be called _{name}")


def accepts(function: Callable[..., Any], arguments: int) -> bool:
    """Return whether a function can be called with this number of positional arguments."""
    try:
        inspect.signature(function).bind(*[None] * arguments)
    except TypeError:
        return False
    return True


def _check_value(value: Any, annotation: Any, name: str) -> None:
    from pydantic import ValidationError  # not needed to list or describe

    try:
        _validator(annotation)(value)
    except ValidationError:
        raise ValueError(f"{name} is {value!r}; allowed: {allowed(annotation)}") from None


@functools.cache
def _validator(annotation: Any) -> Callable[[Any], Any]:
    """Return a function that checks the type and the bounds of a value, and returns it in the annotated type."""
    from pydantic import ConfigDict, TypeAdapter  # not needed to list or describe

    config = ConfigDict(strict=True, allow_inf_nan=False, arbitrary_types_allowed=True)
    return TypeAdapter(annotation, config=config).validate_python


def split(text: str, separator: str = ",") -> list[str]:
    """Split text at the separators outside of brackets, and strip the parts.

    Raises:
        UsageError: Brackets are not balanced.
    """
    parts, start, opened = [], 0, ""
    for position, character in enumerate(text):
        if character in OPENING:
            opened += character
        elif character in CLOSING:
            if not opened or OPENING.index(opened[-1]) != CLOSING.index(character):
                raise UsageError(f"'{text}': the '{character}' at position {position + 1} closes nothing")
            opened = opened[:-1]
        elif character == separator and not opened:
            parts.append(text[start:position].strip())
            start = position + 1
    if opened:
        raise UsageError(f"'{text}': a '{opened[-1]}' is never closed")
    return [*parts, text[start:].strip()]


def convert(text: str, annotation: Any, name: str) -> Any:
    """Convert typed text into a value of the annotated type, and check its bounds.

    Raises:
        UsageError: `name is 'text'; allowed: ...`.
    """
    if not can_be_set(annotation):
        raise UsageError(f"{name}: a parameter of type {inspect.formatannotation(annotation)} cannot be typed")
    for value in _readings(text.strip()):
        with contextlib.suppress(ValueError):
            return _validator(annotation)(value)
    raise UsageError(f"{name} is '{text}'; allowed: {allowed(annotation)}")


def _readings(text: str) -> Iterator[Any]:
    """Yield the values that a typed text may stand for; the text itself comes last."""
    yield _scalar(text)
    with contextlib.suppress(UsageError):
        parts = split(text[1:-1] if text[:1] in OPENING and text[-1:] in CLOSING else text)
        if not parts[-1]:
            parts.pop()  # of an empty list, or after a last comma: Python writes a tuple of one value as `(1,)`
        yield from (tuple(map(_scalar, parts)), tuple(parts))
    yield text


def _scalar(text: str) -> bool | float | str | None:
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    # torch, numpy and Parquet store 64 bits. Python itself refuses more than 4,300 digits.
    if re.fullmatch(r"[+-]?[0-9]{1,19}", text) and -(2**63) <= int(text) < 2**63:
        return int(text)
    try:
        # "1_0" is more likely a typing error than a number. 0.0 turns -0.0 into 0.0: equal values have equal hashes.
        return text if "_" in text else float(text) + 0.0
    except ValueError:
        return text


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
