"""The weights that a model begins with: seeds are replicates only if they begin with different ones."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import torch
from torch import nn
from torch.nn.parameter import is_lazy


def digest(model: nn.Module) -> str:
    """Return 16 hex digits that depend on names and values of a model's parameters; empty if it has none yet.

    Parameters of lazy modules get their values in the first forward and do not count.
    """
    found = hashlib.blake2b(digest_size=8)
    parameters = {name: one for name, one in model.named_parameters() if not is_lazy(one)}
    for name, parameter in parameters.items():
        found.update(name.encode())
        found.update(parameter.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest() if parameters else ""


def ignores_the_seed(build: Callable[[], nn.Module]) -> bool:
    """Whether a model begins with the same weights for two seeds, because it seeds torch or loads weights.

    Args:
        build: Returns a new model. The state of torch's generator stays as it is.
    """
    found = []
    with torch.random.fork_rng(devices=[]):
        for seed in range(2):
            torch.manual_seed(seed)
            found.append(digest(build()))
    return found[0] == found[1] != ""


def caution(model: str) -> str:
    """Return one line about a model that ignores the seed, with its name."""
    return (
        f"{model} begins with the same weights for every seed: intervals over seeds miss the part of the spread that "
        "comes from initial weights; if the model calls torch.manual_seed, leave that out"
    )
