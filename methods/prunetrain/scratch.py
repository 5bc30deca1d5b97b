"""Training of a pruned network from new weights, to measure its architecture without the pruning that led to it.

Source: Liu, Sun, Zhou, Huang, Darrell, "Rethinking the Value of Network Pruning", ICLR 2019; a baseline of PruneTrain
(Lym et al., SC 2019), which trains from scratch in one run.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

from suite.method import Context, Method, ReconfigPlan
from suite.recipe import Tuning
from suite.registry import register


@register("method", "scratch")
class Scratch(Method):
    """Dense training, from new weights, of the network that another method's trial with the same seed ended with.

    Attributes:
        of: The other method, as on the command line.
    """

    source: ClassVar[str] = "Liu et al., Rethinking the Value of Network Pruning, ICLR 2019"
    replayable: ClassVar[bool] = True
    tuning: ClassVar[Sequence[Tuning]] = (
        Tuning(trials=0, chosen_on="other", source="it has only its recipe, which belongs to the task"),
    )

    of: str = "prunetrain"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.ignore:
            raise ValueError(
                f"ignore leaves out layers of the other method: write it there, as in of={self.of}[ignore=...]"
            )

    def depends_on(self) -> tuple[str, ...]:
        return (self.of,)

    def is_control(self) -> bool:
        return True

    def begin(self, ctx: Context) -> Sequence[ReconfigPlan]:
        """Repeat the reconfigurations of the other trial, without their batch sizes and learning rates."""
        return [
            dataclasses.replace(plan, batch_size=None, lr_scale=None, restart=False)
            for plan in ctx.others[self.of].reconfigurations
        ]
