"""The registry of methods, tasks, models, engines, callbacks and reproductions.

A decorator registers a class or function. The registry finds the decorator without running the file:

    @register("method", "sdgp")
    class SDGP(Method):
        \"\"\"One line, which `list` shows.\"\"\"

`names` and `entries` parse the sources (`ast`), so listing does not import torch. `get` imports only the module that it
needs. Registered classes and functions come from three places: the project's own packages (`PACKAGES`), entry points of
installed packages (`ENTRY_POINTS`), and plugin files given on the command line. The project's own reproductions are
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
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from suite.errors import UsageError, nearest
from suite.files import read_bytes, read_path
from suite.own_packages import check_own_packages

KINDS = ("method", "task", "model", "engine", "callback", "reproduction")
_DECORATORS = ("register", "register_family", "register_collection")  # of this module


@dataclass(frozen=True)
class Entry:
    """A registered name and where it comes from.

    Attributes:
        kind: One of `KINDS`.
        name: Registered name; that of a collection ends in `/`.
        origin: Name of a module, value of an entry point, or path of a plugin.
        summary: First line of the docstring.
        family: Whether `register_family` registered the name with others. All of them have the same summary.
        collection: Whether this is a collection, whose members are typed as `COLLECTION/NAME`.
    """

    kind: str
    name: str
    origin: str
    summary: str
    family: bool = False
    collection: bool = False

    @property
    def typed(self) -> str:
        """The name as a user types it: for a collection `COLLECTION/NAME`."""
        return f"{self.name}NAME" if self.collection else self.name


def read_entries(path: Path, origin: str, text: str) -> list[Entry]:
    """Read the entries of all decorators of `suite.registry` in the text of a file, without running the file.

    Raises:
        UsageError: The arguments of a decorator are no literal strings or names of them, or the kind is unknown.
    """
    tree = ast.parse(text, str(path))
    constants: dict[str, ast.expr | None] = {}
    listed = []
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        value = None if isinstance(node, ast.AugAssign) else getattr(node, "value", None)
        constants |= {target.id: value for target in targets if isinstance(target, ast.Name)}
        if not isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            continue
        for decorator in node.decorator_list:
            called = decorator.func if isinstance(decorator, ast.Call) else None
            name = called.id if isinstance(called, ast.Name) else getattr(called, "attr", None)
            if name not in _DECORATORS or not isinstance(decorator, ast.Call):
                continue
            family, collection = name == "register_family", name == "register_collection"
            where = f"{path}:{decorator.lineno}"
            given = [constants.get(one.id) if isinstance(one, ast.Name) else one for one in decorator.args]
            texts = [one.value for one in given if isinstance(one, ast.Constant) and isinstance(one.value, str)]
            if len(texts) != len(given) or not (len(texts) >= 2 if family else len(texts) == 2):
                wanted = "a kind and names, as literal strings" if family else "two literal strings, a kind and a name"
                raise UsageError(f"{where}: {name} needs {wanted}, or constants of this file (NAME = 'name')")
            if texts[0] not in KINDS:
                raise UsageError(f"{where}: cannot register a '{texts[0]}'{nearest(texts[0], KINDS)}")
            summary = (ast.get_docstring(node) or "").split("\n", 1)[0]
            end = "/" if collection else ""
            listed += [Entry(texts[0], own + end, origin, summary, family, collection) for own in texts[1:]]
    return listed


PACKAGES = {
    "method": "methods",
    "task": "tasks",
    "model": "tasks",
    "engine": "suite.trials.engines",
    "callback": "suite.trials.callbacks",
    "reproduction": "reports.papers",
}
"""The package whose modules, or modules of subpackages, contain the project's own objects of each kind."""
ENTRY_POINTS = {
    "method": "pdt.methods",
    "task": "pdt.tasks",
    "model": "pdt.models",
    "callback": "pdt.callbacks",
    "reproduction": "pdt.reproductions",
}
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

    Both arguments must be literal strings, or names of literal strings in the same file (`NAME = "name"`), so that the
    registry can read them without running the file.

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
            raise ValueError(f"{kind} '{name}' is registered twice, in {held.__module__} and {thing.__module__}")
        _objects[kind, name] = thing
        thing.registered_name = name  # type: ignore[attr-defined]
        return thing

    return decorate


