"""Copies of models that have attributes which cannot be copied."""

from __future__ import annotations

import copy
import logging
from typing import Any, TypeVar

from torch import nn

log = logging.getLogger(__name__)

Module = TypeVar("Module", bound=nn.Module)

_OF_TORCH = ("_parameters", "_buffers", "_modules")


def copied(model: Module) -> Module:
    """Return a deep copy of a model. The copy shares with the model the attributes that cannot be copied.

    Examples are activations that a forward keeps, locks, open files and generators. The copy gets its own list or
    dictionary of such objects, so that a forward of the copy does not add to that of the model.
    """
    try:
        return copy.deepcopy(model)
    except Exception as error:  # copying runs the attributes' own code; an error of other code comes again below
        log.debug("%s is copied without its attributes that cannot be: %s", type(model).__name__, error)
    modules = {id(module): module for module in model.modules()}
    shared: dict[int, Any] = {}
    for module in model.modules():
        for name, value in vars(module).items():
            if name not in _OF_TORCH and not _can_be_copied(value, modules):
                shared[id(value)] = copy.copy(value) if isinstance(value, (list, dict)) else value
    return copy.deepcopy(model, shared)


def _can_be_copied(value: Any, modules: dict[int, nn.Module]) -> bool:
    try:
        copy.deepcopy(value, {**modules})
    except Exception:  # as above
        return False
    return True
