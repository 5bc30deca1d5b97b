"""Bytes that data-parallel training communicates: counted from shapes, and measured as ranks hand them over.

There are five kinds of bytes:

    gradients    gradients of the parameters, summed over the ranks once per step
    statistics   buffers of the network, such as the running mean of batch normalisation
    decisions    values from which all ranks make the same decision: the loss, and what a method reduces
    bookkeeping  values that show whether the ranks agree, or that go into records and checkpoints
    start        parameters and buffers of rank 0, with which all ranks start

A number is the size of the tensor that a rank hands to a collective operation. The bytes on the network depend on the
algorithm of that operation. `suite.engine.cost.ring` models them for the ring all-reduce.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from suite.errors import UsageError, nearest
from suite.method import Context, Method

Kind = Literal["gradients", "statistics", "decisions", "bookkeeping", "start"]
Collective = Literal["all_reduce", "broadcast", "all_gather"]
KINDS: tuple[Kind, ...] = get_args(Kind)


def size_of(tensors: Iterable[Tensor]) -> int:
    """Return the bytes of all elements of the tensors."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


class Traffic:
    """Measures what this rank hands to collective operations, in bytes.

    Attributes:
        bytes: Bytes by kind since the training began, without kinds that have not occurred.
        all_reduced: The part of `bytes` that was handed to an all-reduce.
    """

    def __init__(self) -> None:
        self.bytes: dict[str, int] = {}
        self.all_reduced = 0

    def add(self, kind: Kind, collective: Collective, size: int) -> None:
        """Add `size` bytes that are now handed to a collective operation."""
        self.bytes[kind] = self.bytes.get(kind, 0) + size
        if collective == "all_reduce":
            self.all_reduced += size

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed trial needs."""
        return {"bytes": dict(self.bytes), "all_reduced": self.all_reduced}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Add what earlier attempts communicated up to `state_dict`."""
        for kind, size in state["bytes"].items():
            self.bytes[kind] = self.bytes.get(kind, 0) + size
        self.all_reduced += state["all_reduced"]


class KeptGradients:
    """Masks of the gradients that a method uses (`Method.kept_gradients`), and the bytes of the other gradients.

    Attributes:
        masks: Masks by the id of the weight, without weights that several layers share and weights that are not
            trained.
        left_out: Bytes of the gradients that the masks leave out.
    """

    def __init__(self, method: Method) -> None:
        self._method = method
        self._seen: list[tuple[Tensor, Tensor]] = []  # weight and mask of each layer that the method named
        self.masks: dict[int, Tensor] = {}
        self.left_out = 0

    def update(self, ctx: Context) -> bool:
        """Ask the method, before a step, and return whether masks or weights have changed since the last call.

        Raises:
            UsageError: The method names a layer that is not planned, or a mask is not bool or has another shape.
        """
        kept = self._method.kept_gradients(ctx)
        where = f"{type(self._method).__name__}.kept_gradients"
        for name in kept.keys() - ctx.layers.keys():
            raise UsageError(f"{where} names '{name}', which is not a planned layer{nearest(name, ctx.layers)}")
        seen = [(ctx.layers[name].weight, mask) for name, mask in kept.items()]
        if len(seen) == len(self._seen) and all(
            weight is old_weight and mask is old_mask
            for (weight, mask), (old_weight, old_mask) in zip(seen, self._seen, strict=True)
        ):
            return False
        users = Counter(id(layer.weight) for layer in ctx.layers.values())
        self._seen, self.masks, self.left_out = seen, {}, 0
        for name, (weight, mask) in zip(kept, seen, strict=True):
            if mask.dtype != torch.bool or mask.shape != weight.shape:
                raise UsageError(
                    f"{where} returns a mask of {mask.dtype} and shape {tuple(mask.shape)} for '{name}', whose weight "
                    f"has the shape {tuple(weight.shape)}; a mask is bool and has the weight's shape"
                )
            if weight.requires_grad and users[id(weight)] == 1:
                self.masks[id(weight)] = mask
                self.left_out += (mask.numel() - int(mask.count_nonzero())) * weight.element_size()
        return True


def count_step(model: nn.Module) -> dict[str, int]:
    """Return the bytes that a rank communicates in every step of data-parallel training, by kind.

    Gradients have the size of all trained parameters, as if the method used all of them. The decision of every step is
    the mean loss, a float32 number. Statistics are averaged once per epoch and not in every step, so they do not count.

    Args:
        model: The network. Masked weights count; removed channels do not.
    """
    gradients = size_of(parameter for parameter in model.parameters() if parameter.requires_grad)
    return {"gradients": gradients, "decisions": 4}
