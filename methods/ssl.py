"""Structured sparsity learning: the lasso of PruneTrain on a network that keeps its size until the training is over.

Source: Wen, Wu, Wang, Chen, Li, "Learning Structured Sparsity in Deep Neural Networks", NIPS 2016; PruneTrain (Lym et
al., SC 2019) compares with it (Table 4).
"""

from __future__ import annotations

from typing import ClassVar

from methods.group_lasso import GroupLasso
from suite.method import Context
from suite.registry import register


@register("method", "ssl")
class SSL(GroupLasso):
    """Structured sparsity learning: PruneTrain's lasso, and dead channels cut out after the last epoch alone."""

    source: ClassVar[str] = "Wen et al., Learning Structured Sparsity in Deep Neural Networks, NIPS 2016"

    def cuts_now(self, ctx: Context) -> bool:
        """After the last epoch."""
        return ctx.epochs_done == ctx.epochs
