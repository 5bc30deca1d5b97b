"""Copies of a model, such as an average of its weights, that follow its cuts and masks."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from suite.engine.network.channels.surgery import named_tensors
from suite.engine.network.layers import convert
from suite.engine.network.planned_layer import PlannedLayer
from suite.errors import UsageError
from suite.plan import Layer

_INSIDE = ("module", "_orig_mod")
"""Attributes in which wrappers keep the module that they wrap."""


def bare(average: nn.Module, model: nn.Module) -> nn.Module:
    """Return the module inside a copy's wrappers (`AveragedModel`, for example) that has the names of the model.

    Raises:
        UsageError: if no module inside has the model's tensors.
    """
    wanted = named_tensors(model).keys()
    found: object = average
    while isinstance(found, nn.Module):
        if wanted <= named_tensors(found).keys():
            return found
        found = next((vars(found)["_modules"][name] for name in _INSIDE if name in vars(found)["_modules"]), None)
    missing = sorted(wanted - named_tensors(average).keys()) if isinstance(average, nn.Module) else sorted(wanted)
    raise UsageError(
        f"an average has to be a copy of the model, such as torch.optim.swa_utils.AveragedModel(model); this "
        f"{type(average).__name__} has no '{missing[0]}'"
    )


def check_copy(average: nn.Module, model: nn.Module) -> None:
    """Check that an average is another module with the model's tensors.

    Raises:
        UsageError: It is the model, no copy of it, or a copy that was made before a cut.
    """
    inside = bare(average, model)
    if inside is model:
        raise UsageError("an average has to be a copy of the model, such as copy.deepcopy(model), and not the model")
    theirs = named_tensors(inside)
    for name, tensor in named_tensors(model).items():
        if theirs[name].shape != tensor.shape:
            raise UsageError(
                f"an average has to be a copy of the present model: its '{name}' is {tuple(theirs[name].shape)}, and "
                f"that of the model {tuple(tensor.shape)}"
            )


def share_plans(average: nn.Module, layers: Mapping[str, Layer]) -> None:
    """Give the layers of a bare copy the plans of the model's layers; copies made before `apply` are converted."""
    own = {name: average.get_submodule(name) for name in layers}
    for name, layer in layers.items():
        assert isinstance(layer, PlannedLayer)
        if not isinstance(own[name], PlannedLayer):
            convert(average, layer.step_state, layers.keys())
        own[name].op_plan = layer.op_plan  # type: ignore[assignment]


@torch.no_grad()
def silence_masked(average: nn.Module, layers: Mapping[str, Layer]) -> None:
    """Set the weights of a bare copy to zero that are exactly zero in the model: those that a method masks."""
    for name, layer in layers.items():
        own = average.get_submodule(name).weight
        assert isinstance(own, Tensor)
        own.masked_fill_(layer.weight.to(own.device) == 0, 0.0)
