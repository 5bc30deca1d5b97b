"""Schedules: in which steps masks change, and how far pruning has come. `Context.progress` is the usual argument."""

from __future__ import annotations

import math


def cubic(progress: float, begin: float, end: float) -> float:
    """Return the share of the final sparsity that is reached: 0 until `begin`, 1 from `end` on, fast at first.

    With `begin` equal to `end`, pruning happens in one shot.

    Args:
        progress: Share of the training that is done, in [0, 1].
        begin: Progress at which pruning begins.
        end: Progress at which the final sparsity is reached, not before `begin`.

    Source: Zhu and Gupta, "To Prune, or Not to Prune: Exploring the Efficacy of Pruning for Model Compression", 2017.
    """
    if progress < begin:
        return 0.0
    return 1.0 - (1.0 - (progress - begin) / (end - begin)) ** 3 if progress < end else 1.0


def cosine(progress: float, end: float) -> float:
    """Return a factor that falls from 1 to 0 along half a cosine, and is 0 from `end` on.

    Args:
        progress: Share of the training that is done, in [0, 1].
        end: Progress at which the factor is 0, greater than 0.

    Source: RigL (Evci et al., ICML 2020), for the share of weights that an update replaces.
    """
    return (1.0 + math.cos(math.pi * progress / end)) / 2.0 if progress < end else 0.0


def periodic(step: int, every: int) -> bool:
    """Return whether masks change in a step: in every `every`-th one, but not in step 0."""
    return step > 0 and step % every == 0
