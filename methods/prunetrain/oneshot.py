"""One-time reconfiguration: PruneTrain's lasso with a single reconfiguration.

Source: PruneTrain (Lym et al., SC 2019), Sec. 2 and Fig. 2, which compares with it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, ClassVar

from annotated_types import Interval

from methods.prunetrain.group_lasso import GroupLasso
from suite.method import Context
from suite.recipe import Tuning
from suite.registry import register


@register("method", "oneshot")
class OneShot(GroupLasso):
    """One-time reconfiguration: PruneTrain's lasso; dead channels are removed once, after a share of the training.

    Attributes:
        at: Share of the epochs before the reconfiguration. Later epochs train the remaining network, with the lasso.
    """

    source: ClassVar[str] = "Lym et al., PruneTrain, SC 2019, as a baseline"
    tuning: ClassVar[Sequence[Tuning]] = (
        *GroupLasso.tuning,
        Tuning(trials=0, chosen_on="other", source="`at` is half of the training in all presets"),
    )

    at: Annotated[float, Interval(gt=0, le=1)] = 0.5

    def cuts_now(self, ctx: Context) -> bool:
        """Return whether this is the first epoch that ends with the share done."""
        return ctx.epochs_done == math.ceil(round(self.at * ctx.epochs, 6))  # 0.07 * 100 is a little over 7
