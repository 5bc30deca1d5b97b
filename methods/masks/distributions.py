"""Distributions: how the weights that remain are divided among the layers of a network.

Each of `DISTRIBUTIONS` takes a tensor per layer and the share of all weights that remains, and returns that share for
each layer. `uniform` and `erdos_renyi` read only the shapes of the tensors; `by_score` reads the scores in them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor


def uniform(tensors: Mapping[str, Tensor], kept: float) -> dict[str, float]:
    """Return the same share for every layer.

    Args:
        tensors: Weight or score of each layer, by name.
        kept: Share of all weights that remains, from 0 to 1.
    """
    return dict.fromkeys(tensors, kept)


def erdos_renyi(tensors: Mapping[str, Tensor], kept: float) -> dict[str, float]:
    """Return shares in proportion to (K + C + R + S) / (K * C * R * S), so that large layers are pruned most.

    A layer whose share would exceed 1 is kept whole, and the others share the rest in the same proportion.

    Args:
        tensors: Weight or score of each layer, by name; only the shapes are read.
        kept: Share of all weights that remains, from 0 to 1.

    Source: Evci, Gale, Menick, Castro, Elsen, "Rigging the Lottery: Making All Tickets Winners", ICML 2020
    (Erdős-Rényi-Kernel), after Mocanu et al., 2018.
    """
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    weights = {name: math.prod(shape) for name, shape in shapes.items()}
    proportion = {name: sum(shape) / math.prod(shape) for name, shape in shapes.items()}
    whole: dict[str, float] = {}
    while others := [name for name in shapes if name not in whole]:
        budget = kept * sum(weights.values()) - sum(weights[name] for name in whole)
        factor = budget / sum(proportion[name] * weights[name] for name in others)
        full = [name for name in others if factor * proportion[name] >= 1]
        if not full:
            return {name: whole.get(name, factor * proportion[name]) for name in shapes}
        whole |= dict.fromkeys(full, 1.0)
    return dict.fromkeys(shapes, 1.0)


def by_score(tensors: Mapping[str, Tensor], kept: float) -> dict[str, float]:
    """Return the share of each layer's scores that are among the largest of the whole network.

    Args:
        tensors: Scores of each layer, by name.
        kept: Share of all weights that remains, from 0 to 1.

    Source: Frankle and Carbin, "The Lottery Ticket Hypothesis: Finding Sparse, Trainable Neural Networks", ICLR 2019
    (which prunes deep networks globally).
    """
    scores = torch.cat([score.flatten() for score in tensors.values()])
    threshold = scores.topk(max(1, round(kept * len(scores)))).values[-1]
    return {name: float((score >= threshold).sum()) / score.numel() for name, score in tensors.items()}


DISTRIBUTIONS: Mapping[str, Callable[[Mapping[str, Tensor], float], dict[str, float]]] = {
    "uniform": uniform,
    "erdos_renyi": erdos_renyi,
    "global": by_score,
}
