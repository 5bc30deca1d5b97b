"""Structured sparsity learning: PruneTrain's lasso on a network that keeps its size until the end of training.

Source: Wen, Wu, Wang, Chen, Li, "Learning Structured Sparsity in Deep Neural Networks", NIPS 2016; PruneTrain (Lym et
al., SC 2019) compares with it (Fig. 8).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from torch import Tensor

from methods.prunetrain.group_lasso import GroupLasso
from methods.prunetrain.lasso import total_penalty
from suite.checkpoint import load_model
from suite.errors import UsageError
from suite.method import Context, ReconfigPlan
from suite.registry import register


@register("method", "ssl")
class SSL(GroupLasso):
    """Structured sparsity learning: PruneTrain's lasso; dead channels are removed only after the last epoch.

    Attributes:
        from_trained: Weights to start from. The name of a method, such as `dense`, takes those of its trial with the
            same task, network, recipe and seed, which runs first. A path takes those of a `model.pt`. If it is empty,
            training starts from new weights.
    """

    source: ClassVar[str] = "Wen et al., Learning Structured Sparsity in Deep Neural Networks, NIPS 2016"

    from_trained: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._trained: Mapping[str, Tensor] = {}  # between `setup` and `begin`

    @property
    def _names_a_file(self) -> bool:
        named = self.from_trained
        if named.endswith("]"):
            return False
        # `is_file` fails on names that are longer than any file's.
        return "/" in named or named.endswith(".pt") or (len(named.encode()) < 256 and Path(named).is_file())

    def depends_on(self) -> tuple[str, ...]:
        trained = (self.from_trained,) if self.from_trained and not self._names_a_file else ()
        return (*super().depends_on(), *trained)

    def files(self) -> Mapping[str, str]:
        return {"from_trained": self.from_trained} if self._names_a_file else {}

    def setup(self, ctx: Context) -> None:
        super().setup(ctx)
        if not self.from_trained:
            return
        # The loss of a trained network is so small that the ratio would give almost no penalty. Use the coefficient of
        # new weights instead: the model still has them, and their loss is that of guessing.
        cost = total_penalty(ctx.layers, ctx.spaces, self._by_size, self._untrained(ctx)).item()
        self._penalty_coefficient = self.ratio * math.log(ctx.num_classes) / ((1 - self.ratio) * cost)
        if self._names_a_file:
            self._trained = _weights_for(ctx, Path(self.from_trained))

    def begin(self, ctx: Context) -> Sequence[ReconfigPlan]:
        """Load the trained weights; the other trial is finished when this one begins."""
        if not self.from_trained:
            return ()
        if not self._names_a_file:
            path = ctx.others[self.from_trained].model_file
            if path is None:
                raise UsageError(f"from_trained: the trial of '{self.from_trained}' has no model_file to start from")
            self._trained = _weights_for(ctx, path)
        ctx.model.load_state_dict(self._trained)
        self._trained = {}
        return ()

    def cuts_now(self, ctx: Context) -> bool:
        """Return whether this is the last epoch."""
        return ctx.epochs_done == ctx.epochs


def _weights_for(ctx: Context, path: Path) -> Mapping[str, Tensor]:
    """Return the state of a final model.

    Raises:
        UsageError: if it does not fit the model that will be trained.
    """
    trained = load_model(path).state_dict()
    theirs = {name: tuple(tensor.shape) for name, tensor in trained.items()}
    ours = {name: tuple(tensor.shape) for name, tensor in ctx.model.state_dict().items()}
    if theirs != ours:
        different = next(name for name in {**ours, **theirs} if theirs.get(name) != ours.get(name))
        raise UsageError(
            f"from_trained: {path} holds another network than the one to train: its '{different}' is "
            f"{theirs.get(different, 'absent')}, here {ours.get(different, 'absent')}"
        )
    return trained
