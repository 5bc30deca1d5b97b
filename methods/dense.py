"""Dense training: nothing is pruned. It is the baseline of every comparison."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, ClassVar

from annotated_types import Ge, Interval
from torch import Tensor, nn

from suite.index_spaces import IndexSpace
from suite.method import Context, Method, ReconfigPlan
from suite.recipe import Tuning
from suite.registry import register


@register("method", "dense")
class Dense(Method):
    """Dense training, the baseline; or dense training of a narrower network.

    Attributes:
        width: Share of the channels that each space of the network keeps, rounded down; at least one. Layers whose
            weights are not trained, such as airbench's first one, keep all.
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
        fixed = {name for name, layer in ctx.layers.items() if not layer.weight.requires_grad}
        free = {one.name: one for one in ctx.spaces.values() if not one.frozen and not fixed & {*one.producers}}

        def narrowed(share: float) -> ReconfigPlan:
            weights: dict[str, Tensor] = {}  # in which the inputs that are not kept are 0
            kept = {}
            for space in free.values():
                count = max(1, math.floor(share * space.size + 1e-9))
                chosen = _first_alive(space, count, ctx.model, weights)
                kept[space.name] = [space.original[index] for index in chosen]
            return ReconfigPlan(kept=kept)

        if not self.match:
            return (narrowed(self.width),)
        wanted = ctx.others[self.match].inference_flops
        # List the shares at which some space loses a channel; shares between two of them give the same network.
        shares = sorted({count / one.size for one in free.values() for count in range(1, one.size + 1)})
        # Find the largest one that is cheap enough by bisection.
        low, high = 0, len(shares) - 1
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if ctx.inference_flops(narrowed(shares[middle])) <= wanted else (low, middle - 1)
        return (narrowed(shares[low]),)


def _first_alive(space: IndexSpace, count: int, model: nn.Module, weights: dict[str, Tensor]) -> list[int]:
    """Return the first channels of a space whose weights are not all 0 without the inputs that are not kept.

    In a layer that begins as the identity, as airbench's do, a channel passes on that of its input alone.

    Args:
        space: The space; those before it have been narrowed.
        count: Number of channels.
        model: The model.
        weights: Copies of weights by name, which are changed.
    """

    def weight(name: str) -> Tensor:
        return weights.setdefault(name, model.get_parameter(name).detach().clone())

    of_producers = [f"{name}.weight" for name in space.producers]
    alive = [False] * space.size
    for part in space.slices:
        if part.axis == 0 and part.tensor in of_producers:
            nonzero = weight(part.tensor).flatten(1).any(1).cpu()[part.entries].any(1)
            alive = [one or other for one, other in zip(alive, nonzero.tolist(), strict=True)]
    chosen = sorted(sorted(range(space.size), key=lambda index: not alive[index])[:count])
    others = [index for index in range(space.size) if index not in chosen]
    for part in space.slices:
        if part.axis == 1:
            weight(part.tensor)[:, part.entries[others].flatten()] = 0
    return chosen
