"""Channel gating: a layer consumes and produces only the channels of a shared node that it needs.

At a node of a residual network, pruning by the union keeps every channel that any of its layers uses. With gating, each
layer is cut individually: its inputs are gathered from the node's channels before it runs, and its outputs are
scattered among zeros afterwards. This saves more FLOPs and costs two copies per layer. `IndexSpaces.why_not_gated` says
which spaces can be gated.

Source: PruneTrain (Lym et al., SC 2019), Sec. 4.2 and Fig. 6.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from suite.index_spaces import GATHER_INDEX, SCATTER_INDEX, IndexSpace
from suite.network.forward_pass import first_input

GATHERED_FROM, SCATTERED_INTO = "gathered_from", "scattered_into"
"""Attributes of a gated layer: the number of channels of the node before and behind it."""
GATED = "its layers are gated"


def add_gates(model: nn.Module, space: IndexSpace) -> None:
    """Give the layers of a space gates that let every channel through.

    Args:
        model: The model of the layers, which get the buffers `gather_index` and `scatter_index`, (channels,) int64.
        space: The space before `IndexSpaces.replace_by_parts`.
    """
    for name in space.consumers:
        layer = model.get_submodule(name)
        layer.register_buffer(GATHER_INDEX, _all_channels(layer, 1))
        setattr(layer, GATHERED_FROM, layer.weight.shape[1])  # type: ignore[union-attr, index]
        layer.register_forward_pre_hook(_gather, with_kwargs=True)
    for name in space.producers:
        layer = model.get_submodule(name)
        layer.register_buffer(SCATTER_INDEX, _all_channels(layer, 0))
        setattr(layer, SCATTERED_INTO, layer.weight.shape[0])  # type: ignore[union-attr, index]
        layer.register_forward_hook(_scatter)


def input_channels(layer: nn.Module) -> int:
    """Return how many channels a convolution or linear layer receives, before its gate if it has one."""
    assert isinstance(layer, (nn.Conv2d, nn.Linear))
    own = layer.in_features if isinstance(layer, nn.Linear) else layer.in_channels
    found: int = getattr(layer, GATHERED_FROM, own)
    return found


def _all_channels(layer: nn.Module, axis: int) -> Tensor:
    weight = layer.weight
    assert isinstance(weight, Tensor)
    return torch.arange(weight.shape[axis], device=weight.device)


def _gather(
    layer: nn.Module, args: tuple[Tensor, ...], kwargs: dict[str, Tensor]
) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
    given, index = first_input(args, kwargs), getattr(layer, GATHER_INDEX)
    if _is_channels_last(given):  # index_select along axis 1 would return the other memory format
        return (given.permute(0, 2, 3, 1).index_select(3, index).permute(0, 3, 1, 2),), {}
    return (given.index_select(1, index),), {}


def _scatter(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
    node = torch.empty(
        (len(output), getattr(layer, SCATTERED_INTO), *output.shape[2:]),
        dtype=output.dtype,
        device=output.device,
        memory_format=torch.channels_last if _is_channels_last(output) else torch.contiguous_format,
    )
    return node.zero_().index_copy_(1, getattr(layer, SCATTER_INDEX), output)


def _is_channels_last(tensor: Tensor) -> bool:
    return tensor.ndim == 4 and tensor.is_contiguous(memory_format=torch.channels_last)
