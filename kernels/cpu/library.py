"""Opening of compiled CPU libraries."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
from concurrent.futures import ThreadPoolExecutor

from kernels import cache
from kernels.cpu.build import Build, BuildError, build

log = logging.getLogger("pdt.kernels")


def open_library(name: str) -> tuple[ctypes.CDLL, Build]:
    """Compile a source if necessary, and open the library.

    A library that does not open (after a change of the C library or of the OpenMP runtime) is compiled once more.

    Args:
        name: Name of the source in `kernels/cpu/sources`, without its suffix.

    Raises:
        BuildError: The library cannot be compiled or opened on this machine.
    """
    built = build(name)
    try:
        return ctypes.CDLL(str(built.library)), built
    except OSError as error:
        try:
            cache.forget(built.library)
        except OSError:
            raise BuildError(f"the compiled library cannot be loaded: {error}") from error
        built = build(name)
        try:
            return ctypes.CDLL(str(built.library)), built
        except OSError as error:
            raise BuildError(f"the compiled library cannot be loaded: {error}") from error


def open_optional(name: str, what: str) -> ctypes.CDLL | None:
    """Open a library whose kernels can be done without, and log which one or why not.

    Args:
        name: As in `open_library`.
        what: The kernels of the library, for the log.

    Returns:
        None if the library cannot be compiled or opened, and with `PDT_CPU_KERNEL=0`, which logs nothing.
    """
    if os.environ.get("PDT_CPU_KERNEL") == "0":
        return None
    try:
        loaded, built = open_library(name)
    except BuildError as error:
        log.warning("%s: no compiled kernels, because %s", what, error)
        return None
    log.info("%s: compiled (%s; %s)", what, built.compiler, built.library)
    return loaded


def compile_together(*names: str) -> None:
    """Compile several sources at the same time, which `open_library` would compile one after the other.

    A source that cannot be compiled is left to `open_library`, which reports why. `PDT_CPU_KERNEL=0` compiles nothing.

    Args:
        names: As in `open_library`.
    """
    if os.environ.get("PDT_CPU_KERNEL") == "0":
        return

    def compile_one(name: str) -> None:
        with contextlib.suppress(BuildError):
            build(name)

    with ThreadPoolExecutor(len(names)) as threads:
        list(threads.map(compile_one, names))
