"""CUDA sources with their headers inlined.

The text is the key of the cache of compiled kernels. With an include path, the cache would keep an old kernel after a
change of a header.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path

HERE = Path(__file__).resolve().parent
FOLDERS = (HERE / "sources", HERE.parent / "include")
# IEEE 754 arithmetic with subnormal numbers, so that results equal those of `kernels.prune.reference`. Products and
# sums of convolutions become fused multiply-adds, which round once instead of twice.
OPTIONS = ("--std=c++17", "--ftz=false", "--prec-div=true", "--prec-sqrt=true", "--fmad=true")
INCLUDE = re.compile(r'^#include "([^"]+)"$', re.MULTILINE)


@functools.cache
def source(name: str) -> str:
    """Return a file of kernels/cuda/sources. The text of each project header replaces its first #include."""
    return inlined(name, FOLDERS, set())


def inlined(name: str, folders: tuple[Path, ...], seen: set[str]) -> str:
    """Return the text of a file with its quoted includes replaced, each file once."""
    seen.add(name)
    path = next(folder / name for folder in folders if (folder / name).exists())

    def replace(found: re.Match[str]) -> str:
        return "" if found[1] in seen else inlined(found[1], folders, seen)

    return INCLUDE.sub(replace, path.read_text(encoding="utf-8").replace("#pragma once\n", ""))
