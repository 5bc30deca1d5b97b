"""Which files outside the project define what a trial uses, and their checksums, which name the trial.

The project's own files are covered by `Method.version`. A plugin has no such discipline while it is written: its file
is edited and run again. So the hash of a trial covers the content of each file that defines its method, its task or its
model, and of the modules next to that file which it imports, directly or through each other. What a plugin imports
from elsewhere (an installed package) belongs to the software that provenance records.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.util
import site
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from suite import registry
from suite.errors import UsageError
from suite.files import read_bytes
from suite.runs.provenance import ROOT, without_home

MOST_BYTES = 1 << 24  # of a module that a plugin imports
_ROOMS = frozenset(("suite", "methods", "tasks", "kernels", "reports", "reproductions"))


def defining_files(**things: str) -> dict[str, dict[str, Any]]:
    """The files that define a trial's method, task and model, as far as they are not the project's own.

    Args:
        things: by kind, the name: `method="sdgp", task="digits", model="resnet9"`.

    Returns:
        By kind `{"path": with ~ for the home folder, "sha256": in hex}`, and where the file imports modules next to it
        `{"imports": {name relative to the file's folder: sha256}}`.

    Raises:
        UsageError: if a file cannot be read.
    """
    found = {}
    for kind, name in things.items():
        if not registry.is_own(kind, name):
            path = _file_of(kind, name)
            if path is not None:
                found[kind] = _described(path)
    return found


def digests(files: Mapping[str, Mapping[str, Any]]) -> dict[str, list[str]]:
    """What of `defining_files` a trial's hash covers: every checksum, and no path, since a file may be moved."""
    return {
        kind: [one["sha256"], *(f"{name} {digest}" for name, digest in sorted(one.get("imports", {}).items()))]
        for kind, one in files.items()
    }


def check_defining_files(planned: Mapping[str, Mapping[str, Any]], **things: str) -> None:
    """See that the files are those that a trial is named for.

    Raises:
        UsageError: for the first that has another content.
    """
    now = defining_files(**things)
    for kind, one in planned.items():
        if digests({kind: one}) != digests({kind: now[kind]} if kind in now else {}):
            raise UsageError(
                f"the {kind} '{things[kind]}' is defined by {one['path']}, which has changed since this trial was "
                "planned; run the command again"
            )


def _file_of(kind: str, name: str) -> Path | None:
    """The file that registers a thing; `None` for what this process registered without a file."""
    entry = registry.entries(kind).get(name)
    if entry is None:
        return None
    if registry.plugin_source(entry.origin) is not None:
        return Path(entry.origin)
    module = importlib.util.find_spec(entry.origin.partition(":")[0])  # of an installed package's entry point
    return Path(module.origin) if module is not None and module.origin and module.has_location else None


def _described(path: Path) -> dict[str, Any]:
    source = registry.plugin_source(str(path))
    return _with_imports(path, read_bytes(path, "--plugin", MOST_BYTES) if source is None else source)


@functools.lru_cache(maxsize=64)  # a suite of a thousand trials asks for few files
def _with_imports(path: Path, content: bytes) -> dict[str, Any]:
    contents = {path: content}
    waiting = [path]
    while waiting:
        file = waiting.pop()
        for module in _imported(file, contents[file], path):
            if module not in contents:
                contents[module] = read_bytes(module, f"{path} imports", MOST_BYTES)
                waiting.append(module)
    checksums = {file: hashlib.sha256(found).hexdigest() for file, found in contents.items()}
    described: dict[str, Any] = {"path": without_home(str(path)), "sha256": checksums.pop(path)}
    if checksums:
        start = _places(path)[0]
        described["imports"] = {str(file.relative_to(start)): digest for file, digest in sorted(checksums.items())}
    return described


def _imported(file: Path, content: bytes, plugin: Path) -> Iterator[Path]:
    """The modules next to a plugin that the import statements of a file name, wherever in the file they are.

    The statements are read, not followed at run time: one counts that is inside a function, or that another plugin has
    run already.
    """
    try:
        tree = ast.parse(content)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return  # such a file cannot be imported, so it decides no result
    start, inside = _places(plugin)
    for node in ast.walk(tree):
        names: list[tuple[Path, str]] = []
        if isinstance(node, ast.Import):
            names = [(start, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = file.parents[node.level - 1] if 0 < node.level <= len(file.parents) else start
            module = f"{node.module}." if node.module else ""
            names = [(base, module + alias.name) for alias in node.names]
        for base, name in names:
            for found in _modules(base, name.split(".")):
                if found.is_relative_to(inside) and not _is_project(found):
                    yield found


def _modules(folder: Path, parts: list[str]) -> Iterator[Path]:
    """The files that importing `parts` from a folder runs: those of the packages on the way, and the module."""
    for part in parts:
        for file in (folder / part / "__init__.py", folder / f"{part}.py"):
            if file.is_file():
                yield file
        folder /= part


def _is_project(file: Path) -> bool:
    """Whether a file is the project's own: a plugin may lie in the folder of a checkout."""
    return file.is_relative_to(ROOT) and file.relative_to(ROOT).parts[0] in _ROOMS


def _places(plugin: Path) -> tuple[Path, Path]:
    """Where the imports of a plugin start, and the folder or file that holds what counts as next to it.

    A module of a package has its whole package next to it; a single installed module has nothing.
    """
    package = plugin.parent
    if not (package / "__init__.py").is_file():
        installed = str(package) in (*site.getsitepackages(), site.getusersitepackages())
        return package, plugin if installed else package
    while (package.parent / "__init__.py").is_file():
        package = package.parent
    return package.parent, package
