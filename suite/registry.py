"""One lazy registry of methods, tasks, models, engines and reproductions.

A thing is registered by the decorator above it, and its file is found without being run:

    @register("method", "sdgp")
    class SDGP(Method):
        \"\"\"One line that says what it is.\"\"\"

`names` and `entries` read the decorators out of the sources (`ast`), so that listing imports no torch. `get` imports
the one module that it needs. Names come from three places: the project's own packages (`PACKAGES`), entry points of
installed packages (`ENTRY_POINTS`), and plugin files given on the command line.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib
import importlib.metadata
import importlib.util
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from suite.errors import UsageError, nearest

KINDS = ("method", "task", "model", "engine", "reproduction")
PACKAGES = {
    "method": ("methods",),
    "task": ("tasks",),
    "model": ("tasks.models",),
    "engine": ("suite.engines",),
    "reproduction": ("reproductions",),
}
ENTRY_POINTS = {
    "method": "pdt.methods",
    "task": "pdt.tasks",
    "model": "pdt.models",
    "reproduction": "pdt.reproductions",
}

Registered = TypeVar("Registered", bound=Callable[..., Any])


@dataclass(frozen=True)
class Entry:
    """Where a registered thing comes from. `origin` is a module's name, an entry point's value or a plugin's path."""

    kind: str
    name: str
    origin: str
    summary: str


_objects: dict[tuple[str, str], Any] = {}
_plugin_entries: dict[tuple[str, str], Entry] = {}


def register(kind: str, name: str) -> Callable[[Registered], Registered]:
    """Class or function decorator: make the decorated thing known as `name` of `kind`.

    Args:
        kind: one of `KINDS`. Both arguments must be literals, so that a listing can read them without running the file.
        name: lower case letters, digits, `_`; what is typed after `--methods`, `--task` or `--model`. A reproduction's
            may have `-` too; it is typed after `reproduce`, and names files.

    Raises:
        ValueError: if the kind is unknown, or another thing holds the name already.
    """
    if kind not in KINDS:
        raise ValueError(f"cannot register a '{kind}'{nearest(kind, KINDS)}")

    def decorate(thing: Registered) -> Registered:
        held = _objects.get((kind, name))
        if held is not None and (held.__module__, held.__qualname__) != (thing.__module__, thing.__qualname__):
            raise ValueError(f"{kind} '{name}' is registered twice: in {held.__module__} and in {thing.__module__}")
        _objects[kind, name] = thing
        thing.registered_name = name  # type: ignore[attr-defined]
        return thing

    return decorate


def names(kind: str) -> list[str]:
    """The names of all registered things of a kind, sorted; imports none of their modules."""
    return sorted(entries(kind))


def entries(kind: str) -> dict[str, Entry]:
    """All registered things of a kind by name; imports none of their modules."""
    found = dict(_own(kind))
    for name, entry in _installed(kind).items():
        found.setdefault(name, entry)
    for (entry_kind, name), entry in _plugin_entries.items():
        if entry_kind == kind:
            found[name] = entry
    return found


def get(kind: str, name: str) -> Any:
    """The registered class or function.

    Raises:
        UsageError: if nothing of that name is registered; the line names the nearest name that is.
    """
    if (kind, name) not in _objects:
        entry = entries(kind).get(name)
        if entry is None:
            raise UsageError(f"no {kind} is called '{name}'{nearest(name, names(kind))}")
        if ":" in entry.origin:
            module_name, attribute = entry.origin.split(":", 1)
            thing = importlib.import_module(module_name)
            for part in attribute.split("."):
                thing = getattr(thing, part)
            _objects.setdefault((kind, name), thing)
        else:
            importlib.import_module(entry.origin)
    return _objects[kind, name]


def load_plugin(path: str | Path) -> list[Entry]:
    """Run a Python file that registers methods, tasks or models, and return what it registered.

    Raises:
        UsageError: if the file is missing, raises while it runs, registers nothing, or takes a name that is held.
    """
    path = Path(path).resolve()
    if not path.is_file():
        raise UsageError(f"--plugin {path}: no such file")
    # Two plugins may have the same file name in different folders.
    module_name = f"pdt_plugin_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    if module_name in sys.modules:
        return [entry for entry in _plugin_entries.values() if entry.origin == str(path)]
    try:
        found = _read(path, str(path))
    except (OSError, ValueError, SyntaxError) as error:  # bytes that are no text, and null bytes, are a ValueError
        raise UsageError(f"--plugin {path}: is not a Python file: {error}") from error
    if not found:
        raise UsageError(f"--plugin {path}: registers nothing; put @register('method', 'name') above a class")
    for entry in found:
        if entry.name in entries(entry.kind):
            raise UsageError(f"--plugin {path}: {entry.kind} '{entry.name}' exists already; give it another name")
    # Run from its text: an import would leave a __pycache__ in the user's folder, whose name may not end in .py either.
    module = types.ModuleType(module_name)
    module.__file__ = str(path)
    sys.modules[module_name] = module
    try:
        exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), vars(module))
    except (Exception, SystemExit) as error:
        del sys.modules[module_name]
        raise UsageError(f"--plugin {path}: {type(error).__name__}: {error}") from error
    _plugin_entries.update({(entry.kind, entry.name): entry for entry in found})
    return found


@functools.cache
def _own(kind: str) -> dict[str, Entry]:
    found: dict[str, Entry] = {}
    for package in PACKAGES[kind]:
        specification = importlib.util.find_spec(package)
        if specification is None or specification.submodule_search_locations is None:
            continue
        for folder in specification.submodule_search_locations:
            for path in sorted(Path(folder).glob("*.py")):
                module = package if path.stem == "__init__" else f"{package}.{path.stem}"
                found.update({entry.name: entry for entry in _read(path, module) if entry.kind == kind})
    return found


@functools.cache
def _installed(kind: str) -> dict[str, Entry]:
    group = ENTRY_POINTS.get(kind)
    if group is None:
        return {}
    return {
        point.name: Entry(kind, point.name, point.value, f"from {point.dist.name if point.dist else point.value}")
        for point in importlib.metadata.entry_points(group=group)
    }


def _read(path: Path, origin: str) -> list[Entry]:
    """The entries that a file's `@register(kind, name)` decorators make, read without running it."""
    tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
    found = []
    for node in tree.body:
        if not isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            continue
        for decorator in node.decorator_list:
            called = decorator.func if isinstance(decorator, ast.Call) else None
            name = called.id if isinstance(called, ast.Name) else getattr(called, "attr", None)
            if name != "register" or not isinstance(decorator, ast.Call):
                continue
            where = f"{path}:{decorator.lineno}"
            literals = [argument.value for argument in decorator.args if isinstance(argument, ast.Constant)]
            texts = [literal for literal in literals if isinstance(literal, str)]
            if len(texts) != 2 or len(decorator.args) != 2:
                raise UsageError(f"{where}: register takes two literal strings, a kind and a name")
            if texts[0] not in KINDS:
                raise UsageError(f"{where}: cannot register a '{texts[0]}'{nearest(texts[0], KINDS)}")
            summary = (ast.get_docstring(node) or "").split("\n", 1)[0]
            found.append(Entry(texts[0], texts[1], origin, summary))
    return found
