"""Which channels may be removed, how many of them remain, and the reconfiguration that removes the others."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import torch
from torch import Tensor

from suite.index_spaces import IndexSpace
from suite.method import Context
from suite.plan import random_key

MOST_REASONS = 5  # that one message names


def refuse_frozen(ctx: Context) -> None:
    """Refuse a model without a channel that can be removed.

    Raises:
        ValueError: with the reasons.
    """
    if all(space.frozen for space in ctx.spaces.values()):
        texts = "; ".join(space.frozen_because for space in ctx.spaces.values())
        reasons = list(dict.fromkeys(texts.split("; ")))
        more = f"; and {len(reasons) - MOST_REASONS} more reasons" if len(reasons) > MOST_REASONS else ""
        raise ValueError(f"no channel of this model can be removed: {'; '.join(reasons[:MOST_REASONS])}{more}")


def refuse_one_epoch(ctx: Context) -> None:
    """Refuse a training in which no epoch follows another, since channels are removed between two epochs.

    Raises:
        ValueError: with the number of epochs.
    """
    if ctx.epochs < 2:
        raise ValueError(f"channels are removed between two epochs, and this training has {ctx.epochs}: take 2 or more")


def is_trained(space: IndexSpace, ctx: Context) -> bool:
    """Return whether layers share the channels of a space, and the weights of all of these layers are trained."""
    weights = ctx.spaces.weights(space, ctx.layers)
    return bool(weights) and all(one.weight.requires_grad for one in weights)


def removable_spaces(ctx: Context) -> list[IndexSpace]:
    """Return the index spaces whose channels may be removed. One with a weight that is not trained stays as it is."""
    return [space for space in ctx.spaces.values() if not space.frozen and is_trained(space, ctx)]


def is_due(share: float, ctx: Context) -> bool:
    """Return whether the epoch that has just ended is the first that ends at or after a share, or a later one.

    After the last epoch but one, a cut is always due, because a network has to be trained after it.

    Args:
        share: Share of the training before a cut.
        ctx: Context at the end of the epoch.
    """
    return ctx.progress >= share - 1e-9 or ctx.epochs_done >= ctx.epochs - 1


def rounded_width(count: int, size: int, round_to: int) -> int:
    """Return `count` rounded up to a multiple of `round_to`, but at most `size`."""
    return min(size, -(-count // round_to) * round_to)


def drawn(space: IndexSpace, count: int, ctx: Context) -> Tensor:
    """Return a mask of `count` channels that the seed chooses after this epoch, (size,) bool, on the CPU."""
    # The key has no rank: all processes of a training remove the same channels.
    key = random_key(ctx.seed, ctx.epochs_done, 0, "channels", space.name)
    order = torch.randperm(space.size, generator=torch.Generator().manual_seed(key))[:count]
    return torch.zeros(space.size, dtype=torch.bool).index_fill_(0, order, True)


def kept_channels(remaining: Mapping[str, Tensor], ctx: Context) -> dict[str, list[int]]:
    """Return `ReconfigPlan.kept` for masks of the channels that remain, by space; only spaces that shrink."""
    return {
        name: list(itertools.compress(ctx.spaces[name].original, mask.tolist()))
        for name, mask in remaining.items()
        if not mask.all()
    }
