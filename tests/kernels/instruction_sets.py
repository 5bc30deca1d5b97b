"""Kernels compiled for an instruction set that a test names, and the proofs that compare them with their definition."""

from __future__ import annotations

import ctypes
import hashlib
import shlex
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from kernels import cache
from kernels.compressed import cpu as compressed
from kernels.compressed import proof as compressed_proof
from kernels.cpu.build import BASE_FLAGS, INCLUDE_FOLDERS, SOURCES, find_compiler
from kernels.prune import cpu as prune
from kernels.prune import proof as prune_proof
from kernels.sparse_conv import cpu as sparse_conv
from kernels.sparse_conv import proof as sparse_conv_proof

# For each source: how its library is bound, and its proof.
KERNELS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], str]]] = {
    "prune_nm": (prune.Pruning, prune_proof.of_pruning),
    "compressed_gradients": (compressed.Products, compressed_proof.of_products),
    "sparse_conv": (sparse_conv.Kernels, sparse_conv_proof.of_convolutions),
}


def compiled(name: str, flags: Sequence[str]) -> ctypes.CDLL:
    """Compile a source, or find it in the cache, and open it."""
    return ctypes.CDLL(str(library_of(name, flags)))


def library_of(name: str, flags: Sequence[str]) -> Path:
    """Compile a source, or find it in the cache, under a name that contains a hash of everything that determines it."""
    includes = [f"-I{folder}" for folder in INCLUDE_FOLDERS]
    command = [*find_compiler(), *BASE_FLAGS, *flags, *includes, str(SOURCES / f"{name}.cpp")]
    digest = hashlib.sha256(shlex.join(command).encode())
    digest.update(subprocess.run([command[0], "--version"], capture_output=True, check=True).stdout)
    for path in sorted([SOURCES / f"{name}.cpp", *(one for folder in INCLUDE_FOLDERS for one in folder.glob("*.h"))]):
        digest.update(path.read_bytes())
    library = cache.folder() / "tests" / f"{name}-{digest.hexdigest()[:20]}.so"
    if cache.find(library) is None:
        with cache.building(library) as built:
            subprocess.run([*command, "-o", str(built)], check=True)
            cache.store(built, library)
    return library


def mutated_sources(folder: Path, file: str, before: str, after: str) -> tuple[Path, Path]:
    """Copy all sources, one of them changed; return what replaces `build.SOURCES`, and the folder of other headers."""
    for original in INCLUDE_FOLDERS:
        (folder / original.name).mkdir()
        for path in original.iterdir():
            text = path.read_text()
            if path.name == file:
                assert text.count(before) == 1, f"{file} has {text.count(before)} times {before!r}"
                text = text.replace(before, after)
            (folder / original.name / path.name).write_text(text)
    return folder / "sources", folder / "include"
