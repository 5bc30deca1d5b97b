"""Labels of channels: a model's graph is run once, and the channels of every activation are labelled one by one.

A label is an array that holds the channel number of each entry of an activation's axis 1, or of its last axis behind a
linear layer that is applied to tokens, (N, tokens, C). A step of the graph passes a label on, repeats it (flattening),
joins several (concatenation), unites groups of channels (heads), or creates a new one (a convolution). If two
activations meet entry by entry, their channels are united. An operation that is not understood freezes the channels
that it touches, with the reason. `suite.network.channels.spaces` forms index spaces of the result.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor, fx, nn

from suite.network.channels.branches import ChannelConstant
from suite.network.channels.numbers import ChannelNumbers, Label, groups_of, recording_reads
from suite.network.layers import PlannedConv2d, PlannedLinear

# Compared by exact class: a subclass may compute anything.
_LAYERS = (nn.Conv2d, nn.Linear, PlannedConv2d, PlannedLinear)
_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
# Each of these processes every channel in the same way and independently.
_CHANNELWISE_MODULES = (
    nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU, nn.Mish, nn.Hardswish, nn.Hardsigmoid,
    nn.Hardtanh, nn.Sigmoid, nn.Tanh, nn.Softplus, nn.Identity, nn.Dropout, nn.Dropout2d,
    nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveMaxPool2d, nn.AdaptiveAvgPool2d,
)  # fmt: skip
_CHANNELWISE_FUNCTIONS = {
    "relu", "relu_", "relu6", "leaky_relu", "elu", "selu", "celu", "gelu", "silu", "mish", "hardswish", "hardsigmoid",
    "hardtanh", "sigmoid", "tanh", "softplus", "neg", "abs", "dropout", "dropout2d", "contiguous", "clone",
    "max_pool2d", "avg_pool2d", "adaptive_max_pool2d", "adaptive_avg_pool2d", "stochastic_depth",
}  # fmt: skip
_ELEMENTWISE_FUNCTIONS = {
    "add", "add_", "iadd", "sub", "sub_", "isub", "mul", "mul_", "imul", "truediv", "div", "div_", "itruediv",
}  # fmt: skip


class LeafTracer(fx.Tracer):
    """Traces a model down to its layers; subclasses of torch's own layers (such as planned ones) are not entered."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Whether `m` is a single step of the graph."""
        leaves = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear, *_NORMS, ChannelConstant)
        return isinstance(m, leaves) or bool(groups_of(m)) or super().is_leaf_module(m, module_qualified_name)


def trace(model: nn.Module) -> tuple[fx.Graph, list[tuple[nn.Module, str]]]:
    """Return the graph of a model in its current mode, and the attributes of layers that its code read."""
    with recording_reads(model, (*_LAYERS, *_NORMS)) as reads:
        return LeafTracer().trace(model), reads


class Use(NamedTuple):
    """A tensor's axis, or a number of a module (`axis` is -1), with one entry per entry of a label."""

    name: str
    axis: int
    label: Label


