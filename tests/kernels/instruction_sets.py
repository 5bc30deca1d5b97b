"""Kernels compiled for an instruction set that this test names, and cases that compare them with their definition."""

from __future__ import annotations

import ctypes
import hashlib
import itertools
import shlex
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from kernels import cache
from kernels.compressed import cpu as compressed
from kernels.compressed import proof as compressed_proof
from kernels.cpu.build import BASE_FLAGS, INCLUDE_FOLDERS, SOURCES, find_compiler
from kernels.prune import cpu as prune
from kernels.prune import proof as prune_proof
from kernels.prune.rule import MODES, SCOPES, PruneRule
from kernels.sparse_conv import cpu as sparse_conv
from kernels.sparse_conv import proof as sparse_conv_proof

# For each source: how its library is bound, and its proof.
KERNELS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], str]]] = {
    "prune_nm": (prune.Pruning, prune_proof.of_pruning),
    "compress_nm": (prune.Compression, prune_proof.of_compression),
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


def rules(numbers: Callable[[int], set[int]]) -> Iterator[PruneRule]:
    """Yield rules with every m, mode and scope; `numbers` returns the n of an m."""
    for m in range(2, 33):
        for mode, n in itertools.product(MODES, sorted(numbers(m))):
            yield PruneRule(n, m, mode)
        for scope in SCOPES[1:]:
            yield PruneRule((m + 1) // 2, m, "magnitude", scope)
            yield PruneRule(1, m, "random", scope)


def prune_cases(numbers: Callable[[int], set[int]]) -> Iterator[prune_proof.Case]:
    """Yield gradients with whole groups and with a short last one; of matrices and images; in every number format."""
    for rule, dtype in itertools.product(rules(numbers), prune_proof.DTYPES):
        for shape in ((2, 3 * rule.m, 5, 3), (37, 2 * rule.m + 1)):
            yield prune_proof.Case(shape, dtype, rule)


def compressed_cases() -> Iterator[compressed_proof.Case]:
    """Yield layers with every m; windows, strides, dilations and groups take turns."""
    windows = itertools.cycle([((3, 3), 17), ((1, 1), 34), ((5, 5), 9), ((2, 4), 70), (None, 33), ((1, 1), 150)])
    geometries = itertools.cycle(
        [((1, 1), (1, 2), 1), ((2, 1), (1, 1), 1), ((1, 1), (1, 1), 2), ((1, 3), (2, 1), 1), ((2, 2), (1, 1), 1)]
    )
    for m in range(2, 33):
        for n, dtype in itertools.product(sorted({1, min(3, m), m}), compressed_proof.DTYPES):
            (kernel, inputs), (stride, dilation, groups) = next(windows), next(geometries)
            geometry = compressed_proof.Shape(stride, (2, 1), dilation, groups if kernel else 1)
            yield compressed_proof.Case(kernel, inputs // groups * groups, geometry, n, m, dtype, size=(10, 12))


def sparse_conv_cases() -> Iterator[sparse_conv_proof.Case]:
    """Yield convolutions of odd sizes, with fewer and more images than a vector has lanes."""
    sizes = itertools.product((1, 2, 7, 16, 33), ((4, 4), (5, 9), (13, 7)))
    for (images, size), geometry in itertools.product(sizes, sparse_conv_proof.GEOMETRIES):
        for dtype, squares in itertools.product(sparse_conv_proof.DTYPES, (True, False)):
            kernel = (3, 3) if squares or images % 2 else (2, 3)
            yield sparse_conv_proof.Case(kernel, squares, geometry, dtype, images > 2, images, size)


def differences(name: str, kernels: Any, numbers: Callable[[int], set[int]], every: int = 1) -> Iterator[str]:
    """Yield what differs from its definition, of the proof and of the cases above, or of one in `every` of them."""
    found = KERNELS[name][1](kernels)
    yield from [found] if found else []
    cases: dict[str, tuple[Callable[[Any], str | bool], Iterator[Any]]] = {
        "prune_nm": (lambda case: not prune_proof.prunes(kernels, case), prune_cases(numbers)),
        "compress_nm": (lambda case: not prune_proof.compresses(kernels, case), prune_cases(numbers)),
        "compressed_gradients": (lambda case: compressed_proof.differs(kernels, case), compressed_cases()),
        "sparse_conv": (lambda case: sparse_conv_proof.differs(kernels, case), sparse_conv_cases()),
    }
    differs, all_cases = cases[name]
    yield from (str(case) for case in itertools.islice(all_cases, None, None, every) if differs(case))


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
