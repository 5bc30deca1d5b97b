"""Which optimizers can go on after channels were cut: those whose state is of each parameter's shape, or one number."""

from __future__ import annotations

import inspect

import torch
from torch import Tensor
from torch.optim import Optimizer

_KEEPS = {
    "LBFGS": "its history is one vector of all parameters",
    "Adafactor": "its statistics are those of rows and columns",
    "ZeroRedundancyOptimizer": "its state is spread over the ranks",
}


def why_not_cut(optimizer: Optimizer) -> str:
    """Why an optimizer's state cannot be cut together with its parameters; empty where it can, as far as it is there.

    State that an optimizer makes in its first step is seen only after that.
    """
    for kind in type(optimizer).__mro__:
        if kind.__name__ in _KEEPS:
            return _KEEPS[kind.__name__]
    for parameter, state in optimizer.state.items():
        for key, value in state.items():
            if isinstance(value, Tensor) and value.numel() > 1 and value.shape != parameter.shape:
                return f"its '{key}' has shape {tuple(value.shape)} for a parameter of shape {tuple(parameter.shape)}"
    return ""


class SGD(torch.optim.SGD):
    """`torch.optim.SGD` without torch's compiler.

    torch wraps these methods in calls that keep `torch.compile` out of them, and the first of these calls imports the
    compiler, which takes longer than importing torch. The suite compiles forward and backward only, so that the plain
    methods do the same.
    """

    step = torch.no_grad()(inspect.unwrap(torch.optim.SGD.step))  # type: ignore[assignment]
    zero_grad = inspect.unwrap(Optimizer.zero_grad)
    add_param_group = inspect.unwrap(Optimizer.add_param_group)
    state_dict = inspect.unwrap(Optimizer.state_dict)
    load_state_dict = inspect.unwrap(Optimizer.load_state_dict)
