"""Compile CUDA kernels with NVRTC to machine code for one device, and cache it on disk.

This module uses only CuPy's bindings of NVRTC. CuPy's own compilation always adds `-ftz=true`, which flushes subnormal
numbers to zero and so changes results. Unlike PTX, machine code (a cubin) also loads with a driver older than the
compiler.
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
    """A kernel does not compile, or cannot be stored. The message is one line."""


@dataclass(frozen=True)
class Cubin:
    """Path of a compiled kernel, and the mangled name of its function."""

    path: Path
    function: str


def architecture(capability: tuple[int, int]) -> str:
    """Return the name of an architecture for NVRTC from a compute capability: (9, 0) is `sm_90a`.

    From 9.0 on, the suffix `a` enables instructions that this architecture has and later ones may lack.
    """
    major, minor = capability
    return f"sm_{major}{minor}{'a' if major >= 9 else ''}"


def cubin(nvrtc: Any, file: str, kernel: str, target: str) -> Cubin:
    """Find a compiled kernel in the cache, or compile it.

    Args:
        nvrtc: CuPy's bindings, `cupy.cuda.nvrtc`.
        file: Name of a file in kernels/cuda/sources.
        kernel: Name of the kernel with template arguments.
        target: Architecture, as returned by `architecture`.

    Raises:
        CompileError: The kernel does not compile, or the cache is refused or cannot be written.
    """
    digest = hashlib.sha256()
    for part in (source(file), kernel, target, *OPTIONS, *map(str, nvrtc.getVersion())):
        digest.update(part.encode() + b"\0")
    name = kernel.partition("<")[0].removeprefix("pdt::")
    path = cache.folder() / f"{name}-{target}-{digest.hexdigest()[:20]}.cubin"
    try:
        facts = cache.find(path)
    except cache.RefusedError as error:
        raise CompileError(str(error)) from error
    if facts is None or "function" not in facts:
        content, functions = compile_cubin(nvrtc, file, (kernel,), target)
        facts = {"function": functions[kernel]}
        try:
            with cache.building(path) as built:
                built.write_bytes(content)
                cache.store(built, path, **facts)
        except OSError as error:
            raise CompileError(f"the cache {path.parent} cannot be written ({error.strerror})") from error
    return Cubin(path, facts["function"])


def compile_cubin(
    nvrtc: Any, file: str, kernels: Sequence[str], target: str, options: Sequence[str] = OPTIONS
) -> tuple[bytes, dict[str, str]]:
    """Compile kernels of one file into one cubin; return it, and the mangled function name of each kernel.

    Raises:
        CompileError: The compilation failed. The message has the first line of the compiler that contains `error`.
    """
    program = nvrtc.createProgram(source(file), file, (), ())
    try:
        for kernel in kernels:
            nvrtc.addNameExpression(program, kernel)
        try:
            nvrtc.compileProgram(program, (*options, f"--gpu-architecture={target}"))
        except Exception as error:  # NVRTCError of CuPy or of other bindings
            lines = str(nvrtc.getProgramLog(program)).splitlines()
            said = next((line.strip() for line in lines if "error" in line.lower()), str(error))
            raise CompileError(f"{file} for {target}: {said}") from error
        functions = {kernel: nvrtc.getLoweredName(program, kernel) for kernel in kernels}
        return _whole(bytes(nvrtc.getCUBIN(program))), functions
    finally:
        nvrtc.destroyProgram(program)


def _whole(content: bytes) -> bytes:
    """Return a cubin with the length that its ELF header declares.

    CuPy treats the cubin as text and drops the last byte, which a file must have. A cubin ends with its table of
    program headers. The last byte of that table is the highest byte of an alignment, and is therefore 0.
    """
    if len(content) < ELF_HEADER_BYTES:
        raise CompileError(f"NVRTC returned {len(content)} bytes, which is not a cubin")
    program_headers, section_headers = struct.unpack_from("<QQ", content, 32)
    size_of_program_header, programs, size_of_section_header, sections = struct.unpack_from("<4H", content, 54)
    size = max(program_headers + size_of_program_header * programs, section_headers + size_of_section_header * sections)
    if len(content) + 1 < size:
        raise CompileError(f"NVRTC returned {len(content)} bytes of a cubin of {size} bytes")
    return content.ljust(size, b"\0")
