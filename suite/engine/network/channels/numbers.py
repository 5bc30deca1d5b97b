"""Find code in a model's forward that reads numbers of channels, or weights and counts of layers.

After channels were removed, `x / x.shape[1] ** 0.5`, `y * self.conv.in_channels` and `F.conv2d(y, self.conv.weight)`
compute something else, or fail. The index spaces that such code depends on are therefore frozen.
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
    "in_channels", "out_channels", "groups", "in_features", "out_features", "num_features", "num_channels",
    "num_groups", "num_parameters",
})  # fmt: skip
"""Attributes of layers and normalisations that change when channels are removed."""

WITHOUT_CHANNELS = {
    "dim", "ndim", "ndimension", "dtype", "device", "layout", "element_size", "itemsize", "is_floating_point",
    "is_cuda", "requires_grad", "is_contiguous",
}  # fmt: skip
"""Attributes and methods of a tensor that are the same for every image and every number of channels."""

Label = NDArray[np.int64]
"""The channel number of each entry of an activation's channel axis."""


@contextmanager
def recording_reads(model: nn.Module, types: tuple[type[nn.Module], ...]) -> Iterator[list[tuple[nn.Module, str]]]:
    """Record every read of an attribute in `READ` while a model is traced, which does not run its layers' forwards.

    Args:
        model: The model whose modules are watched.
        types: Classes of the modules to watch.

    Yields:
        (module, attribute) of each read, in order; complete when the context ends.
    """
    reads: list[tuple[nn.Module, str]] = []
    watched: list[tuple[nn.Module, type[nn.Module]]] = []
    watching: dict[type[nn.Module], type[nn.Module]] = {}
    for module in model.modules():
        kind = type(module)
        if isinstance(module, types):
            watching.setdefault(kind, _watching(kind, reads))
            watched.append((module, kind))
    try:
        for module, kind in watched:
            module.__class__ = watching[kind]
        yield reads
    finally:
        for module, kind in watched:
            module.__class__ = kind


class _Unannounced(nn.Module):
    def __init_subclass__(cls) -> None:
        """Skip the `__init_subclass__` of a user's class, which might register or refuse the watching class."""


def _watching(own: type[nn.Module], reads: list[tuple[nn.Module, str]]) -> type[nn.Module]:
    """Return a subclass that records reads, in `__getattribute__`: `__getattr__` is not called for found attributes."""

    def record(self: nn.Module, name: str) -> Any:
        if name in READ:
            reads.append((self, name))
        return own.__getattribute__(self, name)

    return type(own.__name__, (_Unannounced, own), {"__module__": own.__module__, "__getattribute__": record})


def groups_of(module: nn.Module) -> str:
    """Return the name of the attribute that has a module's number of channel groups, or ''."""
    declared = getattr(type(module), "channel_groups", None)
    return declared if isinstance(declared, str) else ""


class ChannelNumbers:
    """Records whose channels the numbers in a graph count, or on whose number of channels they depend."""

    def __init__(self) -> None:
        self._counted: dict[fx.Node, list[Label]] = {}
        # Nodes that are the whole shape of a tensor: its number of axes, its channel axis, and the label of this axis.
        self._shapes: dict[fx.Node, tuple[int, int, Label | None]] = {}
        self._shares: dict[fx.Node, Label] = {}

    def among(self, nodes: Collection[fx.Node]) -> list[Label]:
        """Return the labels of the channels that the numbers among the nodes depend on."""
        return [label for node in nodes for label in self._counted.get(node, ())]

    def share(self, node: fx.Node) -> Label | None:
        """Return the label whose number of channels a node is, or a whole fraction of it; `None` for other nodes."""
        return self._shares.get(node)

    def record(
        self, node: fx.Node, labels: Mapping[fx.Node, Label], values: Mapping[fx.Node, Any], axes: Mapping[fx.Node, int]
    ) -> None:
        """Record on which channels a node without a tensor depends, such as a number or a shape.

        Args:
            node: Node of the graph.
            labels: The label of each node that is a tensor.
            values: The value of each node.
            axes: The channel axis of each tensor.
        """
        self._enter_share(node, labels, values, axes)
        counted = self.among(node.all_input_nodes)
        counted += [labels[source] for source in node.all_input_nodes if source in labels]
        if counted and not self._is_free(node, labels, values, axes):
            self._counted[node] = counted

    def _enter_share(
        self, node: fx.Node, labels: Mapping[fx.Node, Label], values: Mapping[fx.Node, Any], axes: Mapping[fx.Node, int]
    ) -> None:
        source, *others = (*node.args, None)
        if not isinstance(source, fx.Node):
            return
        number = others[0] if others[0] is not None else node.kwargs.get("dim")
        if not isinstance(number, int):
            return
        if node.target == "size" and source in labels and number % values[source].ndim == axes.get(source, 1):
            self._shares[node] = labels[source]
        elif node.target is operator.getitem and source in self._shapes:
            ndim, axis, label = self._shapes[source]
            if label is not None and number % ndim == axis:
                self._shares[node] = label
        elif node.target is operator.floordiv and source in self._shares and values[source] % number == 0:
            self._shares[node] = self._shares[source]

    def _is_free(
        self, node: fx.Node, labels: Mapping[fx.Node, Label], values: Mapping[fx.Node, Any], axes: Mapping[fx.Node, int]
    ) -> bool:
        """Return whether the value is the same for any number of channels. For an unknown operation it is not."""
        source = node.args[0] if node.args else None
        if not isinstance(source, fx.Node):
            return False
        given, others = values[source], node.args[1:]
        if isinstance(given, Tensor):
            name = others[0] if node.target is getattr else getattr(node.target, "__name__", node.target)
            axis = others[0] if others and node.target is not getattr else node.kwargs.get("dim")
            if name in WITHOUT_CHANNELS:
                return True
            if name == "size" and isinstance(axis, int):
                return axis % max(given.ndim, 1) != axes.get(source, 1)
            if name == "shape" or (name == "size" and axis is None):
                self._shapes[node] = given.ndim, axes.get(source, 1), labels.get(source)
            return False
        if node.target is operator.getitem and source in self._shapes and isinstance(others[0], (int, slice)):
            ndim, axis, _ = self._shapes[source]
            return not np.any(np.arange(ndim)[others[0]] == axis)
        return False
