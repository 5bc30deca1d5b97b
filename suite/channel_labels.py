"""Finding index spaces: a model's graph is run once, and every activation is labelled with its channel dimension.

Dimensions that share channels are united; what is not understood freezes the dimensions that it touches, and says why.
"""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Any, NamedTuple

from torch import Tensor, fx, nn

from suite.index_spaces import ChannelConstant, IndexSpace, IndexSpaces

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
# Each of these treats every channel alike and by itself.
_CHANNELWISE_MODULES = (
    nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU, nn.Mish, nn.Hardswish, nn.Hardsigmoid,
    nn.Hardtanh, nn.Sigmoid, nn.Tanh, nn.Softplus, nn.Identity, nn.Dropout, nn.Dropout2d,
    nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveMaxPool2d, nn.AdaptiveAvgPool2d,
)  # fmt: skip
_CHANNELWISE_FUNCTIONS = {
    "relu", "relu_", "relu6", "leaky_relu", "elu", "selu", "celu", "gelu", "silu", "mish", "hardswish", "hardsigmoid",
    "hardtanh", "sigmoid", "tanh", "softplus", "neg", "abs", "dropout", "dropout2d", "contiguous", "clone",
    "max_pool2d", "avg_pool2d", "adaptive_max_pool2d", "adaptive_avg_pool2d",
}  # fmt: skip
_ELEMENTWISE_FUNCTIONS = {
    "add", "add_", "iadd", "sub", "sub_", "isub", "mul", "mul_", "imul", "truediv", "div", "div_", "itruediv",
}  # fmt: skip


class LeafTracer(fx.Tracer):
    """Traces a model down to its layers; subclasses of torch's own layers (planned ones, say) are not entered."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Whether `m` is a single step of the graph."""
        leaves = (*_CONVOLUTIONS, *_NORMS, nn.Linear, ChannelConstant)
        return isinstance(m, leaves) or super().is_leaf_module(m, module_qualified_name)


class Label(NamedTuple):
    """What axis 1 of an activation is: a dimension's number, and how many consecutive entries a channel has there."""

    dimension: int
    block: int = 1


