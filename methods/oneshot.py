"""One reconfiguration at a given epoch: PruneTrain without its way of going on.

Source: PruneTrain (Lym et al., SC 2019), Sec. 2 and Fig. 2, where one-time reconfiguration stands beside it.
"""

from __future__ import annotations

from typing import Any, ClassVar

from methods.group_lasso import GroupLasso
from suite.method import Context
from suite.registry import register


@register("method", "oneshot")
class OneShot(GroupLasso):
    """One-time reconfiguration: PruneTrain's lasso, and dead channels cut out once, after a given epoch.

    Attributes:
        epoch: after which channels are cut out; later ones train what is left, with the lasso.
    """

    source: ClassVar[str] = "Lym et al., PruneTrain, SC 2019, as a baseline"

    epoch: int = 91

    @classmethod
    def defaults(cls, task: str, preset: str) -> dict[str, Any]:
        """Half of PruneTrain's 182 epochs; in the short presets half of theirs."""
        halves = {"smoke": {"epoch": 2}, "quick": {"epoch": 4}}
        return {**super().defaults(task, preset), **halves.get(preset, {})}

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.epoch < 1:
            raise ValueError(f"epoch is {self.epoch}; the first is 1")

    def setup(self, ctx: Context) -> None:
        super().setup(ctx)
        if self.epoch > ctx.epochs:
            raise ValueError(f"epoch is {self.epoch}; the training has only {ctx.epochs}")

    def cuts_now(self, ctx: Context) -> bool:
        """After that epoch."""
        return ctx.epochs_done == self.epoch
