"""The registry of methods, tasks, models, engines, callbacks and reproductions.

A decorator registers a class or function. In the project's packages, the registry finds it without running the file:

    @register("method", "sdgp")
    class SDGP(Method):
        \"\"\"One line, which `list` shows.\"\"\"

`names` and `entries` parse the sources (`ast`), so listing does not import torch. `get` imports only the module that it
needs. Registered classes and functions come from three places: the project's own packages (`PACKAGES`), entry points of
installed packages (`INSTALLABLE`), and plugin files given on the command line. The project's own reproductions are
tables of TOML files in their package.

The names of another library, such as torchvision's networks, form a collection (`register_collection`). A user types
them as `torchvision/vgg11`. They are known only after that library has been imported, so `names` does not list them.
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
import tomllib
import traceback
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from suite.errors import UsageError, nearest
from suite.files import read_bytes, read_path

KINDS = ("method", "task", "model", "engine", "callback", "reproduction")
ROOT = Path(__file__).resolve().parents[1]
_OWN_PACKAGES = ("kernels", "methods", "reports", "tasks")
_DECORATORS = ("register", "register_family", "register_collection")  # of this module


@functools.cache
def check_own_packages() -> None:
    """Check that Python finds the project's own packages, and not others of the same names.

    Raises:
        UsageError: A file or folder of the user's hides one; the message names both.
    """
    for name in _OWN_PACKAGES:
        ours = ROOT / name / "__init__.py"
        specification = importlib.util.find_spec(name)
        origin = specification.origin if specification is not None else None
        if origin is None or Path(origin).resolve() != ours:
            raise UsageError(
                f"import {name}: {origin} hides the suite's own {ours}; rename yours, or start the program in another "
                "folder"
            )


@dataclass(frozen=True)
class Entry:
    """A registered name and where it comes from.

    Attributes:
        kind: One of `KINDS`.
        name: Registered name; that of a collection ends in `/`.
        origin: Name of a module, value of an entry point, or path of a plugin.
        summary: First line of the docstring.
        family: Whether `register_family` registered the name with others of the project. All have the same summary.
    """

    kind: str
    name: str
    origin: str
    summary: str
    family: bool = False

    @property
    def collection(self) -> bool:
        """Whether this is a collection, whose members are typed as `COLLECTION/NAME`."""
        return self.name.endswith("/")

    @property
    def typed(self) -> str:
        """The name as a user types it: for a collection `COLLECTION/NAME`."""
        return f"{self.name}NAME" if self.collection else self.name


PACKAGES = {
    "method": "methods",
    "task": "tasks",
    "model": "tasks",
    "engine": "suite.trials.engines",
    "callback": "suite.trials.callbacks",
    "reproduction": "reports.papers",
}
"""The package whose modules, or modules of subpackages, contain the project's own objects of each kind."""
INSTALLABLE = ("method", "task", "model", "callback", "reproduction")
"""Kinds that installed packages may have, as entry points of the group `pdt.methods` and so on."""
CONTRACTS = {
    "method": ("suite.method", "Method"),
    "task": ("suite.task", "Task"),
    "reproduction": ("reports.papers.contract", "Reproduction"),
}
"""Module and name of the base class, for each kind that has a base class."""
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")  # users type names, and names are parts of folder names

Registered = TypeVar("Registered", bound=Callable[..., Any])


_objects: dict[tuple[str, str], Any] = {}
_plugin_entries: dict[tuple[str, str], Entry] = {}
_plugin_sources: dict[str, bytes] = {}  # content of each plugin by path when it was loaded; it may be edited later


def register(kind: str, name: str) -> Callable[[Registered], Registered]:
    """Return a decorator that registers a class or function as `name`.

    In the project's own packages both arguments must be literal strings, which are read without running the file.

    Args:
        kind: One of `KINDS`.
        name: Lower-case letters, digits and `_`, as typed after `--methods`, `--task`, `--model` or `--log`. A
            reproduction is typed after `reproduce` and names files; its name may also contain `-`.

    Raises:
        ValueError: The kind is unknown, or another class or function already has the name.
    """
    if kind not in KINDS:
        raise ValueError(f"cannot register a '{kind}'{nearest(kind, KINDS)}")

    def decorate(thing: Registered) -> Registered:
        held = _objects.get((kind, name))
        if held is not None and (held.__module__, held.__qualname__) != (thing.__module__, thing.__qualname__):
            raise ValueError(f"{kind} '{name}' exists already, in {held.__module__}; choose another name")
        _objects[kind, name] = thing
        thing.registered_name = name  # type: ignore[attr-defined]
        return thing

    return decorate


def register_family(kind: str, *names: str) -> Callable[[Registered], Registered]:
    """Return a decorator of a function that makes the class or function for each of several names.

    The function receives a name and returns what `register` would decorate.
    """

    def decorate(make: Registered) -> Registered:
        for name in names:
            register(kind, name)(make(name))
        return make

    return decorate


