"""A pruned network trained from new weights: what its architecture is worth without the way that led to it.

Source: Liu, Sun, Zhou, Huang, Darrell, "Rethinking the Value of Network Pruning", ICLR 2019; a baseline of PruneTrain
(Lym et al., SC 2019), which trains from scratch in one run.
"""

from __future__ import annotations

from typing import ClassVar

from suite.method import Context, Method, ReconfigPlan
from suite.registry import register


@register("method", "scratch")
class Scratch(Method):
    """Dense training, from new weights, of the network that another method's trial of the same seed ended with.

    Attributes:
        of: the method as one types it.
    """

    source: ClassVar[str] = "Liu et al., Rethinking the Value of Network Pruning, ICLR 2019"
    replayable: ClassVar[bool] = True

    of: str = "prunetrain"

    def depends_on(self) -> tuple[str, ...]:
        return (self.of,)

    def begin(self, ctx: Context) -> ReconfigPlan | None:
        """All that was cut out of the other network, at once."""
        kept: dict[str, list[int]] = {}
        removed: dict[str, None] = {}
        gated: dict[str, None] = {}
        for plan in ctx.others[self.of].reconfigurations:
            kept.update({name: list(channels) for name, channels in plan.kept.items()})
            removed.update(dict.fromkeys(plan.removed_branches))
            gated.update(dict.fromkeys(plan.gated))
        inside = {space for name in removed for space in ctx.spaces.removable_branches[name].spaces}
        kept = {name: channels for name, channels in kept.items() if name not in inside}
        return ReconfigPlan(kept=kept, removed_branches=tuple(removed), gated=tuple(gated)) if kept or removed else None
