"""CUDA sources with their headers inlined.

The cache of compiled kernels uses the text as its key. With an include path it would keep an old kernel after a header
has changed.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path

HERE = Path(__file__).resolve().parent
FOLDERS = (HERE / "sources", HERE.parent / "include")
# IEEE 754 arithmetic, including subnormal numbers, so that results equal those of `kernels.prune.reference`. The
# products and sums of convolutions are contracted to fused multiply-adds, which round once instead of twice.
OPTIONS = ("--std=c++17", "--ftz=false", "--prec-div=true", "--prec-sqrt=true", "--fmad=true")
INCLUDE = re.compile(r'^#include "([^"]+)"$', re.MULTILINE)


@functools.cache
def source(name: str) -> str:
    """Return a file of kernels/cuda/sources with the first #include of each project header replaced by its text."""
    return inlined(name, FOLDERS, set())


def inlined(name: str, folders: tuple[Path, ...], seen: set[str]) -> str:
    """Return the text of a file with its quoted includes replaced, each file once."""
    seen.add(name)
    path = next(folder / name for folder in folders if (folder / name).exists())

    def replace(found: re.Match[str]) -> str:
        return "" if found[1] in seen else inlined(found[1], folders, seen)

    return INCLUDE.sub(replace, path.read_text(encoding="utf-8").replace("#pragma once\n", ""))