def register_collection(kind: str, name: str) -> Callable[[Registered], Registered]:
    """Return a decorator of a function that returns another library's classes or functions, by the library's names.

    `@register_collection("model", "torchvision")` decorates a function without parameters, which may import the
    library. The function returns by name what `register` would decorate. A user types each as `torchvision/NAME`, so it
    never clashes with a registered name.
    """
    return register(kind, f"{name}/")


def names(kind: str) -> list[str]:
    """Return the registered names of a kind, sorted, without importing their modules."""
    return sorted(entries(kind))


def entries(kind: str) -> dict[str, Entry]:
    """Return the entries of a kind by name, without importing their modules and without collections."""
    return {name: entry for name, entry in _all_entries(kind).items() if not entry.collection}


def collections(kind: str) -> list[Entry]:
    """Return the collections of a kind, sorted by name, without importing their modules."""
    return [entry for _, entry in sorted(_all_entries(kind).items()) if entry.collection]


def find(kind: str, name: str) -> Entry | None:
    """Return the entry of a name without importing its module; `None` if there is none.

    For `torchvision/vgg11` this is the entry of the collection. Only `get` checks whether the collection has the name.
    """
    return _all_entries(kind).get(_key(name))


def unknown(kind: str, name: str) -> str:
    """Return an error message for a name, with the nearest name or the example in the docs that defines it."""
    examples = {path.stem: path for path in (Path(__file__).parents[1] / "docs" / "examples").glob("*.py")}
    if kind == "method" and name in examples:
        return f"no method is called '{name}'; an example defines it: --plugin {examples[name]}"
    known = collections(kind)
    if known and ("/" in name or find(kind, f"{name}/")):
        return f"no {kind} is called '{name}'; names with '/' are {' or '.join(entry.typed for entry in known)}"
    return f"no {kind} is called '{name}'{nearest(name, names(kind))}"


def _key(name: str) -> str:
    """Return the key of a name's entry: for `torchvision/vgg11` that of the collection, `torchvision/`."""
    collection, slash, _ = name.partition("/")
    return collection + slash


def _all_entries(kind: str) -> dict[str, Entry]:
    listed = dict(_own(kind))
    for name, entry in _installed(kind).items():
        listed.setdefault(name, entry)
    for (entry_kind, name), entry in _plugin_entries.items():
        if entry_kind == kind:
            listed[name] = entry
    return listed


def get(kind: str, name: str) -> Any:
    """Return a registered class or function.

    Raises:
        UsageError: The name is not registered (the message names the nearest name), or the registered class does not
            derive from the base class of its kind.
    """
    if (kind, name) not in _objects or name.endswith("/"):  # a collection itself is no class or function
        entry = find(kind, name)
        if entry is None:
            raise UsageError(unknown(kind, name))
        if entry.collection:
            _objects[kind, name] = _member(entry, name.removeprefix(entry.name))
        else:
            _load(entry)
    thing = _objects[kind, name]
    if kind in CONTRACTS:
        module_name, base = CONTRACTS[kind]
        contract = getattr(importlib.import_module(module_name), base)
        if not (inspect.isclass(thing) and issubclass(thing, contract)):
            entry = find(kind, name)
            where = entry.origin if entry is not None else "this program"
            raise UsageError(f"{kind} '{name}' in {where} does not derive from {module_name}.{base}")
    return thing


def _load(entry: Entry) -> None:
    if ":" in entry.origin:
        module_name, attribute = entry.origin.split(":", 1)
        thing = importlib.import_module(module_name)
        for part in attribute.split("."):
            thing = getattr(thing, part)
        _objects.setdefault((entry.kind, entry.name), thing)
    else:
        importlib.import_module(entry.origin)


def _member(collection: Entry, name: str) -> Any:
    if (collection.kind, collection.name) not in _objects:
        _load(collection)
    try:
        members = dict(_objects[collection.kind, collection.name]())
    except Exception as error:
        if is_own(collection.kind, collection.name):
            raise
        place = fault_in_plugin(error) or collection.origin
        raise UsageError(f"{collection.name}{name}: {type(error).__name__}: {error} ({place})") from error
    if name not in members:
        hint = nearest(name, members, collection.name)
        raise UsageError(f"no {collection.kind} is called '{collection.name}{name}'{hint}")
    return members[name]


def is_own(kind: str, name: str) -> bool:
    """Return whether the project itself registers a name, rather than a plugin or an installed package."""
    return _key(name) in _own(kind)


def plugin_source(path: str) -> bytes | None:
    """Return the content of a plugin's file when it was loaded; `None` for other files."""
    return _plugin_sources.get(path)


def fault_in_plugin(error: BaseException) -> str:
    """Return the innermost line of a plugin in a traceback, as `FILE, line 3, in setup`; empty if there is none."""
    frames = traceback.extract_tb(error.__traceback__)
    found = [frame for frame in frames if frame.filename in _plugin_sources]
    return f"{found[-1].filename}, line {found[-1].lineno}, in {found[-1].name}" if found else ""


