"""Dense training: nothing is pruned. The baseline that every other method is held against."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

from suite.method import Context, Method, ReconfigPlan
from suite.registry import register


@register("method", "dense")
class Dense(Method):
    """Dense training, the baseline; or of a narrower network, of equal width everywhere, that costs what another does.

    Attributes:
        match: a method as one types it, such as `prunetrain`: the network is narrowed to the inference FLOPs that its
            trial ended with. Empty: the network as it is.
    """

    source: ClassVar[str] = "none: ordinary training"
    replayable: ClassVar[bool] = True

    match: str = ""

    def depends_on(self) -> tuple[str, ...]:
        return (self.match,) if self.match else ()

    def begin(self, ctx: Context) -> Sequence[ReconfigPlan]:
        """The largest share of the channels of every space, one for all, that costs no more than the other network."""
        if not self.match:
            return ()
        wanted = ctx.others[self.match].inference_flops
        free = {space.name: space.original for space in ctx.spaces.values() if not space.frozen}

        def narrowed(share: float) -> ReconfigPlan:
            return ReconfigPlan(
                kept={name: channels[: max(1, math.floor(share * len(channels)))] for name, channels in free.items()}
            )

        # Shares at which some space loses a channel, so that none between two of them makes another network.
        shares = sorted({count / len(channels) for channels in free.values() for count in range(1, len(channels) + 1)})
        low, high = 0, len(shares) - 1
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if ctx.inference_flops(narrowed(shares[middle])) <= wanted else (low, middle - 1)
        return (narrowed(shares[low]),)
