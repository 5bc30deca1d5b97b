"""Stochastic depth: branches of a residual network that training images skip at random.

Source: Huang et al., Deep Networks with Stochastic Depth, ECCV 2016.
"""

from __future__ import annotations

from torch import nn


def rates(drop_path: float, depth: int) -> list[float]:
    """Return the probability of each block. It rises linearly from 0 to that of the last block.

    Args:
        drop_path: Probability of the last block.
        depth: Number of blocks.
    """
    return [drop_path * block / (depth - 1) for block in range(depth)]


def stochastic_depth(rate: float) -> nn.Module:
    """Return a module that drops the output of a branch for some images of a training batch."""
    if not rate:
        return nn.Identity()
    # torchvision takes a second to import. Networks without stochastic depth do not need it.
    from torchvision.ops import StochasticDepth

    return StochasticDepth(rate, mode="row")