class ChannelLabels(fx.Interpreter):
    """Runs a graph and labels every activation with its channel dimension; dimensions that share channels are united.

    What is collected belongs to a dimension; `find` gives the representative of the dimensions that it was united with.
    """

    def __init__(self, model: nn.Module, graph: fx.Graph) -> None:
        super().__init__(model, graph=graph)
        self.sizes: list[int] = []
        self.producers: dict[int, list[str]] = defaultdict(list)
        self.consumers: dict[int, list[tuple[str, int]]] = defaultdict(list)
        self.axes: dict[int, list[tuple[str, int, int]]] = defaultdict(list)
        self.attributes: dict[int, list[tuple[str, str, int]]] = defaultdict(list)
        self.reasons: dict[int, list[str]] = defaultdict(list)
        self.model_input = -1
        self.model_outputs: list[int] = []
        self._parents: list[int] = []
        self._labels: dict[fx.Node, Label] = {}
        self._claimed: dict[tuple[int, int], Label] = {}

    def find(self, dimension: int) -> int:
        """The representative of all dimensions united with this one."""
        while self._parents[dimension] != dimension:
            dimension = self._parents[dimension]
        return dimension

    def run_node(self, n: fx.Node) -> Any:
        """Compute a node, then label what it returned. Numbers (sizes, for instance) have no label."""
        value = super().run_node(n)
        inputs = [node for node in n.all_input_nodes if node in self._labels]
        if n.op == "output":
            self.model_outputs = [self._labels[node].dimension for node in inputs]
            self._freeze(inputs, "the model's output")
        elif isinstance(value, Tensor):
            if not (n.op == "get_attr" and value.numel() == 1):  # one number is a factor, with no channels
                self._labels[n] = self._label(n, value, inputs) or self._not_understood(n, value, inputs)
        elif isinstance(value, (tuple, list)) and any(isinstance(entry, Tensor) for entry in value):
            self._freeze(inputs, f"'{n.name}' is not understood")
        return value

    def _label(self, node: fx.Node, value: Tensor, inputs: list[fx.Node]) -> Label | None:
        """The label of a node's tensor, or `None` if the node is not understood."""
        if node.op == "placeholder" and self.model_input < 0 and value.ndim >= 2:
            self.model_input = self._new(value.shape[1], "the model's input").dimension
            return Label(self.model_input)
        if not inputs or value.ndim < 2:
            return None
        label, given = self._labels[inputs[0]], self.env[inputs[0]]
        if node.op == "call_module":
            return self._through_module(str(node.target), value, label, given) if len(inputs) == 1 else None
        name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
        library = (getattr(node.target, "__module__", None) or "torch").split(".")[0]
        if library not in ("torch", "_operator"):
            return None
        channels_stay = value.shape[:2] == given.shape[:2]
        if name in _ELEMENTWISE_FUNCTIONS and channels_stay and value.ndim == given.ndim and len(inputs) <= 2:
            other, other_label = self.env[inputs[-1]], self._labels[inputs[-1]]
            same_shape = other.ndim == given.ndim and other.shape[1] == given.shape[1]
            return label if same_shape and self._unite(label, other_label) else None
        if len(inputs) != 1:
            return None
        if name in _CHANNELWISE_FUNCTIONS and channels_stay and value.ndim == given.ndim:
            return label
        if name in ("mean", "amax") and channels_stay:
            axes = node.kwargs.get("dim", node.args[1] if len(node.args) > 1 else ())
            axes = axes if isinstance(axes, (tuple, list)) else (axes,)
            return label if axes and all(isinstance(axis, int) and axis % given.ndim >= 2 for axis in axes) else None
        # A size that is written out in the model's code would be wrong after pruning; -1 is what is left over.
        if name == "flatten" or (name in ("view", "reshape") and node.args[-1] == -1):
            return self._flattened(value, label, given)
        return None

    def _through_module(self, name: str, value: Tensor, label: Label, given: Tensor) -> Label | None:
        module = self.module.get_submodule(name)
        if isinstance(module, _CHANNELWISE_MODULES):
            return label if value.shape[:2] == given.shape[:2] else None
        if isinstance(module, nn.Flatten):
            return self._flattened(value, label, given)
        if isinstance(module, ChannelConstant):
            emitted = self._new(value.shape[1])
            return emitted if self._claim(emitted, name, module, "constant", 0) else None
        if isinstance(module, _NORMS):
            self.attributes[label.dimension].append((name, "num_features", label.block))
            tensors = ("weight", "bias", "running_mean", "running_var")
            understood = [self._claim(label, name, module, tensor, 0) for tensor in tensors]
            return label if all(understood) else None
        if not isinstance(module, (*_CONVOLUTIONS, nn.Linear)):
            return None
        is_linear = isinstance(module, nn.Linear)
        if "weight" not in module._parameters or (is_linear and value.ndim != 2):
            return None
        emitted = self._new(value.shape[1])
        self.producers[emitted.dimension].append(name)
        self.attributes[emitted.dimension].append((name, "out_features" if is_linear else "out_channels", 1))
        understood = [self._claim(emitted, name, module, tensor, 0) for tensor in ("weight", "bias")]
        if getattr(module, "groups", 1) != 1:
            for united in (label, emitted):
                self.reasons[united.dimension].append(f"'{name}' is a grouped convolution")
            return emitted
        self.consumers[label.dimension].append((name, label.block))
        self.attributes[label.dimension].append((name, "in_features" if is_linear else "in_channels", label.block))
        if not all([*understood, self._claim(label, name, module, "weight", 1)]):
            for united in (label, emitted):
                self.reasons[united.dimension].append(f"'{name}' shares its weight in a way that is not understood")
        return emitted

    def _flattened(self, value: Tensor, label: Label, given: Tensor) -> Label | None:
        if value.ndim != 2 or value.shape[0] != given.shape[0]:
            return None
        return Label(label.dimension, label.block * math.prod(given.shape[2:]))

    def _claim(self, label: Label, name: str, module: nn.Module, tensor_name: str, axis: int) -> bool:
        """Note that a tensor's axis is sliced with a dimension; a tensor used twice unites those of both uses."""
        tensor = getattr(module, tensor_name)
        if tensor is None:
            return True
        held = self._claimed.setdefault((id(tensor), axis), label)
        if held is label:
            self.axes[label.dimension].append((f"{name}.{tensor_name}", axis, label.block))
        return self._unite(held, label)

    def _new(self, size: int, reason: str = "") -> Label:
        self.sizes.append(size)
        self._parents.append(len(self._parents))
        self.reasons[len(self._parents) - 1] += [reason] if reason else []
        return Label(len(self._parents) - 1)

    def _unite(self, first: Label, second: Label) -> bool:
        """Unite two dimensions, and say whether they can share their channels one by one."""
        roots = self.find(first.dimension), self.find(second.dimension)
        if self.sizes[roots[0]] != self.sizes[roots[1]]:
            return False  # as wide, but of other blocks: four channels of four places, say, and sixteen of one
        self._parents[max(roots)] = min(roots)
        return True

    def _freeze(self, nodes: list[fx.Node], reason: str) -> None:
        for node in nodes:
            self.reasons[self._labels[node].dimension].append(reason)

    def _not_understood(self, node: fx.Node, value: Tensor, inputs: list[fx.Node]) -> Label:
        reason = f"'{node.target if isinstance(node.target, str) else node.name}' is not understood"
        self._freeze(inputs, reason)
        return self._new(value.shape[1] if value.ndim >= 2 else 0, reason)


def gather_spaces(labels: ChannelLabels) -> IndexSpaces:
    """The index spaces of a graph that was run: what the labels of each set of united dimensions collected."""
    found: dict[int, IndexSpace] = {}
    for dimension in range(len(labels.sizes)):
        root = labels.find(dimension)
        space = found.setdefault(root, IndexSpace("", list(range(labels.sizes[root]))))
        space.producers += [name for name in labels.producers[dimension] if name not in space.producers]
        space.consumers += [entry for entry in labels.consumers[dimension] if entry not in space.consumers]
        space.axes += labels.axes[dimension]
        space.attributes += [entry for entry in labels.attributes[dimension] if entry not in space.attributes]
        reasons = [reason for reason in labels.reasons[dimension] if reason not in space.frozen_because]
        space.frozen_because = "; ".join(filter(None, [space.frozen_because, *dict.fromkeys(reasons)]))
    named: dict[int, str] = {}
    for root, space in found.items():
        if space.producers:
            named[root] = space.producers[0]
        elif root == labels.find(labels.model_input):
            named[root] = "input"
        elif space.axes:
            named[root] = space.axes[0][0].rpartition(".")[0]
    for root, name in named.items():
        found[root].name = name
    spaces = IndexSpaces({name: found[root] for root, name in named.items()})
    spaces.model_input = named[labels.find(labels.model_input)]
    outputs = {labels.find(dimension) for dimension in labels.model_outputs}
    spaces.model_outputs = frozenset(named[root] for root in outputs if root in named)
    return spaces
