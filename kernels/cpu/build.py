"""Compile the CPU kernels with the machine's compiler, once per source, into a cache.

The name of a library contains a hash of everything that determines it. A change of the source, the compiler, the flags
or the processor therefore gives a new library. A library is used only if its size and checksum match its note.
Processes may build at the same time.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import platform
import re
import shlex
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from kernels import cache
from kernels.cpu import bounded

SOURCES = Path(__file__).resolve().parent / "sources"
INCLUDE_FOLDERS = (SOURCES.parents[1] / "include", SOURCES)
COMPILERS = ("c++", "g++", "clang++")
BASE_FLAGS = ("-std=c++17", "-O3", "-fPIC", "-shared", "-fno-math-errno", "-fno-trapping-math")
# Sources that are as fast with less optimization, which takes less time.
LEVELS = {"prune_nm": ("-O2",)}
# Instruction sets for which $PDT_CPU_ARCH may compile the kernels. Each lists the features that it adds to the one
# before, in the names of /proc/cpuinfo.
ARCHITECTURES = {
    "x86-64": {"sse2"},
    "x86-64-v2": {"cx16", "popcnt", "sse4_1", "sse4_2", "ssse3"},
    "x86-64-v3": {"abm", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe"},
    "x86-64-v4": {"avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl"},
}
TIME_LIMIT_S = 300.0
VERSION_LIMIT_S = 60.0


class BuildError(Exception):
    """A kernel cannot be compiled on this machine. The message is one line."""


@dataclass(frozen=True)
class Build:
    """A compiled library.

    Attributes:
        library: Path of the library.
        compiler: Name and version of the compiler.
        flags: Flags of the compiler.
        refused: First error of a build with more flags, which would be faster; empty if no build failed.
        facts: Facts that are stored with the library.
    """

    library: Path
    compiler: str
    flags: tuple[str, ...]
    refused: str = ""
    facts: Mapping[str, str] = field(default_factory=dict)


def build(name: str) -> Build:
    """Find a compiled library in the cache, or compile it.

    Args:
        name: Name of the source in `kernels/cpu/sources`, without its suffix.

    Raises:
        BuildError: No compiler was found, or the compilation failed or took too long. Or the cache is refused or cannot
            be written. Or $PDT_CPU_ARCH names an unknown instruction set, or one that this processor does not have.
    """
    first_error, compiler = "", find_compiler()
    for candidate in _candidates(name, compiler):
        try:
            facts = cache.find(candidate.library)
            error = "" if facts is not None else _compile(name, compiler, candidate)
        except cache.RefusedError as refused:
            raise BuildError(str(refused)) from refused
        if not error:
            return dataclasses.replace(candidate, refused=first_error, facts=facts or {})
        first_error = first_error or error
    raise BuildError(f"{shlex.join(compiler)} failed: {first_error}")


def has_to_compile(name: str) -> bool:
    """Return whether no library of a source is in the cache, and a compiler could make one."""
    if os.environ.get("PDT_CPU_KERNEL") == "0":
        return False
    try:
        return all(cache.find(candidate.library) is None for candidate in _candidates(name, find_compiler()))
    except (BuildError, cache.RefusedError):
        return False


def _candidates(name: str, compiler: list[str]) -> list[Build]:
    """Return the libraries of a source, the fastest first."""
    version = _compiler_version(compiler)
    return [
        Build(_library_path(name, compiler, version, flags), f"{Path(compiler[0]).name}: {version}", flags)
        for flags in (BASE_FLAGS + LEVELS.get(name, ()) + optional for optional in _optional_flags())
    ]


def refusal() -> str:
    """Return why compiled kernels will be refused, for a reason that the user can change; empty without such a reason.

    This compiles nothing, so that a command can warn before its trials, each of which only writes to its own log.
    """
    if os.environ.get("PDT_CPU_KERNEL") == "0":
        return ""
    try:
        _candidates("prune_nm", find_compiler())
        cache.check_folder(cache.folder())
    except (BuildError, cache.RefusedError) as error:
        return str(error)
    return ""


def missing_features(architecture: str) -> list[str]:
    """Return the features of an instruction set of `ARCHITECTURES` that this processor lacks."""
    names = [*ARCHITECTURES]
    needed = set().union(*(ARCHITECTURES[name] for name in names[: names.index(architecture) + 1]))
    return sorted(needed - set(" ".join(_processor()).split()))


def _optional_flags() -> tuple[tuple[str, ...], ...]:
    """Return the flags to try, in this order, because a compiler may lack OpenMP (Apple's clang) or -march=native.

    No other instruction set replaces one that $PDT_CPU_ARCH names.
    """
    chosen = os.environ.get("PDT_CPU_ARCH", "native")
    if chosen == "native":
        return ("-march=native", "-fopenmp"), ("-march=native",), ("-fopenmp",), ()
    if chosen not in ARCHITECTURES:
        raise BuildError(f"$PDT_CPU_ARCH is {chosen!r}, and may be native, {', '.join(ARCHITECTURES)}")
    missing = missing_features(chosen)
    if missing:
        raise BuildError(f"$PDT_CPU_ARCH is {chosen}, and this processor has no {', '.join(missing)}")
    return (f"-march={chosen}", "-fopenmp"), (f"-march={chosen}",)


def find_compiler() -> list[str]:
    """Return the command of the C++ compiler: $CXX if it is set, otherwise the first of c++, g++, clang++ on the PATH.

    $CXX may contain arguments, as in `ccache g++`.

    Raises:
        BuildError: No compiler was found.
    """
    if not hasattr(os, "killpg"):
        raise BuildError("kernels are compiled on Linux and macOS only")  # `bounded` could not end a compiler
    try:
        chosen = shlex.split(os.environ.get("CXX", ""))
    except ValueError as error:
        raise BuildError(f"$CXX cannot be parsed: {error}") from error
    if chosen:
        path = shutil.which(chosen[0])
        if not path:
            raise BuildError(f"$CXX names the compiler {chosen[0]!r}, which was not found")
        return [path, *chosen[1:]]
    for name in COMPILERS:
        path = shutil.which(name)
        if path:
            return [path]
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
    """Return the path of a library. Its name contains a hash of everything that determines the library."""
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
    """Yield the facts that -march=native depends on, because different machines may share a cache."""
    yield platform.machine()
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        yield platform.processor()
        return
    for name in ("model name", "flags", "Features"):
        match = re.search(rf"^{name}\s*:\s*(.*)$", text, re.MULTILINE)
        if match:
            yield match.group(1)


def _torch_openmp() -> Path | None:
    """Return the GNU OpenMP runtime that torch installs with a changed name (libgomp-HASH.so), or None.

    Two runtimes in one process have two thread pools. The idle pool spins on the cores that the other pool needs. The
    loader shares a runtime with the ordinary name (libgomp.so.1) by itself.
    """
    try:
        mapped = Path("/proc/self/maps").read_text()
    except OSError:
        return None
    match = re.search(r"(/\S*/libgomp-[^/\s]*\.so[.0-9]*)$", mapped, re.MULTILINE)
    return Path(match.group(1)) if match else None


def _compile(source: str, compiler: list[str], target: Build) -> str:
    """Compile to a temporary file and move it into place; return the first line of the error, empty on success."""
    runtime = _torch_openmp() if "-fopenmp" in target.flags else None
    includes = [f"-I{folder}" for folder in INCLUDE_FOLDERS]
    objects = [str(_source(source)), *([str(runtime)] if runtime else [])]
    try:
        with cache.building(target.library) as built:
            result = bounded.run([*compiler, *target.flags, *includes, *objects, "-o", str(built)], TIME_LIMIT_S)
            if result.status != 0:
                return _error_line(result.errors) or f"exit status {result.status}"
            built.chmod(0o755)
            cache.store(built, target.library)
            return ""
    except TimeoutError as error:
        # Fewer flags do not help if a compiler hangs or a machine is overloaded.
        raise BuildError(f"{error} while it compiled {_source(source).name}") from None
    except OSError as error:
        raise BuildError(f"the cache {target.library.parent} cannot be written ({error.strerror})") from error


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "")


def _error_line(text: str) -> str:
    """Return the first line that contains `error`. Notes such as `In file included from` precede it."""
    return next((line.strip() for line in text.splitlines() if "error" in line.lower()), _first_line(text))
