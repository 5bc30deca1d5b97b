"""How far an optimizer moves each weight for a unit of gradient, for updates beside the optimizer's own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import Tensor

ADAPTIVE = ("Adam", "Adamax", "NAdam", "RAdam", "SparseAdam", "RMSprop", "Adagrad", "Adadelta", "Rprop", "Lion", "Lamb")
"""Optimizers, with classes derived from them and `AdamW` of torch, that divide a step by the size of the gradients."""


def adaptive(optimizer: Any) -> bool:
    """Whether an optimizer divides its step by the size of the gradients."""
    kinds = {kind.__name__.lower() for kind in type(optimizer).__mro__}
    names = {one.lower() for one in ADAPTIVE}
    return any(kind in names or kind.startswith(("adam", "lamb")) for kind in kinds)


Holders = Mapping[int, tuple[Any, dict[str, Any]]]
"""Optimizer and group of each parameter, by the parameter's id."""


def holders(optimizer: Any) -> Holders:
    """Return who holds each parameter, among the optimizers of a context."""
    parts = getattr(optimizer, "parts", [optimizer])
    return {id(own): (one, group) for one in parts for group in one.param_groups for own in group["params"]}


class StepSize(NamedTuple):
    """How far a unit of gradient moves a weight: `rate`, or `rate` / (sqrt(v) + `eps`).

    Attributes:
        rate: Learning rate, or its product with a coefficient.
        squares: v, the mean of squared gradients by which the optimizer divides, without its bias, in the weight's
            shape; `None` if it does not divide.
        eps: Epsilon of the optimizer.
    """

    rate: float
    squares: Tensor | None = None
    eps: float = 0.0

    def times(self, coefficient: float) -> StepSize:
        """Return the step for a gradient of this size."""
        return self._replace(rate=self.rate * coefficient)


def step_size(held: Holders, weight: Tensor) -> StepSize:
    """Return the step of a weight's optimizer in its last step; a rate of 0 for a weight that is in none."""
    if id(weight) not in held:
        return StepSize(0.0)
    own, group = held[id(weight)]
    state, rate = own.state.get(weight, {}), float(group["lr"])
    if "exp_avg_sq" in state:
        unbiased = 1 - group["betas"][1] ** float(state["step"])
        return StepSize(rate, state.get("max_exp_avg_sq", state["exp_avg_sq"]) / unbiased, group["eps"])
    for name in ("square_avg", "sum"):
        if name in state:
            return StepSize(rate, state[name], group["eps"])
    return StepSize(rate)