def load_plugin(path: str | Path) -> list[Entry]:
    """Run a Python file that registers methods, tasks, models or callbacks, and return their entries.

    Raises:
        UsageError: The file does not exist, raises an exception, registers nothing, or uses a name that is taken.
    """
    path = read_path(str(path), "--plugin").resolve()
    source = read_bytes(path, "--plugin")
    # Plugins in different folders may have the same file name.
    module_name = f"pdt_plugin_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    if module_name in sys.modules:
        return [entry for entry in _plugin_entries.values() if entry.origin == str(path)]
    try:
        code = compile(source.decode(), str(path), "exec")
    except (ValueError, SyntaxError, RecursionError, MemoryError) as error:
        # Invalid UTF-8 and null bytes raise a ValueError. Brackets that are nested too deeply raise a MemoryError.
        raise UsageError(f"--plugin {path}: is not a Python file: {error or type(error).__name__}") from error
    # An import would leave a __pycache__ in the user's folder, and the name of the file would have to end in .py.
    module = types.ModuleType(module_name)
    module.__file__ = str(path)
    sys.modules[module_name] = module
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))  # the plugin may import its neighbours; last, so that they hide nothing
    try:
        if b"register" in source:  # any other program should not run
            exec(code, vars(module))
        listed = [_plugin_entry(path, *key, thing) for key, thing in _registered_in(module_name).items()]
        if not listed:
            raise UsageError("registers nothing; write @suite.registry.register('method', 'name') above a class")
    except (Exception, SystemExit) as error:
        del sys.modules[module_name]
        for key in _registered_in(module_name):
            del _objects[key]
        message = str(error) if isinstance(error, UsageError) else f"{type(error).__name__}: {error}"
        place = "" if isinstance(error, UsageError) else _line_in(error, str(path))
        raise UsageError(f"--plugin {path}: {place}{message}") from error
    _plugin_entries.update({(entry.kind, entry.name): entry for entry in listed})
    _plugin_sources[str(path)] = source
    return listed


def _registered_in(module: str) -> dict[tuple[str, str], Any]:
    return {key: thing for key, thing in _objects.items() if getattr(thing, "__module__", "") == module}


def _plugin_entry(path: Path, kind: str, name: str, thing: Any) -> Entry:
    entry = Entry(kind, name, str(path), (thing.__doc__ or "").split("\n", 1)[0])
    if _NAME.fullmatch(name.removesuffix("/")) is None:
        raise UsageError(f"'{name}' is not a valid name; use 1 to 64 letters, digits, '_' or '-'")
    if name in _all_entries(kind):
        raise UsageError(f"{kind} '{name}' exists already; choose another name")
    return entry


def _line_in(error: BaseException, path: str) -> str:
    """Return the last line of a file in a traceback, as `line 3: `; empty if there is none."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
    return f"line {lines[-1]}: " if lines else ""


@functools.cache
def _own(kind: str) -> dict[str, Entry]:
    return {entry.name: entry for entry in _in_package(PACKAGES[kind]) if entry.kind == kind}


@functools.cache
def _in_package(package: str) -> list[Entry]:
    """Read the entries of all modules of a package and its subpackages."""
    check_own_packages()
    folder = ROOT.joinpath(*package.split("."))
    listed: list[Entry] = []
    for path in sorted(folder.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if "@register" in text:  # parsing the other files would take most of the time of listing
            parts = path.relative_to(folder).with_suffix("").parts
            module = ".".join([package, *(part for part in parts if part != "__init__")])
            listed += _decorated(module, text)
    for path in sorted(folder.rglob("*.toml")):  # papers declare their reproductions
        text = path.read_text(encoding="utf-8")
        tables = tomllib.loads(text)["reproductions"] if "[reproductions." in text else {}
        listed += [
            Entry("reproduction", name, f"{package}.contract", table["summary"]) for name, table in tables.items()
        ]
    return listed


def _decorated(module: str, text: str) -> Iterator[Entry]:
    """Yield the entries of the decorators in a module of the project, whose arguments are literal strings."""
    for node in ast.parse(text).body:
        if not isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            continue
        for call in node.decorator_list:
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in _DECORATORS:
                kind, *names_of_node = map(ast.literal_eval, call.args)
                summary = (ast.get_docstring(node) or "").split("\n", 1)[0]
                end = "/" if call.func.id == "register_collection" else ""
                for name in names_of_node:
                    yield Entry(kind, name + end, module, summary, call.func.id == "register_family")


@functools.cache
def _installed(kind: str) -> dict[str, Entry]:
    if kind not in INSTALLABLE:
        return {}
    return {
        point.name: Entry(kind, point.name, point.value, f"from {point.dist.name if point.dist else point.value}")
        for point in importlib.metadata.entry_points(group=f"pdt.{kind}s")
    }
