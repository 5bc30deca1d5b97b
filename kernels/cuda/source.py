"""A CUDA source as one text.

The headers are put into the text, not left to an include path: a cache of compiled kernels is keyed by the text, and
would go on using an old kernel after a header has changed.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path

HERE = Path(__file__).resolve().parent
FOLDERS = (HERE / "sources", HERE.parent / "include")
# Arithmetic as IEEE 754 has it, subnormal numbers included, so that results are those of `kernels.prune.reference`;
# products
# and sums of convolutions are contracted, which rounds once instead of twice.
OPTIONS = ("--std=c++17", "--ftz=false", "--prec-div=true", "--prec-sqrt=true", "--fmad=true")
INCLUDE = re.compile(r'^#include "([^"]+)"$', re.MULTILINE)


@functools.cache
def source(name: str) -> str:
    """Gives a file of kernels/cuda/sources with each of the project's headers in place of its first #include."""
    return inlined(name, FOLDERS, set())


def inlined(name: str, folders: tuple[Path, ...], seen: set[str]) -> str:
    """Gives the text of a file with its quoted includes replaced, each file once."""
    seen.add(name)
    path = next(folder / name for folder in folders if (folder / name).exists())

    def replace(found: re.Match[str]) -> str:
        return "" if found[1] in seen else inlined(found[1], folders, seen)

    return INCLUDE.sub(replace, path.read_text(encoding="utf-8").replace("#pragma once\n", ""))
