"""One reconfiguration at a given time: PruneTrain without its way of going on.

Source: PruneTrain (Lym et al., SC 2019), Sec. 2 and Fig. 2, where one-time reconfiguration stands beside it.
"""

from __future__ import annotations

import math
from typing import ClassVar

from methods.shared.group_lasso import GroupLasso
from suite.method import Context
from suite.registry import register


@register("method", "oneshot")
class OneShot(GroupLasso):
    """One-time reconfiguration: PruneTrain's lasso, and dead channels cut out once, after a share of the training.

    Attributes:
        at: that share of the epochs; later ones train what is left, with the lasso.
    """

    source: ClassVar[str] = "Lym et al., PruneTrain, SC 2019, as a baseline"

    at: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.at <= 1:
            raise ValueError(f"at is {self.at}; a share of the epochs lies above 0 and is at most 1")

    def cuts_now(self, ctx: Context) -> bool:
        """After the first epoch that ends with that share done, or more."""
        return ctx.epochs_done == math.ceil(round(self.at * ctx.epochs, 6))  # 0.07 * 100 is a little over 7
