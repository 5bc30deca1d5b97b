"""Compiles CUDA kernels with NVRTC to machine code for one device, and keeps it on disk.

CuPy's own compilation always adds `-ftz=true`, whatever options it is given, which flushes subnormal numbers to zero
and so changes results: therefore only its bindings of NVRTC are used here. Machine code (a cubin), unlike PTX, also
loads with a driver that is older than the compiler.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernels import cache
from kernels.cuda.source import OPTIONS, source

ELF_HEADER_BYTES = 64


class CompileError(Exception):
    """A kernel does not compile, or cannot be stored; the message is one line."""


@dataclass(frozen=True)
class Cubin:
    """A compiled kernel: its file, and the name of its function in there."""

    path: Path
    function: str


def architecture(capability: tuple[int, int]) -> str:
    """Names a device's own architecture as NVRTC takes it, by its compute capability: (9, 0) is `sm_90a`.

    From 9.0 on, `a` stands for the instructions that this very device has and later ones may lack.
    """
    major, minor = capability
    return f"sm_{major}{minor}{'a' if major >= 9 else ''}"


def cubin(nvrtc: Any, file: str, kernel: str, target: str) -> Cubin:
    """Finds a compiled kernel in the cache, or compiles it there.

    Args:
        nvrtc: CuPy's bindings, `cupy.cuda.nvrtc`.
        file: of kernels/cuda.
        kernel: the kernel's name with template arguments.
        target: the architecture, as of `architecture`.

    Raises:
        CompileError: it does not compile, or the cache cannot be written.
    """
    digest = hashlib.sha256()
    for part in (source(file), kernel, target, *OPTIONS, *map(str, nvrtc.getVersion())):
        digest.update(part.encode() + b"\0")
    name = kernel.partition("<")[0].removeprefix("pdt::")
    path = cache.folder() / f"{name}-{target}-{digest.hexdigest()[:20]}.cubin"
    found = cache.find(path)
    if found is None or "function" not in found:
        content, functions = compile_cubin(nvrtc, file, (kernel,), target)
        found = {"function": functions[kernel]}
        try:
            with cache.building(path) as made:
                made.write_bytes(content)
                cache.store(made, path, **found)
        except OSError as error:
            raise CompileError(f"the cache {path.parent} cannot be written ({error.strerror})") from error
    return Cubin(path, found["function"])


def compile_cubin(
    nvrtc: Any, file: str, kernels: Sequence[str], target: str, options: Sequence[str] = OPTIONS
) -> tuple[bytes, dict[str, str]]:
    """Compiles kernels of one file into one cubin; gives it, and the name of each kernel's function in there.

    Raises:
        CompileError: with the first line of the compiler's messages that says `error`.
    """
    program = nvrtc.createProgram(source(file), file, (), ())
    try:
        for kernel in kernels:
            nvrtc.addNameExpression(program, kernel)
        try:
            nvrtc.compileProgram(program, (*options, f"--gpu-architecture={target}"))
        except Exception as error:  # CuPy's NVRTCError, or another binding's
            lines = str(nvrtc.getProgramLog(program)).splitlines()
            said = next((line.strip() for line in lines if "error" in line.lower()), str(error))
            raise CompileError(f"{file} for {target}: {said}") from error
        functions = {kernel: nvrtc.getLoweredName(program, kernel) for kernel in kernels}
        return _whole(bytes(nvrtc.getCUBIN(program))), functions
    finally:
        nvrtc.destroyProgram(program)


def _whole(content: bytes) -> bytes:
    """Gives a cubin that ends where its ELF header says.

    CuPy takes the last byte for the end of a text and drops it. In a file it would be missing: a cubin ends with its
    table of program headers, and that with the highest byte of an alignment, which is 0.
    """
    if len(content) < ELF_HEADER_BYTES:
        raise CompileError(f"NVRTC gave no cubin, but {len(content)} bytes")
    program_headers, section_headers = struct.unpack_from("<QQ", content, 32)
    size_of_program_header, programs, size_of_section_header, sections = struct.unpack_from("<4H", content, 54)
    size = max(program_headers + size_of_program_header * programs, section_headers + size_of_section_header * sections)
    if len(content) + 1 < size:
        raise CompileError(f"NVRTC gave {len(content)} bytes of a cubin of {size}")
    return content.ljust(size, b"\0")
