"""Opening of compiled CPU libraries."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import logging
import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from kernels import cache
from kernels.cpu.build import Build, BuildError, build

log = logging.getLogger("pdt.kernels")

Kernels = TypeVar("Kernels")


def open_library(
    name: str, bind: Callable[[ctypes.CDLL], Kernels], proof: Callable[[Kernels], str]
) -> tuple[Kernels, Build]:
    """Compile a source if necessary, open the library, and compare its kernels with their definition before first use.

    A library that agrees gets a note of that. The name of a library contains a hash of the processor, the compiler and
    the source. The comparison repeats after a change of the proof's file, and at every start if the note cannot be
    stored.

    Args:
        name: Name of the source in `kernels/cpu/sources`, without its suffix.
        bind: Gives the functions of the library their types.
        proof: Compares the kernels with their definition, and returns the first case that differs, empty if all agree.
            It runs in its own thread, whose OpenMP threads end with it. It therefore neither sees nor changes the state
            of the caller's thread (the mode of autograd, dispatch modes such as that of fake tensors).

    Returns:
        The kernels, as `bind` returns them, and their library.

    Raises:
        BuildError: The library cannot be compiled or opened on this machine, or a kernel differs from its definition.
    """
    built = build(name)
    try:
        library = ctypes.CDLL(str(built.library))
    except OSError as error:  # the C library or the OpenMP runtime changed since the build, for example
        raise BuildError(
            f"the library {built.library} cannot be loaded ({error}); remove it to compile it again"
        ) from error
    kernels = bind(library)
    made = sys.modules[proof.__module__].__file__
    assert made is not None
    version = hashlib.sha256(Path(made).read_bytes()).hexdigest()
    if built.facts.get("agrees") == version:
        return kernels, built
    with ThreadPoolExecutor(1) as thread:
        different = thread.submit(proof, kernels).result()
    if different:
        raise BuildError(f"the compiled library {built.library} differs from its definition: {different}")
    # Root may own the folder and share it, or the folder may have changed. The next process then compares again.
    with contextlib.suppress(OSError, ValueError, LookupError, cache.RefusedError):
        cache.add_facts(built.library, agrees=version)
    return kernels, built


def open_optional(
    name: str, what: str, bind: Callable[[ctypes.CDLL], Kernels], proof: Callable[[Kernels], str]
) -> Kernels | None:
    """Open a library that is not required, and log which one or why not.

    Args:
        name, bind, proof: As in `open_library`.
        what: The kernels of the library, for the log.

    Returns:
        The kernels. None if the library cannot be compiled or opened, or differs from its definition. Also None with
        `PDT_CPU_KERNEL=0`, which logs nothing.
    """
    if os.environ.get("PDT_CPU_KERNEL") == "0":
        return None
    try:
        loaded, built = open_library(name, bind, proof)
    except BuildError as error:
        log.warning("%s: plain torch instead of compiled kernels, because %s", what, error)
        return None
    log.info("%s: compiled (%s; %s)", what, built.compiler, built.library)
    return loaded
