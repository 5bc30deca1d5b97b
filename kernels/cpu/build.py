"""Compiles the CPU kernels with the machine's own compiler, each source once, into a cache.

The library's name holds a hash of everything that determines it, so a change of source, compiler, flags or processor
makes a new one and never reuses an old one. A library is used only where its size and checksum are those with which it
was stored. Processes that build at the same time do not disturb each other.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import platform
import re
import shlex
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kernels import cache
from kernels.cpu import bounded

SOURCES = Path(__file__).resolve().parent / "sources"
INCLUDE_FOLDERS = (SOURCES.parents[1] / "include", SOURCES)
COMPILERS = ("c++", "g++", "clang++")
BASE_FLAGS = ("-std=c++17", "-O3", "-fPIC", "-shared", "-fno-math-errno", "-fno-trapping-math")
# Tried in this order: a compiler may lack OpenMP (Apple's clang) or -march=native.
OPTIONAL_FLAGS = (("-march=native", "-fopenmp"), ("-march=native",), ("-fopenmp",), ())
TIME_LIMIT_S = 300.0
VERSION_LIMIT_S = 60.0


class BuildError(Exception):
    """The kernel cannot be had on this machine; the message is one line."""


@dataclass(frozen=True)
class Build:
    """A compiled kernel: where it lies and how it was made.

    Attributes:
        library, compiler, flags: the file, the compiler's name and version, and what it was given.
        refused: the first error of a build with more flags, which would be faster; empty where none failed.
    """

    library: Path
    compiler: str
    flags: tuple[str, ...]
    refused: str = ""


def build(name: str) -> Build:
    """Finds the compiled kernel in the cache, or compiles it there.

    Args:
        name: of the source in `kernels/cpu/sources`, without its ending.

    Raises:
        BuildError: no compiler, a failing compile, a compile that takes too long, or a cache that cannot be written.
    """
    compiler = find_compiler()
    version = _compiler_version(compiler)
    candidates = [
        Build(_library_path(name, compiler, version, flags), f"{Path(compiler[0]).name}: {version}", flags)
        for flags in (BASE_FLAGS + optional for optional in OPTIONAL_FLAGS)
    ]
    first_error = ""
    for candidate in candidates:
        error = "" if cache.find(candidate.library) is not None else _compile(name, compiler, candidate)
        if not error:
            return dataclasses.replace(candidate, refused=first_error)
        first_error = first_error or error
    raise BuildError(f"{shlex.join(compiler)} failed: {first_error}")


def find_compiler() -> list[str]:
    """Gives the command of the C++ compiler: $CXX when it is set, else the first of c++, g++, clang++ on the PATH.

    $CXX may have words behind the program, as in `ccache g++`.

    Raises:
        BuildError: there is none.
    """
    try:
        chosen = shlex.split(os.environ.get("CXX", ""))
    except ValueError as error:
        raise BuildError(f"$CXX cannot be read: {error}") from error
    if chosen:
        found = shutil.which(chosen[0])
        if not found:
            raise BuildError(f"the compiler that $CXX names, {chosen[0]!r}, was not found")
        return [found, *chosen[1:]]
    for name in COMPILERS:
        found = shutil.which(name)
        if found:
            return [found]
    raise BuildError(f"no C++ compiler was found ($CXX, {', '.join(COMPILERS)})")


def _compiler_version(compiler: list[str]) -> str:
    name = shlex.join(compiler)
    try:
        result = bounded.run([*compiler, "--version"], VERSION_LIMIT_S)
    except OSError as error:
        raise BuildError(f"{name} --version failed: {error}") from error
    if result.status != 0:
        raise BuildError(f"{name} --version failed: {_first_line(result.errors)}")
    return _first_line(result.output)


def _source(name: str) -> Path:
    return SOURCES / f"{name}.cpp"


def _library_path(name: str, compiler: list[str], version: str, flags: tuple[str, ...]) -> Path:
    """Names the library after all that determines it."""
    digest = hashlib.sha256()
    for part in (
        os.path.realpath(compiler[0]),
        *compiler[1:],
        version,
        *flags,
        str(_torch_openmp() or ""),
        *_processor(),
    ):
        digest.update(part.encode() + b"\0")
    for path in sorted([_source(name), *(header for folder in INCLUDE_FOLDERS for header in folder.glob("*.h"))]):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return cache.folder() / f"{name}-{digest.hexdigest()[:20]}.so"


def _processor() -> Iterator[str]:
    """Gives what -march=native looks at: a cache may be on a disk that different machines share."""
    yield platform.machine()
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        yield platform.processor()
        return
    for name in ("model name", "flags", "Features"):
        found = re.search(rf"^{name}\s*:\s*(.*)$", text, re.MULTILINE)
        if found:
            yield found.group(1)


def _torch_openmp() -> Path | None:
    """Gives the GNU OpenMP runtime that torch has brought with it under a name of its own, if it has.

    Two runtimes in one process mean two pools of threads, and the idle one spins on the cores the other needs. Where
    torch's runtime has the ordinary name (libgomp.so.1), the loader shares it without our doing.
    """
    try:
        mapped = Path("/proc/self/maps").read_text()
    except OSError:
        return None
    found = re.search(r"(/\S*/libgomp-[^/\s]*\.so[.0-9]*)$", mapped, re.MULTILINE)
    return Path(found.group(1)) if found else None


def _compile(source: str, compiler: list[str], target: Build) -> str:
    """Compiles to a temporary file and moves it into place; returns the error's first line, empty on success."""
    runtime = _torch_openmp() if "-fopenmp" in target.flags else None
    includes = [f"-I{folder}" for folder in INCLUDE_FOLDERS]
    objects = [str(_source(source)), *([str(runtime)] if runtime else [])]
    try:
        with cache.building(target.library) as made:
            result = bounded.run([*compiler, *target.flags, *includes, *objects, "-o", str(made)], TIME_LIMIT_S)
            if result.status != 0:
                return _error_line(result.errors) or f"exit status {result.status}"
            made.chmod(0o755)
            cache.store(made, target.library)
            return ""
    except TimeoutError as error:
        # Fewer flags would not make a compiler that hangs, or a machine that is overloaded, any faster.
        raise BuildError(f"{error} while it compiled {_source(source).name}") from None
    except OSError as error:
        raise BuildError(f"the cache {target.library.parent} cannot be written ({error.strerror})") from error


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "")


def _error_line(text: str) -> str:
    """Gives the first line that says `error`: notes such as `In file included from` come before it."""
    return next((line.strip() for line in text.splitlines() if "error" in line.lower()), _first_line(text))
