"""What labelling a graph's channels records: tensors with an entry per channel, united channels, and reasons."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components
from torch import Tensor, fx, nn

from suite.network.channels.numbers import ChannelNumbers, Label

_MULTI_HEAD = "'{}' is a MultiheadAttention, whose heads have the width embed_dim / num_heads"


class Use(NamedTuple):
    """A tensor's axis, or a number of a module (`axis` is -1), with one entry per entry of a label."""

    name: str
    axis: int
    label: Label


class Followed(NamedTuple):
    """The label of an activation, and the axis of the activation that it labels."""

    label: Label
    axis: int = 1


class ChannelRecord(fx.Interpreter):
    """Runs a graph, and records what its steps find out about channels. Subclasses label the steps.

    Attributes:
        count: Number of channels labelled so far.
        united: Pairs of labels whose channels are the same, entry by entry.
        uses: All tensor axes and numbers of modules that have entries for channels.
        producers, consumers: Name of a layer, and the label of its output or input.
        reasons: Why the channels of a label are frozen.
        grouped: Names of the grouped convolutions.
        heads: Names of the modules that compute with groups of channels, as attention does with heads.
        not_followed: Reasons of all operations that are not understood, or that mix channels.
        model_input: Label of the model's input.
        model_outputs: Labels of the model's outputs.
    """

    def __init__(self, model: nn.Module, graph: fx.Graph) -> None:
        super().__init__(model, graph=graph)
        self._first_graph = graph
        self.count = 0
        self.united: list[tuple[Label, Label]] = []
        self.uses: list[Use] = []
        self.producers: list[tuple[str, Label]] = []
        self.consumers: list[tuple[str, Label]] = []
        self.reasons: list[tuple[str, Label]] = []
        self.grouped: set[str] = set()
        self.heads: set[str] = set()
        self.not_followed: list[str] = []
        self.model_input: Label = np.empty(0, dtype=np.int64)
        self.model_outputs: list[Label] = []
        self._claimed: dict[tuple[int, int], Label] = {}
        self._counted: set[tuple[str, str]] = set()
        self._forget_steps()

    def _forget_steps(self) -> None:
        self._labels: dict[fx.Node, Label] = {}
        self._axes: dict[fx.Node, int] = {}  # the axis of the channels of each labelled node
        self._parts: dict[fx.Node, list[Followed]] = {}  # nodes whose value is a list of tensors
        # Parameters that only element-wise functions may meet: name, and its axis at each axis of the node (or -1).
        self._parameters: dict[fx.Node, tuple[str, tuple[int, ...]]] = {}
        self._numbers = ChannelNumbers()

    def follow(self, graph: fx.Graph, *inputs: Tensor) -> None:
        """Run another graph of the model, and add its constraints to those of earlier graphs."""
        super().__init__(self.module, graph=graph)
        self._forget_steps()
        self.run(*inputs)

    def freeze_reads(self, reads: Iterable[tuple[nn.Module, str]]) -> None:
        """Freeze the channels of tensors and numbers of layers that the model's own code read, as `trace` returned."""
        names = {id(module): name for name, module in self.module.named_modules()}
        for module, attribute in dict.fromkeys(reads):
            reason = f"the model reads '{names[id(module)]}.{attribute}' itself"
            tensor = getattr(module, attribute)
            for (key, _), label in self._claimed.items():
                if isinstance(tensor, Tensor) and key == id(tensor):
                    self.reasons.append((reason, label))
            for name, axis, label in self.uses:
                owner, _, counted = name.rpartition(".")
                if axis < 0 and counted == attribute and self.module.get_submodule(owner) is module:
                    self.reasons.append((reason, label))

    def united_channels(self) -> NDArray[np.int64]:
        """Return for each channel number the smallest number among those that it was united with so far."""
        pairs = [np.concatenate([pair[side] for pair in self.united] or [np.empty(0, np.int64)]) for side in (0, 1)]
        graph = coo_matrix((np.ones(len(pairs[0])), (pairs[0], pairs[1])), shape=(self.count, self.count))
        count, component = connected_components(graph, directed=False)
        smallest = np.full(count, self.count)
        np.minimum.at(smallest, component, np.arange(self.count))
        found: NDArray[np.int64] = smallest[component]
        return found

    def _claim(self, name: str, module: nn.Module, tensor_name: str, axis: int, label: Label) -> bool:
        """Record that a tensor's axis has one entry per entry of a label; a tensor used twice unites both labels."""
        tensor = getattr(module, tensor_name)
        if tensor is None:
            return True
        if tensor.shape[axis] != len(label):
            return False
        key = (id(tensor), axis)
        if key in self._claimed:
            self._unite(self._claimed[key], label)
        else:
            self._claimed[key] = label
            self.uses.append(Use(f"{name}.{tensor_name}" if name else tensor_name, axis, label))
        return True

    def _count(self, name: str, attribute: str, label: Label) -> None:
        """Record that a number of a module counts the entries of a label; a module that runs twice counts once."""
        if (name, attribute) not in self._counted:
            self._counted.add((name, attribute))
            self.uses.append(Use(f"{name}.{attribute}", -1, label))

    def _new(self, count: int) -> Label:
        first, self.count = self.count, self.count + count
        return np.arange(first, self.count)

    def _unite(self, first: Label, second: Label) -> None:
        if first is not second:
            self.united.append((first, second))

    def _unite_rows(self, grid: Label) -> Label:
        """Make every row of a grid, (channels, entries), one channel, and return the label of the rows."""
        for column in range(1, grid.shape[1]):
            if not np.array_equal(grid[:, 0], grid[:, column]):
                self._unite(grid[:, 0], grid[:, column])
        return grid[:, 0]

    def _freeze(self, nodes: Iterable[fx.Node], reason: str) -> None:
        self.reasons += [(reason, self._labels[node]) for node in nodes]

    def _stop(self, reason: str, label: Label) -> None:
        """Freeze the channels of a label, which are still followed, because an operation mixes or counts them."""
        self.not_followed.append(reason)
        self.reasons.append((reason, label))

    def _freeze_parameters(self, nodes: Iterable[fx.Node], reason: str) -> None:
        """Freeze the channels of parameters that another operation than an element-wise function reads."""
        for node in nodes:
            if node in self._parameters:
                name = self._parameters[node][0]
                owner, _, attribute = name.rpartition(".")
                tensor = getattr(self.module.get_submodule(owner), attribute)
                for axis in range(tensor.ndim):
                    key = (id(tensor), axis)
                    label = self._claimed.setdefault(key, self._new(tensor.shape[axis]))
                    self.reasons.append((reason, label))

    def _not_understood(self, node: fx.Node, value: Tensor | None, inputs: list[fx.Node]) -> Label:
        reason = f"'{node.target if isinstance(node.target, str) else node.name}' is not understood"
        if node.op == "call_module" and isinstance(self.module.get_submodule(str(node.target)), nn.MultiheadAttention):
            reason = _MULTI_HEAD.format(node.target)
        self.not_followed.append(reason)
        self._freeze(inputs, reason)
        self._freeze_parameters(node.all_input_nodes, reason)
        emitted = self._new(value.shape[1] if value is not None and value.ndim >= 2 else 0)
        self.reasons.append((reason, emitted))
        return emitted