class ChannelLabels(fx.Interpreter):
    """Runs a graph and labels every activation with its channels.

    A model that computes differently in training and in evaluation has two graphs. The second one is run with `follow`
    and adds its constraints to those of the first.

    Attributes:
        count: Number of channels labelled so far.
        united: Pairs of labels whose channels are the same, entry by entry.
        uses: All tensor axes and numbers of modules that have entries for channels.
        producers, consumers: Name of a layer, and the label of its output or input.
        reasons: Why the channels of a label are frozen.
        grouped: Names of the grouped convolutions.
        heads: Names of the modules that compute with groups of channels, as attention does with heads.
        not_followed: Reasons of all operations that are not understood.
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
        self._labels: dict[fx.Node, Label] = {}
        self._axes: dict[fx.Node, int] = {}  # the axis of the channels, for tokens
        self._claimed: dict[tuple[int, int], Label] = {}
        self._counted: set[tuple[str, str]] = set()
        self._numbers = ChannelNumbers()

    def follow(self, graph: fx.Graph, *inputs: Tensor) -> None:
        """Run another graph of the model, and add its constraints to those of earlier graphs."""
        super().__init__(self.module, graph=graph)
        self._labels, self._axes, self._numbers = {}, {}, ChannelNumbers()
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

    def run_node(self, n: fx.Node) -> Any:
        """Compute a node, then label its result. Numbers (sizes, for instance) have no label."""
        value = super().run_node(n)
        inputs = [node for node in n.all_input_nodes if node in self._labels]
        several = isinstance(value, (tuple, list)) and any(isinstance(entry, Tensor) for entry in value)
        if isinstance(value, Tensor) or several or value is None or n.op == "output":
            reason = f"'{n.name}' depends on their number"
            self.reasons += [(reason, label) for label in self._numbers.among(n.all_input_nodes)]
        else:
            self._numbers.record(n, self._labels, self.env, self._axes)
        if n.op == "output":
            self.model_outputs += [self._labels[node] for node in inputs]
            self._freeze(inputs, "the model's output")
        elif isinstance(value, Tensor):
            if not (n.op == "get_attr" and value.numel() == 1):  # a single number is a factor and has no channels
                label = self._label(n, value, inputs)
                self._labels[n] = self._not_understood(n, value, inputs) if label is None else label
        elif several:
            self._not_understood(n, None, inputs)
        return value

    def _label(self, node: fx.Node, value: Tensor, inputs: list[fx.Node]) -> Label | None:
        """Return the label of a node's tensor, or `None` if the node is not understood."""
        if node is next(iter(self.graph.nodes)) and node.op == "placeholder" and value.ndim >= 2:
            if self.graph is self._first_graph:
                self.model_input = self._new(value.shape[1])
                self.reasons.append(("the model's input", self.model_input))
            return self.model_input
        if not inputs or value.ndim < 2:
            return None
        if node.op == "call_module":
            if groups_of(self.module.get_submodule(str(node.target))):
                return self._through_heads(node, value, inputs)
            return self._through_module(node, value, inputs[0]) if len(inputs) == 1 else None
        name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
        library = (getattr(node.target, "__module__", None) or "torch").split(".")[0]
        if library not in ("torch", "torchvision", "_operator"):
            return None
        if name in _ELEMENTWISE_FUNCTIONS:
            return self._elementwise(node, value, inputs)
        if name in ("cat", "concat"):
            return self._concatenated(node, value)
        return self._through_function(name, node, value, inputs[0]) if len(inputs) == 1 else None

    def _elementwise(self, node: fx.Node, value: Tensor, inputs: list[fx.Node]) -> Label | None:
        """Label an operation on one tensor and numbers, or on two tensors that both have all channels."""
        axes = {self._axes.get(source, 1) for source in inputs}
        if len(inputs) > 2 or len(axes) > 1:
            return None
        (axis,) = axes
        for given in (self.env[source] for source in inputs):
            if given.ndim != value.ndim or given.shape[axis] != value.shape[axis]:
                return None
        self._keep_axis(node, inputs[0])
        first, last = self._labels[inputs[0]], self._labels[inputs[-1]]
        self._unite(first, last)
        return first

    def _concatenated(self, node: fx.Node, value: Tensor) -> Label | None:
        """Label a concatenation along the channels; other axes are not followed."""
        parts = node.args[0] if node.args else node.kwargs.get("tensors")
        axis = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", 0)
        if not isinstance(parts, (tuple, list)) or not isinstance(axis, int) or axis % value.ndim != 1:
            return None
        if any(part not in self._labels or part in self._axes for part in parts):
            return None
        return np.concatenate([self._labels[part] for part in parts])  # type: ignore[index]

    def _through_function(self, name: str, node: fx.Node, value: Tensor, source: fx.Node) -> Label | None:
        label, given = self._labels[source], self.env[source]
        if source in self._axes:
            if name not in _CHANNELWISE_FUNCTIONS or value.shape != given.shape:
                return None
            self._keep_axis(node, source)
            return label
        channels_stay = value.shape[:2] == given.shape[:2]
        if name in _CHANNELWISE_FUNCTIONS and channels_stay and value.ndim == given.ndim:
            return label
        if name in ("mean", "amax") and channels_stay:
            axes = node.kwargs.get("dim", node.args[1] if len(node.args) > 1 else ())
            axes = axes if isinstance(axes, (tuple, list)) else (axes,)
            return label if axes and all(isinstance(axis, int) and axis % given.ndim >= 2 for axis in axes) else None
        # A size that the model's code states would be wrong after pruning; only -1 is inferred.
        if name == "flatten" or (name in ("view", "reshape") and node.args[-1] == -1):
            return _flattened(value, label, given)
        return None

    def _through_module(self, node: fx.Node, value: Tensor, source: fx.Node) -> Label | None:
        name, label, given = str(node.target), self._labels[source], self.env[source]
        module = self.module.get_submodule(name)
        channelwise = isinstance(module, _CHANNELWISE_MODULES)
        channelwise = channelwise or (type(module) is nn.PReLU and module.num_parameters == 1)
        if isinstance(module, nn.Linear) and value.ndim > 2 and type(module) in _LAYERS:
            return self._through_tokens(node, module, value, source)
        if source in self._axes:
            if not channelwise or value.shape != given.shape:
                return None
            self._keep_axis(node, source)
            return label
        if channelwise:
            return label if value.shape[:2] == given.shape[:2] else None
        if isinstance(module, nn.Flatten):
            return _flattened(value, label, given)
        if isinstance(module, ChannelConstant):
            emitted = self._new(value.shape[1])
            return emitted if self._claim(name, module, "constant", 0, emitted) else None
        if type(module) is nn.PReLU and self._claim(name, module, "weight", 0, label):
            self._count(name, "num_parameters", label)
            return label
        if type(module) in _NORMS:
            self._count(name, "num_features", label)
            tensors = ("weight", "bias", "running_mean", "running_var")
            understood = [self._claim(name, module, tensor, 0, label) for tensor in tensors]
            return label if all(understood) else None
        return self._through_layer(name, module, value, label) if type(module) in _LAYERS else None

    def _through_tokens(self, node: fx.Node, module: nn.Linear, value: Tensor, source: fx.Node) -> Label | None:
        """Label a linear layer that is applied to the last axis of tokens, (N, ..., C)."""
        label = self._labels[source]
        if source not in self._axes:
            # The last axis of this tensor was not followed so far.
            reason = f"'{node.target}' is applied to another axis"
            self._freeze([source], reason)
            label = self._new(module.in_features)
            self.reasons.append((f"'{node.name}' reads an axis that was not followed", label))
        emitted = self._through_layer(str(node.target), module, value, label, -1)
        if emitted is not None:
            self._axes[node] = value.ndim - 1
        return emitted

    def _through_heads(self, node: fx.Node, value: Tensor, inputs: list[fx.Node]) -> Label | None:
        """Label a module that computes with heads, each an equal share of the channels of all its tokens."""
        name = str(node.target)
        module = self.module.get_submodule(name)
        attribute = groups_of(module)
        heads = int(getattr(module, attribute))
        tensors = [*(self.env[source] for source in inputs), value]
        if any(source not in self._axes for source in inputs) or any(one.shape[-1] % heads for one in tensors):
            return None
        # A head is removed as a whole from all of them.
        whole = self._new(heads)
        for source in inputs:
            label = self._labels[source]
            self._unite(np.repeat(whole, len(label) // heads), label)
        self.heads.add(name)
        self._count(name, attribute, whole)
        self._axes[node] = value.ndim - 1
        return np.repeat(whole, value.shape[-1] // heads)

    def _keep_axis(self, node: fx.Node, source: fx.Node) -> None:
        """Record that a node has its channels on the same axis as its input."""
        if source in self._axes:
            self._axes[node] = self._axes[source]

    def _through_layer(self, name: str, module: nn.Module, value: Tensor, label: Label, axis: int = 1) -> Label | None:
        weight = module._parameters.get("weight")
        if weight is None or (isinstance(module, nn.Linear) and value.ndim != 2 and axis == 1):
            return None
        groups = int(getattr(module, "groups", 1))
        kind = "features" if isinstance(module, nn.Linear) else "channels"
        if (weight.shape[0], weight.shape[1] * groups) != (value.shape[axis], len(label)):
            return None  # for example behind a gate, whose output has other channels than its input
        if groups > 1:
            # A group is removed as a whole, with all its inputs and outputs: the rest is a grouped convolution again.
            self.grouped.add(name)
            whole = self._new(groups)
            self._unite(np.repeat(whole, len(label) // groups), label)
            emitted = np.repeat(whole, value.shape[1] // groups)
            self._count(name, "groups", whole)
        else:
            emitted = self._new(value.shape[axis])
            self.consumers.append((name, label))
            self._claim(name, module, "weight", 1, label)
        self.producers.append((name, emitted))
        self._count(name, f"out_{kind}", emitted)
        self._count(name, f"in_{kind}", label)
        for tensor in ("weight", "bias"):
            self._claim(name, module, tensor, 0, emitted)
        return emitted

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
            self.uses.append(Use(f"{name}.{tensor_name}", axis, label))
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

    def _freeze(self, nodes: list[fx.Node], reason: str) -> None:
        self.reasons += [(reason, self._labels[node]) for node in nodes]

    def _not_understood(self, node: fx.Node, value: Tensor | None, inputs: list[fx.Node]) -> Label:
        reason = f"'{node.target if isinstance(node.target, str) else node.name}' is not understood"
        if node.op == "call_module" and isinstance(self.module.get_submodule(str(node.target)), nn.MultiheadAttention):
            reason = f"'{node.target}' is a MultiheadAttention, whose heads have the width embed_dim / num_heads"
        self.not_followed.append(reason)
        self._freeze(inputs, reason)
        emitted = self._new(value.shape[1] if value is not None and value.ndim >= 2 else 0)
        self.reasons.append((reason, emitted))
        return emitted


def _flattened(value: Tensor, label: Label, given: Tensor) -> Label | None:
    if value.ndim != 2 or value.shape[0] != given.shape[0]:
        return None
    return np.repeat(label, math.prod(given.shape[2:]))
