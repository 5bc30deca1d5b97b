"""How kernels that stay are spread over the layers of a network."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence


def uniform(shapes: Mapping[str, Sequence[int]], kept: float) -> dict[str, float]:
    """The same share of the kernels of every layer.

    Args:
        shapes: (K, C, R, S) of each layer's weight, by name.
        kept: the share of all kernels that stays, from 0 to 1.
    """
    return dict.fromkeys(shapes, kept)


def erdos_renyi(shapes: Mapping[str, Sequence[int]], kept: float) -> dict[str, float]:
    """Shares in proportion to (K + C + R + S) / (K * C * R * S): wide layers lose most, as they have most to lose.

    Where that is more than a layer has, it stays whole, and the others share the rest in the same proportion.

    Args:
        shapes: (K, C, R, S) of each layer's weight, by name.
        kept: the share of all kernels that stays, from 0 to 1.

    Source: Evci, Gale, Menick, Castro, Elsen, "Rigging the Lottery: Making All Tickets Winners", ICML 2020
    (Erdős-Rényi-Kernel), after Mocanu et al., 2018. Theirs is a share of weights; where all kernels are of one size,
    it is the same.
    """
    kernels = {name: shape[0] * shape[1] for name, shape in shapes.items()}
    likely = {name: sum(shape) / math.prod(shape) for name, shape in shapes.items()}
    whole: dict[str, float] = {}
    while others := [name for name in shapes if name not in whole]:
        budget = kept * sum(kernels.values()) - sum(kernels[name] for name in whole)
        factor = budget / sum(likely[name] * kernels[name] for name in others)
        full = [name for name in others if factor * likely[name] >= 1]
        if not full:
            return {name: whole.get(name, factor * likely[name]) for name in shapes}
        whole |= dict.fromkeys(full, 1.0)
    return dict.fromkeys(shapes, 1.0)


ALLOCATIONS = {"uniform": uniform, "erdos_renyi": erdos_renyi}
