"""Which optimizers can go on after channels were cut: those whose state is of each parameter's shape, or one number."""

from __future__ import annotations

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