def register_family(kind: str, *names: str) -> Callable[[Registered], Registered]:
    """Return a decorator of a function that makes the class or function for each of several names.

    The function receives a name and returns what `register` would decorate. All arguments must be literal strings.
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
    never clashes with a registered name. Both arguments must be literal strings.
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
            raise UsageError(f"{kind} '{name}' in {_where(kind, name)} does not derive from {module_name}.{base}")
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


def _where(kind: str, name: str) -> str:
    entry = find(kind, name)
    return entry.origin if entry is not None else "this program"


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
        text = source.decode()
        listed = read_entries(path, str(path), text)
        code = compile(text, str(path), "exec")
    except (ValueError, SyntaxError, RecursionError, MemoryError) as error:
        # Invalid UTF-8 and null bytes raise a ValueError. Brackets that are nested too deeply raise a MemoryError.
        raise UsageError(f"--plugin {path}: is not a Python file: {error or type(error).__name__}") from error
    if not listed:
        raise UsageError(f"--plugin {path}: registers nothing; write @register('method', 'name') above a class")
    for entry in listed:
        if _NAME.fullmatch(entry.name.removesuffix("/") if entry.collection else entry.name) is None:
            raise UsageError(
                f"--plugin {path}: '{entry.name}' is not a valid name; use 1 to 64 letters, digits, '_' or '-'"
            )
        if entry.name in _all_entries(entry.kind):
            raise UsageError(f"--plugin {path}: {entry.kind} '{entry.name}' exists already; choose another name")
    # An import would leave a __pycache__ in the user's folder, and the name of the file would have to end in .py.
    module = types.ModuleType(module_name)
    module.__file__ = str(path)
    sys.modules[module_name] = module
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))  # the plugin may import its neighbours; last, so that they hide nothing
    try:
        exec(code, vars(module))
        missing = [entry for entry in listed if (entry.kind, entry.name) not in _objects]
        if missing:
            raise UsageError(f"{missing[0].kind} '{missing[0].name}' is not registered; use suite.registry.register")
    except (Exception, SystemExit) as error:
        del sys.modules[module_name]
        for entry in listed:
            _objects.pop((entry.kind, entry.name), None)
        message = str(error) if isinstance(error, UsageError) else f"{type(error).__name__}: {error}"
        place = "" if isinstance(error, UsageError) else _line_in(error, str(path))
        raise UsageError(f"--plugin {path}: {place}{message}") from error
    _plugin_entries.update({(entry.kind, entry.name): entry for entry in listed})
    _plugin_sources[str(path)] = source
    return listed


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
    specification = importlib.util.find_spec(package)
    listed: list[Entry] = []
    for folder in (specification and specification.submodule_search_locations) or ():
        for path in sorted(Path(folder).rglob("*.py")):
            text = path.read_text(encoding="utf-8")
            if "@register" in text:  # parsing the other files would take most of the time of listing
                parts = path.relative_to(folder).with_suffix("").parts
                module = ".".join([package, *(part for part in parts if part != "__init__")])
                listed += read_entries(path, module, text)
        for path in sorted(Path(folder).rglob("*.toml")):  # papers declare their reproductions
            text = path.read_text(encoding="utf-8")
            tables = tomllib.loads(text)["reproductions"] if "[reproductions." in text else {}
            listed += [
                Entry("reproduction", name, f"{package}.contract", one["summary"]) for name, one in tables.items()
            ]
    return listed


@functools.cache
def _installed(kind: str) -> dict[str, Entry]:
    group = ENTRY_POINTS.get(kind)
    if group is None:
        return {}
    return {
        point.name: Entry(kind, point.name, point.value, f"from {point.dist.name if point.dist else point.value}")
        for point in importlib.metadata.entry_points(group=group)
    }
