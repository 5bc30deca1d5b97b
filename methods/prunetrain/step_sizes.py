"""How far an optimizer moves each weight for a unit of gradient, for updates beside the optimizer's own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import Tensor
from torch.optim import Adagrad, Adam, AdamW, NAdam, Optimizer, RMSprop

ADAPTIVE = ("SparseAdam", "NAdam", "RAdam", "RMSprop", "Rprop", "Lion", "Lamb")
"""Optimizers, with classes derived from them, that divide a step by the size of the gradients; also all whose names
begin with `Ada`, as Adagrad, or contain `Adam`."""

KNOWN = (Adam, AdamW, NAdam, RMSprop, Adagrad)
"""The adaptive optimizers of torch whose step sizes `step_size` knows."""


def adaptive(optimizer: Any) -> bool:
    """Whether an optimizer divides its step by the size of the gradients."""
    kinds = {kind.__name__.lower() for kind in type(optimizer).__mro__}
    names = {one.lower() for one in ADAPTIVE}
    return any(kind in names or kind.startswith(("ada", "lamb")) or "adam" in kind for kind in kinds)


def known(optimizer: Any) -> bool:
    """Whether `step_size` knows how far an adaptive optimizer moves a weight."""
    return isinstance(optimizer, KNOWN)


Holders = Mapping[int, tuple[Any, dict[str, Any]]]
"""Optimizer and group of each parameter, by the parameter's id."""


def holders(optimizer: Any) -> Holders:
    """Return who holds each parameter, among the optimizers of a context; not a wrapper, but the optimizer in it."""
    parts = [_unwrapped(one) for one in getattr(optimizer, "parts", [optimizer])]
    return {id(own): (one, group) for one in parts for group in one.param_groups for own in group["params"]}


def _unwrapped(optimizer: Any) -> Any:
    """Return the optimizer in wrappers such as that of Accelerate."""
    while isinstance(inner := getattr(optimizer, "optimizer", None), Optimizer):
        optimizer = inner
    return optimizer


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
    """Return the step of a weight's optimizer in its last step.

    Its rate is 0 for a weight that is in no optimizer, or that an adaptive one has not moved yet.

    Args:
        held: Who holds each parameter. An optimizer is not adaptive, or it is `known`.
        weight: The weight.
    """
    if id(weight) not in held:
        return StepSize(0.0)
    own, group = held[id(weight)]
    state, rate = own.state.get(weight, {}), float(group["lr"])
    if not known(own):
        return StepSize(rate)
    if not (step := float(state.get("step", 0))):
        return StepSize(0.0)
    if isinstance(own, Adagrad):
        return StepSize(rate / (1 + (step - 1) * group["lr_decay"]), state["sum"], group["eps"])
    if isinstance(own, RMSprop):
        squares = state["square_avg"]
        if group["centered"]:
            squares = (squares - state["grad_avg"].square()).clamp(min=0)  # a variance; rounding may leave it below 0
        return StepSize(rate, squares, group["eps"])
    unbiased = 1 - float(group["betas"][1]) ** step
    return StepSize(rate, state.get("max_exp_avg_sq", state["exp_avg_sq"]) / unbiased, group["eps"])
