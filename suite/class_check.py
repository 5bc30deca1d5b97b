"""Check the class of a method when it is defined: its parameters, its constants and the arguments of its hooks.

Without these checks, an attribute could become or miss becoming a parameter without a message. A hook with wrong
arguments would fail only in the middle of a trial.
"""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import sys
import types
import typing
from collections.abc import Collection, Iterator, Mapping
from typing import Any, ClassVar

from suite.errors import nearest
from suite.parameters import can_be_set, check, declared
from suite.recipe import Tuning

MISSPELT, SIMILAR, LONG_NAME = 0.85, 0.6, 8
"""How similar a name is to that of a hook which is meant almost certainly; or to a long one, with its arguments."""


def check_class(cls: type, base: type, context: type) -> None:
    """Check a new class that derives from `base`.

    Args:
        cls: The new class.
        base: Class that defines the hooks. Constants that it declares may be replaced without an annotation.
        context: Class of the argument `ctx` of the hooks, a dataclass.

    Raises:
        TypeError: One line that names class and attribute, and says what to write instead.
    """
    mixins = [kind for kind in cls.__mro__[1:] if not issubclass(kind, base) and kind not in base.__mro__]
    for kind in (cls, *mixins):
        if kind is cls or dataclasses.is_dataclass(kind):
            _check_values(kind, base)
            _check_annotations(kind, base)
        else:  # `base` is no part of such a class, and dataclasses take no fields from it
            _check_mixin(kind, base)
        for name, function in _functions(kind):
            if "plan_version" in function.__code__.co_names:
                raise TypeError(f"{kind.__name__}.{name} uses plan_version, which has no effect; call ctx.replan()")
            if inspect.isroutine(vars(base).get(name)):
                _check_arguments(kind, name, function, base, context)
            elif not any(name in vars(parent) for parent in cls.__mro__ if parent is not kind):
                _check_spelling(kind, name, function, base, {word for parent in cls.__mro__ for word in _words(parent)})


def check_facts(cls: type) -> None:
    """Check the class variables that name parameters, when the class has its parameters.

    Args:
        cls: A subclass of `suite.method.Method`, which explains `shrinks_network`, `random_twin` and `tuning`.

    Raises:
        TypeError: One line that names class, class variable and parameter, and says what is allowed.
    """
    shrinks: Any = vars(cls).get("shrinks_network", False)
    if not isinstance(shrinks, bool):
        raise TypeError(f"{cls.__name__}.shrinks_network is {shrinks!r}; allowed: True, False")
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


def _check_mixin(mixin: type, base: type) -> None:
    """Refuse values in a class that does not derive from `base`, unless they are annotated as constants."""
    annotations = inspect.get_annotations(mixin)
    for name, value in vars(mixin).items():
        if name.startswith("_") or _is_member(value):
            continue
        if "ClassVar" not in str(annotations.get(name, "")):
            raise TypeError(
                f"{mixin.__name__}.{name} is not a parameter, because {mixin.__name__} does not derive from "
                f"{base.__name__}; derive it from {base.__name__}, or annotate a constant as ClassVar[...]"
            )


def _check_arguments(cls: type, name: str, hook: Any, base: type, context: type) -> None:
    """Refuse a hook that does not accept the hook's arguments, or that takes one attribute in place of the context."""
    wanted = list(inspect.signature(_function(vars(base)[name])).parameters)
    signature = inspect.signature(hook)
    shown, arguments = ", ".join(signature.parameters), ", ".join(wanted)
    try:
        signature.bind(*wanted)
    except TypeError:
        raise TypeError(
            f"{cls.__name__}.{name}({shown}) has other arguments than the hook {name}({arguments})"
        ) from None
    taken = list(signature.parameters)[wanted.index("ctx") :][:1] if "ctx" in wanted else []
    if taken and taken[0] in {field.name for field in dataclasses.fields(context)}:
        raise TypeError(
            f"{cls.__name__}.{name}({shown}) gets the context as '{taken[0]}'; write {name}({arguments}) and use "
            f"ctx.{taken[0]}"
        )


def _check_spelling(cls: type, name: str, function: Any, base: type, used: Collection[str]) -> None:
    """Refuse a method that is probably meant as a hook, which nothing would ever call.

    Its name is almost that of a hook, or similar with the same arguments, and no code of the class uses the name.

    Args:
        cls: The class that defines it.
        name, function: The method.
        base: Class that defines the hooks.
        used: Names of attributes that the code of the class uses.
    """
    if name.startswith("_") or name in used or sum(one is function for one in vars(cls).values()) > 1:
        return
    hooks = {hook: _function(value) for hook, value in vars(base).items() if inspect.isfunction(_function(value))}
    arguments = list(inspect.signature(function).parameters)
    for hook in difflib.get_close_matches(_plain(name), map(_plain, hooks), len(hooks), SIMILAR):
        meant = next(one for one in hooks if _plain(one) == hook)
        wanted = list(inspect.signature(hooks[meant]).parameters)
        is_close = difflib.SequenceMatcher(None, _plain(name), hook).ratio() >= MISSPELT
        # Short names prove little: a helper may be called `plans` or `step`. Few helpers take the context alone.
        like_a_hook = arguments == wanted and "ctx" in wanted and len(hook) >= LONG_NAME
        if (is_close and ("_" in meant or arguments == wanted)) or like_a_hook:
            raise TypeError(
                f"{cls.__name__}.{name} is not a hook, and nothing calls it; did you mean {meant}? A helper may be "
                f"called _{name}"
            )


def _plain(name: str) -> str:
    return name.lower().replace("_", "")


def _words(cls: type) -> Iterator[str]:
    """Yield the names of all attributes and globals that the functions and properties of a class use."""
    parts = [_function(value) for value in vars(cls).values()]
    codes = [getattr(getattr(part, "fget", part), "__code__", None) for part in parts]
    while codes:
        code = codes.pop()
        if isinstance(code, types.CodeType):
            yield from code.co_names
            codes += code.co_consts


def _evaluated(cls: type, annotation: Any) -> Any:
    module = sys.modules.get(cls.__module__)
    return eval(annotation, vars(module), {**vars(cls)}) if isinstance(annotation, str) else annotation


def _is_member(value: Any) -> bool:
    return isinstance(value, type) or inspect.isroutine(value) or hasattr(value, "__get__")


def _function(value: Any) -> Any:
    return value.__func__ if isinstance(value, (classmethod, staticmethod)) else value


def _functions(cls: type) -> Iterator[tuple[str, Any]]:
    for name, value in vars(cls).items():
        if inspect.isfunction(_function(value)):
            yield name, _function(value)
