"""Channel gating: a layer takes and gives the channels of a shared node that it needs, and the node keeps them all.

At a node of a residual network, pruning by the union keeps every channel that any of its layers uses. Gated, each layer
is cut by itself: before it its inputs are gathered out of the node's channels, and behind it its outputs are scattered
among zeros. This saves more FLOPs and costs two copies a layer.

Source: PruneTrain (Lym et al., SC 2019), Sec. 4.2 and Fig. 6.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from suite.index_spaces import IndexSpace, IndexSpaces, Slice
from suite.network.forward_pass import first_input

GATHER, SCATTER = "gather_index", "scatter_index"  # buffers of a gated layer
FROM, INTO = "gathered_from", "scattered_into"  # how many channels the node has at either end
GATED = "its layers are gated"


def why_not_gated(space: IndexSpace, spaces: IndexSpaces, layers: Mapping[str, nn.Module]) -> str:
    """Why the layers of a space cannot be gated; empty where they can."""
    if space.frozen:
        return space.frozen_because
    if space.may_be_empty:
        return "it lies inside a branch"
    if any(one.tensor.endswith((f".{GATHER}", f".{SCATTER}")) for one in space.slices):
        return "its layer has a gate"
    for name in space.producers:
        if name in spaces.grouped:
            return f"'{name}' is a grouped convolution"
        if layers[name].bias is not None:
            return f"'{name}' has a bias, which its dead channels give too"
        if spaces.outputs_of(name) != (space.name,):
            return f"outputs of '{name}' belong to several nodes"
    for name in space.consumers:
        if spaces.inputs_of(name) != (space.name,):
            return f"inputs of '{name}' come from several nodes"
    return ""


def gated_spaces(space: IndexSpace) -> list[IndexSpace]:
    """The spaces that gating makes of a space: the inputs and the outputs of each of its layers, by themselves."""
    found = []
    for layers, axis, ending, buffer in (
        (space.producers, 0, "out", SCATTER),
        (space.consumers, 1, "in", GATHER),
    ):
        for name in layers:
            (weight,) = (one for one in space.slices if (one.tensor, one.axis) == (f"{name}.weight", axis))
            own = IndexSpace(f"{name}:{ending}", list(space.original))
            own.slices = [weight, Slice(f"{name}.{buffer}", 0, weight.entries)]
            own.counts = [entry for entry in space.counts if entry[0] == name and entry[1].startswith(ending)]
            (own.producers if axis == 0 else own.consumers).append(name)
            found.append(own)
    return found


def put_gates(model: nn.Module, space: IndexSpace) -> None:
    """Give the layers of a space their gates, which let everything through yet.

    Args:
        model: with the layers; they get the buffers `gather_index` and `scatter_index`, (channels,) int64.
        space: as it was before `IndexSpaces.part`.
    """
    for name in space.consumers:
        layer = model.get_submodule(name)
        layer.register_buffer(GATHER, _all_channels(layer, 1))
        setattr(layer, FROM, layer.weight.shape[1])  # type: ignore[union-attr, index]
        layer.register_forward_pre_hook(_gather, with_kwargs=True)
    for name in space.producers:
        layer = model.get_submodule(name)
        layer.register_buffer(SCATTER, _all_channels(layer, 0))
        setattr(layer, INTO, layer.weight.shape[0])  # type: ignore[union-attr, index]
        layer.register_forward_hook(_scatter)


def input_channels(layer: nn.Module) -> int:
    """How many channels a convolution or linear layer is given, before its gate if it has one."""
    assert isinstance(layer, (nn.Conv2d, nn.Linear))
    own = layer.in_features if isinstance(layer, nn.Linear) else layer.in_channels
    found: int = getattr(layer, FROM, own)
    return found


def _all_channels(layer: nn.Module, axis: int) -> Tensor:
    weight = layer.weight
    assert isinstance(weight, Tensor)
    return torch.arange(weight.shape[axis], device=weight.device)


def _gather(
    layer: nn.Module, args: tuple[Tensor, ...], kwargs: dict[str, Tensor]
) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
    given, index = first_input(args, kwargs), getattr(layer, GATHER)
    if _is_channels_last(given):  # index_select along axis 1 would give the other memory format
        return (given.permute(0, 2, 3, 1).index_select(3, index).permute(0, 3, 1, 2),), {}
    return (given.index_select(1, index),), {}


def _scatter(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
    node = torch.empty(
        (len(output), getattr(layer, INTO), *output.shape[2:]),
        dtype=output.dtype,
        device=output.device,
        memory_format=torch.channels_last if _is_channels_last(output) else torch.contiguous_format,
    )
    return node.zero_().index_copy_(1, getattr(layer, SCATTER), output)


def _is_channels_last(tensor: Tensor) -> bool:
    return tensor.ndim == 4 and tensor.is_contiguous(memory_format=torch.channels_last)
