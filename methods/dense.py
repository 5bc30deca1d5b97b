"""Dense training: nothing is pruned. It is the baseline of every comparison."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, ClassVar

from annotated_types import Ge, Interval

from suite.method import Context, Method, ReconfigPlan
from suite.recipe import Tuning
from suite.registry import register


@register("method", "dense")
class Dense(Method):
    """Dense training, the baseline; or dense training of a narrower network.

    Attributes:
        width: Share of the channels that each space of the network keeps, rounded down; at least one.
        match: A method as on the command line, such as `prunetrain`. All spaces of the network are narrowed by the same
            share, until its inference costs no more FLOPs than the network that this method's trial ended with. Empty:
            the network is not narrowed.
        repeat: Number of the repetition. It changes nothing but the trial's id: the same seed is trained again, to
            measure how much two equal trials differ.
    """

    source: ClassVar[str] = "none: ordinary training"
    replayable: ClassVar[bool] = True
    prunes: ClassVar[bool] = False
    tuning: ClassVar[Sequence[Tuning]] = (
        Tuning(trials=0, chosen_on="other", source="it has only its recipe, which belongs to the task"),
    )

    width: Annotated[float, Interval(gt=0, le=1)] = 1.0
    match: str = ""
    repeat: Annotated[int, Ge(1)] = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.match and self.width < 1:
            raise ValueError(f"match={self.match} decides the width; leave out width={self.width:g}")
        if self.ignore and not self.match and self.width == 1:
            raise ValueError("ignore leaves layers out of what is narrowed; use it with width or match")

    def depends_on(self) -> tuple[str, ...]:
        return (self.match,) if self.match else ()

    def is_control(self) -> bool:
        return bool(self.match) or self.repeat > 1

    def begin(self, ctx: Context) -> Sequence[ReconfigPlan]:
        """Narrow all spaces to `width`, or to the largest common share that costs no more than the other network."""
        if not self.match and self.width == 1:
            return ()
        free = {space.name: space.original for space in ctx.spaces.values() if not space.frozen}

        def narrowed(share: float) -> ReconfigPlan:
            counts = {name: max(1, math.floor(share * len(channels) + 1e-9)) for name, channels in free.items()}
            return ReconfigPlan(kept={name: channels[: counts[name]] for name, channels in free.items()})

        if not self.match:
            return (narrowed(self.width),)
        wanted = ctx.others[self.match].inference_flops
        # List the shares at which some space loses a channel; shares between two of them give the same network.
        shares = sorted({count / len(channels) for channels in free.values() for count in range(1, len(channels) + 1)})
        # Find the largest one that is cheap enough by bisection.
        low, high = 0, len(shares) - 1
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if ctx.inference_flops(narrowed(shares[middle])) <= wanted else (low, middle - 1)
        return (narrowed(shares[low]),)
