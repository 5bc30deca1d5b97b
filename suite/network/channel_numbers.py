"""Where a model's forward reads sizes of its channels as numbers, or weights and counts of its layers.

`x / x.shape[1] ** 0.5`, `y * self.conv.in_channels` and `F.conv2d(y, self.conv.weight)` compute something else, or
nothing at all, after channels were cut. Index spaces that such code depends on are frozen.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, fx, nn

READ = frozenset({
    "weight", "bias", "running_mean", "running_var",
    "in_channels", "out_channels", "groups", "in_features", "out_features", "num_features",
})  # fmt: skip
"""The attributes of layers and normalisations that a cut changes."""

_WITHOUT_CHANNELS = {
    "dim", "ndim", "ndimension", "dtype", "device", "layout", "element_size", "itemsize", "is_floating_point",
    "is_cuda", "requires_grad", "is_contiguous",
}  # fmt: skip

Label = NDArray[np.int64]


@contextmanager
def noting_reads(model: nn.Module, types: Collection[type[nn.Module]]) -> Iterator[list[tuple[nn.Module, str]]]:
    """Note every read of an attribute in `READ` while a model is traced, when the forwards of its layers do not run.

    Args:
        model: whose modules are watched.
        types: the exact classes of the modules to watch.

    Yields:
        (module, attribute) of each read, in order; complete when the context ends.
    """
    reads: list[tuple[nn.Module, str]] = []
    watched: list[tuple[nn.Module, type[nn.Module]]] = []
    watching: dict[type[nn.Module], type[nn.Module]] = {}
    for module in model.modules():
        own = type(module)
        if own in types:
            watching.setdefault(own, _watching(own, reads))
            watched.append((module, own))
    try:
        for module, own in watched:
            module.__class__ = watching[own]
        yield reads
    finally:
        for module, own in watched:
            module.__class__ = own


def _watching(own: type[nn.Module], reads: list[tuple[nn.Module, str]]) -> type[nn.Module]:
    """A subclass that notes reads. An attribute lies in the object's dictionary, which only this method precedes."""

    def note(self: nn.Module, name: str) -> Any:
        if name in READ:
            reads.append((self, name))
        return own.__getattribute__(self, name)

    return type(own.__name__, (own,), {"__module__": own.__module__, "__getattribute__": note})


class ChannelNumbers:
    """Which channels the numbers in a graph count, or were computed from a count of."""

    def __init__(self) -> None:
        self._told: dict[fx.Node, list[Label]] = {}
        self._shapes: dict[fx.Node, int] = {}  # nodes that are a tensor's whole shape, with its number of axes

    def among(self, nodes: Collection[fx.Node]) -> list[Label]:
        """Labels of the channels that those of the nodes that are numbers tell of."""
        return [label for node in nodes for label in self._told.get(node, ())]

    def note(self, node: fx.Node, labels: Mapping[fx.Node, Label], values: Mapping[fx.Node, Any]) -> None:
        """Note what a node tells whose value is a number, a shape, or anything else that is not a tensor.

        Args:
            node: of the graph.
            labels: the label of each node that is a tensor.
            values: the value of each node.
        """
        told = self.among(node.all_input_nodes)
        told += [labels[source] for source in node.all_input_nodes if source in labels]
        if told and not self._is_free(node, values):
            self._told[node] = told

    def _is_free(self, node: fx.Node, values: Mapping[fx.Node, Any]) -> bool:
        """Whether the value is the same for any number of channels; an unknown operation is taken to depend on it."""
        source = node.args[0] if node.args else None
        if not isinstance(source, fx.Node):
            return False
        given, others = values[source], node.args[1:]
        if isinstance(given, Tensor):
            name = others[0] if node.target is getattr else getattr(node.target, "__name__", node.target)
            axis = others[0] if others and node.target is not getattr else node.kwargs.get("dim")
            if name in _WITHOUT_CHANNELS:
                return True
            if name == "size" and isinstance(axis, int):
                return axis % max(given.ndim, 1) != 1
            if name == "shape" or (name == "size" and axis is None):
                self._shapes[node] = given.ndim
            return False
        if node.target is operator.getitem and source in self._shapes and isinstance(others[0], (int, slice)):
            found = np.arange(self._shapes[source])[others[0]]
            return not np.any(found == 1)
        return False
