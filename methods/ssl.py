"""Structured sparsity learning: the lasso of PruneTrain on a network that keeps its size until the training is over.

Source: Wen, Wu, Wang, Chen, Li, "Learning Structured Sparsity in Deep Neural Networks", NIPS 2016; PruneTrain (Lym et
al., SC 2019) compares with it (Fig. 8).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from torch import Tensor

from methods.shared.group_lasso import GroupLasso
from methods.shared.lasso import lasso_layers, penalty
from suite.checkpoint import load_model
from suite.errors import UsageError
from suite.method import Context, ReconfigPlan
from suite.registry import register


@register("method", "ssl")
class SSL(GroupLasso):
    """Structured sparsity learning: PruneTrain's lasso, and dead channels cut out after the last epoch alone.

    Attributes:
        from_trained: whose weights the training begins with: a method as one types it, such as `dense`, whose trial of
            the same task, network, recipe and seed is trained before; or the path of a `model.pt`. Empty: new weights.
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
        # A name that is longer than any file's would make `is_file` fail.
        return "/" in named or named.endswith(".pt") or (len(named.encode()) < 256 and Path(named).is_file())

    def depends_on(self) -> tuple[str, ...]:
        return (self.from_trained,) if self.from_trained and not self._names_a_file else ()

    def files(self) -> Mapping[str, str]:
        return {"from_trained": self.from_trained} if self._names_a_file else {}

    def setup(self, ctx: Context) -> None:
        super().setup(ctx)
        if not self.from_trained:
            return
        # A trained network's loss is so small that the ratio by it would ask for no penalty. The coefficient is the one
        # that new weights would have got: theirs are in the model still, and their loss is that of guessing.
        cost = penalty(lasso_layers(ctx.layers, ctx.spaces).values(), self._by_size).item()
        self._penalty_coefficient = self.ratio * math.log(ctx.num_classes) / ((1 - self.ratio) * cost)
        if self._names_a_file:
            self._trained = _weights_for(ctx, Path(self.from_trained))

    def begin(self, ctx: Context) -> Sequence[ReconfigPlan]:
        """Trained weights take the place of new ones; here, since the other trial is done when this one begins."""
        if not self.from_trained:
            return ()
        if not self._names_a_file:
            path = ctx.others[self.from_trained].model_file
            if path is None:
                raise UsageError(f"from_trained: the trial of '{self.from_trained}' has no model_file to begin with")
            self._trained = _weights_for(ctx, path)
        ctx.model.load_state_dict(self._trained)
        self._trained = {}
        return ()

    def cuts_now(self, ctx: Context) -> bool:
        """After the last epoch."""
        return ctx.epochs_done == ctx.epochs


def _weights_for(ctx: Context, path: Path) -> Mapping[str, Tensor]:
    """The state of a final model, if it fits the model that is to be trained.

    Raises:
        UsageError: if it is another network's.
    """
    trained = load_model(path).state_dict()
    theirs = {name: tuple(tensor.shape) for name, tensor in trained.items()}
    ours = {name: tuple(tensor.shape) for name, tensor in ctx.model.state_dict().items()}
    if theirs != ours:
        apart = next(name for name in {**ours, **theirs} if theirs.get(name) != ours.get(name))
        raise UsageError(
            f"from_trained: {path} holds another network than the one that is trained: its '{apart}' is "
            f"{theirs.get(apart, 'absent')}, here {ours.get(apart, 'absent')}"
        )
    return trained
