"""Check the class of a method when it is defined: its parameters, its constants and the arguments of its hooks.

Without these checks, an attribute could become or miss becoming a parameter without a message. A hook with wrong
arguments would fail only in the middle of a trial.
"""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import sys
import typing
from collections.abc import Mapping
from typing import Any, ClassVar

from suite.errors import nearest
from suite.parameters import can_be_set, check, declared
from suite.recipe import Tuning

SIMILAR = 0.75
"""How similar the name of a method is to that of a hook with the same arguments which is probably meant."""


def check_class(cls: type, base: type, context: type) -> None:
    """Check a new class that derives from `base`.

    Args:
        cls: The new class.
        base: Class that defines the hooks. Constants that it declares may be replaced without an annotation.
        context: Class of the argument `ctx` of the hooks, a dataclass.

    Raises:
        TypeError: One line that names class and attribute, and says what to write instead.
    """
    _check_values(cls, base)
    _check_annotations(cls, base)
    hooks = {name: _function(value) for name, value in vars(base).items() if inspect.isfunction(_function(value))}
    for name, function in ((name, _function(value)) for name, value in vars(cls).items()):
        if not inspect.isfunction(function):
            continue
        if name in hooks:
            _check_arguments(cls, name, function, hooks[name], context)
        elif not name.startswith("_"):
            alike = [hook for hook, one in hooks.items() if _arguments(one) == _arguments(function)]
            if difflib.get_close_matches(name, alike, 1, SIMILAR):  # nothing would ever call it
                raise TypeError(
                    f"{cls.__name__}.{name} is not a hook{nearest(name, alike)} A helper may be called _{name}"
                )


def check_facts(cls: type) -> None:
    """Check the class variables that name parameters, when the class has its parameters.

    Args:
        cls: A subclass of `suite.method.Method`, which explains `prunes`, `shrinks_network`, `random_twin` and
            `tuning`.

    Raises:
        TypeError: One line that names class, class variable and parameter, and says what is allowed.
    """
    for name in ("prunes", "shrinks_network"):
        fact: Any = vars(cls).get(name, False)
        if not isinstance(fact, bool):
            raise TypeError(f"{cls.__name__}.{name} is {fact!r}; allowed: True, False")
    tuning: Any = vars(cls).get("tuning", ())
    if not (isinstance(tuning, (tuple, list)) and all(isinstance(item, Tuning) for item in tuning)):
        raise TypeError(f"{cls.__name__}.tuning is {tuning!r}; write a tuple of suite.recipe.Tuning")
    values: Any = cls.random_twin  # type: ignore[attr-defined]
    where = f"{cls.__name__}.random_twin"
    if not isinstance(values, Mapping):
        raise TypeError(f"{where} is {values!r}; write a dictionary of values by parameter")
    for key in values:
        if key not in declared(cls):
            raise TypeError(f"{where}: {cls.__name__} has no parameter '{key}'{nearest(str(key), declared(cls))}")
    try:
        if values:  # without values, types of parameters that are defined later need not be known yet
            check(cls, values, prefix=f"{where}: ")
    except ValueError as error:
        raise TypeError(str(error)) from None


def _check_values(cls: type, base: type) -> None:
    """Refuse values without an annotation, and values in place of hooks."""
    annotations = inspect.get_annotations(cls)
    for name in {*vars(cls), *annotations} & {field.name for field in dataclasses.fields(base)}:  # type: ignore[arg-type]
        raise TypeError(
            f"{cls.__name__}.{name} would replace the parameter {name} of every method; rename it, or return another "
            "default value from defaults()"
        )
    for name, value in vars(cls).items():
        if name.startswith("_") or _is_member(value):
            continue
        if callable(getattr(base, name, None)) and name not in annotations:
            raise TypeError(f"{cls.__name__}.{name} is {value!r}, which replaces the hook {name}(); rename it")
        if name not in annotations and name not in vars(base):
            kind = "float | None" if value is None else type(value).__name__
            parameter = f"'{name}: {kind} = {value!r}' for a parameter, or " if can_be_set(type(value)) else ""
            raise TypeError(
                f"{cls.__name__}.{name} has no type annotation, so it is not a parameter; write "
                f"{parameter}'{name}: ClassVar[{kind}] = ...' for a constant"
            )


def _check_annotations(cls: type, base: type) -> None:
    """Refuse annotations that would make a hook, a constant of the base class or state a parameter."""
    for name, annotation in inspect.get_annotations(cls).items():
        try:
            evaluated = _evaluated(cls, annotation)
        except NameError:  # the type is defined later; an unknown type is reported when the parameters are read
            continue
        constant = evaluated is ClassVar or typing.get_origin(evaluated) is ClassVar
        if callable(getattr(base, name, None)):
            kind = "constant" if constant else "parameter"
            raise TypeError(f"{cls.__name__}.{name} is a {kind} that would replace the hook {name}(); rename it")
        if constant:
            continue
        if name in vars(base):
            raise TypeError(
                f"{cls.__name__}.{name} is annotated, which would make it a parameter, but it is a constant of "
                f"{base.__name__}; write '{name} = ...' or annotate it as ClassVar[...]"
            )
        if name.startswith("_") or not can_be_set(evaluated):
            shown = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
            why = (
                "its name is private"
                if name.startswith("_")
                else f"the command line cannot set a value of type {shown}"
            )
            raise TypeError(
                f"{cls.__name__}.{name} is annotated, which makes it a parameter, but {why}; create state in setup(), "
                f"as self.{name} = ..., and annotate a constant as ClassVar[...]"
            )


def _check_arguments(cls: type, name: str, function: Any, hook: Any, context: type) -> None:
    """Refuse a hook that does not accept the hook's arguments, or that takes one attribute in place of the context."""
    wanted, taken = _arguments(hook), _arguments(function)
    try:
        inspect.signature(function).bind(*wanted)
    except TypeError:
        raise TypeError(
            f"{cls.__name__}.{name}({', '.join(taken)}) has other arguments than the hook {name}({', '.join(wanted)})"
        ) from None
    as_context = taken[wanted.index("ctx") :][:1] if "ctx" in wanted else []
    if as_context and as_context[0] in {field.name for field in dataclasses.fields(context)}:
        raise TypeError(
            f"{cls.__name__}.{name}({', '.join(taken)}) gets the context as '{as_context[0]}'; write "
            f"{name}({', '.join(wanted)}) and use ctx.{as_context[0]}"
        )


def _arguments(function: Any) -> list[str]:
    return list(inspect.signature(function).parameters)


def _evaluated(cls: type, annotation: Any) -> Any:
    module = sys.modules.get(cls.__module__)
    return eval(annotation, vars(module), {**vars(cls)}) if isinstance(annotation, str) else annotation


def _is_member(value: Any) -> bool:
    return isinstance(value, type) or inspect.isroutine(value) or hasattr(value, "__get__")


def _function(value: Any) -> Any:
    return value.__func__ if isinstance(value, (classmethod, staticmethod)) else value
