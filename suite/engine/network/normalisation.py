"""Layers of batch normalisation: which have running statistics, which keep them, and how they are estimated again."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from suite.errors import nearest


def with_running_statistics(model: nn.Module) -> list[_BatchNorm]:
    """Return the layers of batch normalisation that have running means and variances."""
    return [one for one in model.modules() if isinstance(one, _BatchNorm) and one.running_mean is not None]


def freeze(model: nn.Module, names: Collection[str]) -> list[_BatchNorm]:
    """Stop the training of parameters, and return the layers of batch normalisation that keep their statistics now.

    Args:
        model: The model.
        names: Names of parameters of the model.

    Returns:
        The layers with running statistics that have a parameter among `names`, and none that is trained.

    Raises:
        ValueError: The model has no parameter of a name.
    """
    known = dict(model.named_parameters())
    for name in names:
        if name not in known:
            raise ValueError(f"freeze names '{name}'; the model has no such parameter{nearest(name, known)}")
        known[name].requires_grad_(False)
        known[name].grad = None
    chosen = {id(known[name]) for name in names}
    return [
        norm
        for norm in with_running_statistics(model)
        if any(id(parameter) in chosen for parameter in norm.parameters())
        and not any(parameter.requires_grad for parameter in norm.parameters())
    ]


def estimate_statistics(model: nn.Module, batches: Iterable[Tensor], keeping: Collection[_BatchNorm]) -> None:
    """Set the running statistics to the mean over batches, as torch's `update_bn` does. The model trains afterwards.

    Args:
        model: The model.
        batches: Images, (N, C, H, W) each.
        keeping: Layers that keep their statistics, and normalise with them.
    """
    momenta = {norm: norm.momentum for norm in with_running_statistics(model) if norm not in keeping}
    model.train()
    for norm in keeping:
        norm.eval()
    for norm in momenta:
        norm.reset_running_stats()
        norm.momentum = None  # the mean of all batches
    with torch.no_grad():
        for images in batches:
            model(images)
    for norm, momentum in momenta.items():
        norm.momentum = momentum
