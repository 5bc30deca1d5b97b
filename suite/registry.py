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
import inspect
import re
import sys
import traceback
import types
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from suite.errors import UsageError, nearest
from suite.files import read_bytes, read_path

KINDS = ("method", "task", "model", "engine", "reproduction")
PACKAGES = {
    "method": ("methods",),
    "task": ("tasks",),
    "model": ("tasks.models",),
    "engine": ("suite.runs.engines",),
    "reproduction": tuple(f"reproductions{paper}" for paper in ("", ".clicktrain", ".prunetrain", ".sdgp")),
}
ENTRY_POINTS = {
    "method": "pdt.methods",
    "task": "pdt.tasks",
    "model": "pdt.models",
    "reproduction": "pdt.reproductions",
}
CONTRACTS = {
    "method": ("suite.method", "Method"),
    "task": ("suite.task", "Task"),
    "reproduction": ("reproductions.contract", "Reproduction"),
}
"""The base class of each kind that has one; imported with the first thing of the kind."""
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")  # of a registered thing: it is typed, and is part of the names of folders

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
_plugin_sources: dict[str, bytes] = {}  # what was run, by a plugin's path: its file may be edited since


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
        UsageError: if nothing of that name is registered; the line names the nearest name that is. If what is
            registered does not have the base class of its kind.
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
    thing = _objects[kind, name]
    if kind in CONTRACTS:
        module_name, base = CONTRACTS[kind]
        contract = getattr(importlib.import_module(module_name), base)
        if not (inspect.isclass(thing) and issubclass(thing, contract)):
            raise UsageError(f"{kind} '{name}' of {_where(kind, name)} does not derive from {module_name}.{base}")
    return thing


def is_own(kind: str, name: str) -> bool:
    """Whether a thing is the project's own; else a plugin file or an installed package registers it."""
    return name in _own(kind)


def plugin_source(path: str) -> bytes | None:
    """What a plugin's file held when it was run; `None` for another file."""
    return _plugin_sources.get(path)


def fault_in_plugin(error: BaseException) -> str:
    """The innermost line of a plugin that an exception passed through: `FILE, line 3, in setup`; empty if none.

    What a plugin's own code raises is for its author to mend and no error of this program.
    """
    frames = traceback.extract_tb(error.__traceback__)
    found = [frame for frame in frames if frame.filename in _plugin_sources]
    return f"{found[-1].filename}, line {found[-1].lineno}, in {found[-1].name}" if found else ""


def _where(kind: str, name: str) -> str:
    entry = entries(kind).get(name)
    return entry.origin if entry is not None else "this program"


def load_plugin(path: str | Path) -> list[Entry]:
    """Run a Python file that registers methods, tasks or models, and return what it registered.

    Raises:
        UsageError: if the file is missing, raises while it runs, registers nothing, or takes a name that is held.
    """
    path = read_path(str(path), "--plugin").resolve()
    source = read_bytes(path, "--plugin")
    # Two plugins may have the same file name in different folders.
    module_name = f"pdt_plugin_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    if module_name in sys.modules:
        return [entry for entry in _plugin_entries.values() if entry.origin == str(path)]
    try:
        text = source.decode()
        found = _read(path, str(path), text)
        code = compile(text, str(path), "exec")
    except (ValueError, SyntaxError, RecursionError, MemoryError) as error:
        # Bytes that are no text, and null bytes, are a ValueError; a MemoryError says that brackets nest too deeply.
        raise UsageError(f"--plugin {path}: is not a Python file: {error or type(error).__name__}") from error
    if not found:
        raise UsageError(f"--plugin {path}: registers nothing; put @register('method', 'name') above a class")
    for entry in found:
        if _NAME.fullmatch(entry.name) is None:
            raise UsageError(f"--plugin {path}: '{entry.name}' is no name; it has 1 to 64 letters, digits, '_' or '-'")
        if entry.name in entries(entry.kind):
            raise UsageError(f"--plugin {path}: {entry.kind} '{entry.name}' exists already; give it another name")
    # Run from its text: an import would leave a __pycache__ in the user's folder, whose name may not end in .py either.
    module = types.ModuleType(module_name)
    module.__file__ = str(path)
    sys.modules[module_name] = module
    try:
        exec(code, vars(module))
        missing = [entry for entry in found if (entry.kind, entry.name) not in _objects]
        if missing:
            raise UsageError(f"{missing[0].kind} '{missing[0].name}' is not registered; take suite.registry.register")
    except (Exception, SystemExit) as error:
        del sys.modules[module_name]
        for entry in found:
            _objects.pop((entry.kind, entry.name), None)
        said = str(error) if isinstance(error, UsageError) else f"{type(error).__name__}: {error}"
        raise UsageError(f"--plugin {path}: {said}") from error
    _plugin_entries.update({(entry.kind, entry.name): entry for entry in found})
    _plugin_sources[str(path)] = source
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
                text = path.read_text(encoding="utf-8")
                found.update({entry.name: entry for entry in _read(path, module, text) if entry.kind == kind})
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


def _read(path: Path, origin: str, text: str) -> list[Entry]:
    """The entries that the `@register(kind, name)` decorators of a file's text make, read without running it."""
    tree = ast.parse(text, str(path))
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
