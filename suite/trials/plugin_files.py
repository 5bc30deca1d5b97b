"""Files of plugins that define a trial's method, task or model, and their checksums, which enter the trial's hash.

`Method.version` covers changes of the project's own files. A plugin's file is edited and run again without a new
version. The hash of a trial therefore covers the content of each plugin file that defines its method, task or model. It
also covers the modules next to that file that it imports, directly or indirectly. Other imports of a plugin (installed
packages) are part of the software that provenance records.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.util
import site
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from suite import files, registry
from suite.errors import UsageError
from suite.files import read_bytes, without_home
from suite.registry import ROOT

MOST_BYTES = 1 << 24  # size of a module that a plugin imports
_ROOMS = ("suite", "methods", "tasks", "kernels", "reports")


def defining_files(**things: str) -> dict[str, dict[str, Any]]:
    """Return the files that define a trial's method, task and model, except those of the project.

    Args:
        things: Names by kind: `method="sdgp", task="digits", model="resnet9"`.

    Returns:
        For each kind, `path` (with `~` for the home folder) and `sha256` (in hex) of the file. If the file imports
        modules next to it, also `imports`: their checksums by name, relative to the folder of the file.

    Raises:
        UsageError: A file cannot be read.
    """
    paths = {kind: _file_of(kind, name) for kind, name in things.items() if not registry.is_own(kind, name)}
    return {kind: _described(path) for kind, path in paths.items() if path is not None}


def digests(files: Mapping[str, Mapping[str, Any]]) -> dict[str, list[str]]:
    """Return the part of `defining_files` that enters the trial's hash: the checksums without the paths."""
    return {
        kind: [file["sha256"], *(f"{name} {digest}" for name, digest in sorted(file.get("imports", {}).items()))]
        for kind, file in files.items()
    }


def check_defining_files(planned: Mapping[str, Mapping[str, Any]], **things: str) -> None:
    """Check that the files have not changed since a trial was planned.

    Args:
        planned: `defining_files` when the trial was planned.
        things: Names by kind.

    Raises:
        UsageError: A file has changed.
    """
    before, now = digests(planned), digests(defining_files(**things))
    for kind, file in planned.items():
        if before[kind] != now.get(kind):
            raise UsageError(
                f"the {kind} '{things[kind]}' is defined by {file['path']}, which has changed since this trial was "
                "planned; run the command again"
            )


def load_recorded(path: str, recorded: Iterable[Mapping[str, Mapping[str, Any]]]) -> None:
    """Load a plugin that the user has typed, if a record was made with a file of the same content.

    Args:
        path: The plugin as typed.
        recorded: `defined_by` of the records' specifications.

    Raises:
        UsageError: No record was made with that content, so the file is not run. Or it is not a plugin.
    """
    here = digests({"typed": _described(files.read_path(path, "--plugin").resolve())})["typed"]
    if not any(here in digests(item).values() for item in recorded):
        raise UsageError(f"--plugin {path}: is not run: no trial of the folder was defined by a file of this content")
    registry.load_plugin(path)


def check_known(recorded: Mapping[str, Mapping[str, Any]], **things: str) -> None:
    """Check that this process knows what a record's plugins define. The files that the record names are not loaded.

    Args:
        recorded: `defined_by` of the record's specification.
        things: Names by kind.

    Raises:
        UsageError: A plugin was not loaded.
    """
    for kind, name in things.items():
        if kind in recorded and registry.find(kind, name) is None:
            # A stranger wrote the path, so it must not look like a command to paste.
            file = repr(Path(str(recorded[kind].get("path"))).name)
            raise UsageError(
                f"the {kind} '{name}' is defined by the plugin {file}, and plugins that a record names are not run: "
                "get the file, read it, and type --plugin FILE"
            )


def _file_of(kind: str, name: str) -> Path | None:
    """Return the file that registers a method, task or model; `None` if this process registered it without a file."""
    entry = registry.find(kind, name)
    if entry is None:
        return None
    if registry.plugin_source(entry.origin) is not None:
        return Path(entry.origin)
    module = importlib.util.find_spec(entry.origin.partition(":")[0])  # for the entry point of an installed package
    return Path(module.origin) if module is not None and module.origin and module.has_location else None


def _described(path: Path) -> dict[str, Any]:
    source = registry.plugin_source(str(path))
    return _with_imports(path, read_bytes(path, "--plugin", MOST_BYTES) if source is None else source)


@functools.lru_cache(maxsize=64)  # a suite of a thousand trials asks for only a few files
def _with_imports(path: Path, content: bytes) -> dict[str, Any]:
    contents = {path: content}
    waiting = [path]
    while waiting:
        file = waiting.pop()
        for module in _imported(file, contents[file], path):
            if module not in contents:
                contents[module] = read_bytes(module, f"{path} imports", MOST_BYTES)
                waiting.append(module)
    checksums = {file: hashlib.sha256(content_of_file).hexdigest() for file, content_of_file in contents.items()}
    described: dict[str, Any] = {"path": without_home(str(path)), "sha256": checksums.pop(path)}
    if checksums:
        start = _places(path)[0]
        described["imports"] = {str(file.relative_to(start)): digest for file, digest in sorted(checksums.items())}
    return described


def _imported(file: Path, content: bytes, plugin: Path) -> Iterator[Path]:
    """Yield the modules next to a plugin that a file imports, in any of its import statements.

    The statements are parsed and not executed, so imports inside functions and already loaded modules count too.
    """
    try:
        tree = ast.parse(content)
    except (SyntaxError, ValueError):
        return  # such a file cannot be imported, so it cannot affect results
    start, inside = _places(plugin)
    for node in ast.walk(tree):
        names: list[tuple[Path, str]] = []
        if isinstance(node, ast.Import):
            names = [(start, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = file.parents[node.level - 1] if 0 < node.level <= len(file.parents) else start
            names = [(base, f"{node.module or ''}.{alias.name}".lstrip(".")) for alias in node.names]
        for base, name in names:
            modules = _modules(base, name.split("."))
            yield from (module for module in modules if module.is_relative_to(inside) and not _is_project(module))


def _modules(folder: Path, parts: list[str]) -> Iterator[Path]:
    """Yield the files that importing `parts` from a folder executes: those of the parent packages, and the module."""
    for part in parts:
        yield from filter(Path.is_file, (folder / part / "__init__.py", folder / f"{part}.py"))
        folder /= part


def _is_project(file: Path) -> bool:
    """Return whether a file belongs to the project; a plugin may be in the folder of a checkout."""
    return any(file.is_relative_to(ROOT / room) for room in _ROOMS)


def _places(plugin: Path) -> tuple[Path, Path]:
    """Return the folder where a plugin's imports start, and the folder or file whose modules count as next to it.

    For a module of a package, that is the whole package. For a single installed module, it is that file alone.
    """
    package = plugin.parent
    if not (package / "__init__.py").is_file():
        installed = str(package) in (*site.getsitepackages(), site.getusersitepackages())
        return package, plugin if installed else package
    while (package.parent / "__init__.py").is_file():
        package = package.parent
    return package.parent, package
