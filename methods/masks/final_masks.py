"""A base class for methods whose masks stay as they are from some step on: kernels may then skip masked weights.

The kernels, and how one of them is chosen for each layer, are those of ClickTrain (`methods.masks.backends`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from methods.masks.backends import MaskedBackends
from methods.masks.distributions import DISTRIBUTIONS
from methods.masks.masking import MaskedMethod
from methods.masks.structures import STRUCTURES
from suite.method import Context, OpPlan
from suite.ops import PlannedConv2d
from suite.plan import Layer


class FinalMasksMethod(MaskedMethod):
    """A masked method that calls `end_updates` in the step in which its masks are set for the last time, or later.

    Attributes:
        backend: How products are computed once masks stay as they are. `masked` is torch, which multiplies the zeros.
            `skipping` uses kernels that skip masked weights, in 3x3 convolutions. `auto` uses them in each layer where
            they are faster by a margin; this is measured once on this machine for layers of equal shape and density
            (`methods.backends.autotune`).
    """

    cpu_kernels: ClassVar[Sequence[str]] = ("sparse_conv",)

    backend: Literal["auto", "masked", "skipping"] = "auto"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._is_final = False  # whether masks stay as they are

    def setup(self, ctx: Context) -> None:
        super().setup(ctx)
        self._backends = MaskedBackends(self.backend, ctx.device, has_blocks=False)

    def end_updates(self, ctx: Context) -> None:
        """Let kernels skip masked weights from the next step on; a second call changes nothing.

        Masks may still be set in the running step, because layers are planned again at its end.
        """
        if not self._is_final:
            self._is_final = True
            self._choose(ctx)
            ctx.replan()

    def _choose(self, ctx: Context) -> None:
        """Choose a backend for each 3x3 convolution of one group, by its share of remaining weights."""
        weights = self.weights(ctx)
        # What a distribution by scores leaves in a layer differs between seeds, and a question must not.
        by_shape = "uniform" if self.distribution == "global" else self.distribution
        shares = DISTRIBUTIONS[by_shape](weights, 1.0 - self.sparsity)
        read = [id(layer.weight) for layer in ctx.layers.values()]  # a shared weight by each of its layers
        kind = {"structure": self.structure} | ({"m": self.m} if self.structure == "n:m" else {})
        structures: Mapping[str, Mapping[str, Any]] = {
            name: {"share": round(shares[name], 6), **kind}
            for name, weight in weights.items()
            if isinstance(layer := ctx.layers[name], PlannedConv2d)
            and weight.shape[2:] == (3, 3)
            and layer.groups == 1
            and read.count(id(weight)) == 1
        }

        def example(name: str, weight: Tensor) -> Tensor:
            score = torch.rand(weight.shape, generator=torch.Generator().manual_seed(0))
            more = {"m": self.m} if self.structure == "n:m" else {}
            return STRUCTURES[self.structure](score, shares[name], **more).to(weight.device)

        self._backends.choose(ctx, structures, example)

    def choose_again(self, ctx: Context) -> None:
        self._backends.forget()
        self._choose(ctx)

    def plan(self, name: str, layer: Layer) -> OpPlan | None:
        if self._is_final and name in self.masks:
            return self._backends.plan(name, layer, lambda weight: self.masks[name])
        return super().plan(name, layer)

    def on_epoch_end(self, ctx: Context) -> None:
        """Choose the backends after the first epoch, so that each checkpoint has them; later calls change nothing."""
        self._choose(ctx)

    def kept_gradients(self, ctx: Context) -> Mapping[str, Tensor]:
        """Return the masks, once they stay as they are."""
        return self.masks if self._is_final else {}

    def record(self, ctx: Context) -> Mapping[str, Any]:
        """Return the sparsity of all masked layers together, and the backend of each."""
        return {**super().record(ctx), **self._backends.record(ctx)}

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "is_final": self._is_final, **self._backends.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._is_final = state["is_final"]
        self._backends.load_state_dict(state)
