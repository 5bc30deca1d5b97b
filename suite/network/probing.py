"""Running a model to learn about it, without a trace in it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def probing(model: nn.Module) -> Iterator[None]:
    """Restore a model's modes and buffers, and Python's and torch's random states, as they were before.

    Attributes that tracing has added to the model (constant tensors) are taken away. Parameters must not change inside.
    """
    modes = {module: module.training for module in model.modules()}
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    attributes, state = set(vars(model)), random.getstate()
    devices = {buffer.device for buffer in (*model.parameters(), *model.buffers()) if buffer.device.type == "cuda"}
    try:
        with torch.random.fork_rng(devices):
            yield
    finally:
        random.setstate(state)
        for name in set(vars(model)) - attributes:
            delattr(model, name)
        with torch.no_grad():
            for buffer, before in buffers:
                buffer.copy_(before)
        for module, training in modes.items():
            module.training = training
