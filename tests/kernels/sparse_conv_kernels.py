"""Names of all CUDA kernels for sparse convolution in one number format."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from kernels.cuda.plan import FORMATS
from kernels.sparse_conv import cuda_plan as tap_plan

TILES = (*tap_plan.TILES, (1, 1))


def kernels_of(dtype: str, steps: Sequence[int] = (0, *tap_plan.STEPS)) -> list[str]:
    """Return every kernel that a plan may contain, for input columns with these distances."""
    name = FORMATS[dtype][0]
    found = [f"pdt::{kernel}<{name}, {last}>" for kernel in ("to_blocks", "from_blocks") for last in ("true", "false")]
    found.append(f"pdt::finish_products<{name}>")
    for (rows, columns), step in itertools.product(TILES, steps):
        found.append(f"pdt::sum_taps<{name}, {rows}, {columns}, {step}>")
        for (down, right), groups in tap_plan.GROUPS.items():
            if step == 1 or (down, right) == tap_plan.SINGLE:
                found.append(f"pdt::sum_products<{name}, {rows}, {columns}, {step}, {down}, {right}, {groups}>")
    return found
