"""Opens a compiled CPU library."""

from __future__ import annotations

import ctypes

from kernels import cache
from kernels.cpu.build import Build, BuildError, build


def open_library(name: str) -> tuple[ctypes.CDLL, Build]:
    """Builds a source where it has to be, and opens it.

    A library that does not open (another C library, an OpenMP runtime that has gone) is compiled once more.

    Args:
        name: of the source in `kernels/cpu/sources`, without its ending.

    Raises:
        BuildError: it cannot be had on this machine.
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
