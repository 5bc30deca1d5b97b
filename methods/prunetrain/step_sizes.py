"""How far an optimizer moves each weight for a unit of gradient, for updates beside the optimizer's own."""

from __future__ import annotations

import copy
import math
import random
from collections import defaultdict
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Adagrad, Adam, AdamW, NAdam, Optimizer, RMSprop

KNOWN = (Adam, AdamW, NAdam, RMSprop, Adagrad)
"""The adaptive optimizers of torch whose step sizes `step_size` knows."""


PROBE_STEPS = 10
"""Steps of which the last shows what an optimizer does. Some do nothing in the first; RAdam divides from the sixth."""
PROBE_SCALE = 100.0


class UnknownOptimizerError(Exception):
    """An optimizer does not show whether it divides a step by the size of the gradients."""


def adaptive(optimizer: Optimizer) -> bool:
    """Return whether an optimizer divides its step by the size of the gradients.

    A copy of it moves a small matrix, by a gradient and by one that is `PROBE_SCALE` times as large. Neither the
    optimizer nor the state of random numbers changes.

    Raises:
        UnknownOptimizerError: The copy cannot take steps, for example because the optimizer needs a closure.
    """
    small, large = (_moved(optimizer, scale) for scale in (1.0, PROBE_SCALE))
    return large < small * PROBE_SCALE**0.75


def _moved(optimizer: Optimizer, scale: float) -> float:
    """Return how far a copy of an optimizer moves a matrix by gradients of a size, in its last step."""
    draw = torch.Generator().manual_seed(0)
    device = optimizer.param_groups[0]["params"][0].device
    matrix = nn.Parameter(torch.randn(4, 4, generator=draw).to(device))
    python_state = random.getstate()
    # Each parameter of the copy is the matrix, and its state is empty, so that no tensor is copied.
    known: dict[int, Any] = {id(own): matrix for group in optimizer.param_groups for own in group["params"]}
    try:
        # torch's own copy of an optimizer leaves out what a subclass has set on the object.
        twin: Optimizer = object.__new__(type(optimizer))
        known |= {id(optimizer): twin, id(optimizer.state): defaultdict(dict)}
        vars(twin).update(copy.deepcopy(vars(optimizer), known))
        simple = {"lr": 1e-3, "capturable": False, "fused": None}
        first = twin.param_groups[0]
        twin.param_groups[:] = [{**first, **{key: simple[key] for key in simple if key in first}, "params": [matrix]}]
        for hooks in (twin._optimizer_step_pre_hooks, twin._optimizer_step_post_hooks):
            hooks.clear()
        with torch.random.fork_rng(devices=[]):
            for _ in range(PROBE_STEPS):
                before = matrix.detach().clone()
                matrix.grad = scale * torch.randn(4, 4, generator=draw).to(device)
                type(twin).step(twin)  # a scheduler replaces the method of the object by one that calls the original
    except Exception as error:
        raise UnknownOptimizerError(f"{type(error).__name__}: {error}".splitlines()[0]) from error
    finally:
        random.setstate(python_state)
    moved = (matrix.detach() - before).abs().mean().item()
    if not 0 < moved < math.inf:
        raise UnknownOptimizerError(f"a step moves a weight by {moved:g}")
    return moved


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
