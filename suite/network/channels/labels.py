"""Labels of channels: a model's graph is run once, and the channels of every activation are labelled one by one.

A label is an array that holds the channel number of each entry of an activation's channel axis: axis 1, or any other
axis behind a transposition or a linear layer that is applied to tokens, (N, tokens, C). A step of the graph passes a
label on, repeats it (flattening), joins several (concatenation), unites groups of channels (heads, equal parts of a
tensor), or creates a new one (a convolution). If two activations meet entry by entry, their channels are united. An
operation that is not understood, or that mixes channels, freezes the channels that it touches, with the reason.
`suite.network.channels.spaces` forms index spaces of the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor, fx, nn

from suite.network.channels.branches import ChannelConstant
from suite.network.channels.module_labels import LAYERS, NORMS, ModuleLabels
from suite.network.channels.numbers import Label, groups_of, recording_reads
from suite.network.channels.record import Followed
from suite.network.channels.reshapes import indexed_axis, moved_axis, parameter_axes, reduced_axis

# Each of these processes every entry in the same way.
_ENTRYWISE_FUNCTIONS = {
    "relu", "relu_", "relu6", "leaky_relu", "elu", "selu", "celu", "gelu", "silu", "mish", "hardswish", "hardsigmoid",
    "hardtanh", "sigmoid", "tanh", "softplus", "neg", "abs", "exp", "square", "sqrt", "clamp", "dropout", "contiguous",
    "clone", "stochastic_depth",
}  # fmt: skip
# Each of these processes every channel of (N, C, H, W) in the same way and independently.
_CHANNELWISE_FUNCTIONS = {
    "dropout2d", "max_pool2d", "avg_pool2d", "adaptive_max_pool2d", "adaptive_avg_pool2d", "interpolate",
}  # fmt: skip
_ELEMENTWISE_FUNCTIONS = {
    "add", "add_", "iadd", "sub", "sub_", "isub", "mul", "mul_", "imul", "truediv", "div", "div_", "itruediv",
}  # fmt: skip
_FLATTENED = (("start_dim", 0), ("end_dim", -1))


class LeafTracer(fx.Tracer):
    """Traces a model down to its layers; subclasses of torch's own layers (such as planned ones) are not entered."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Whether `m` is a single step of the graph."""
        leaves = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear, *NORMS, ChannelConstant)
        return isinstance(m, leaves) or bool(groups_of(m)) or super().is_leaf_module(m, module_qualified_name)


def trace(model: nn.Module) -> tuple[fx.Graph, list[tuple[nn.Module, str]]]:
    """Return the graph of a model in its current mode, and the attributes of layers that its code read."""
    with recording_reads(model, (*LAYERS, *NORMS, nn.PReLU, nn.ConvTranspose2d)) as reads:
        return LeafTracer().trace(model), reads


class ChannelLabels(ModuleLabels):
    """Runs a graph and labels every activation with its channels.

    A model that computes differently in training and in evaluation has two graphs. The second one is run with `follow`
    and adds its constraints to those of the first.
    """

    def run_node(self, n: fx.Node) -> Any:
        """Compute a node, then label its result. Numbers (sizes, for instance) have no label."""
        value = super().run_node(n)
        inputs = [node for node in n.all_input_nodes if node in self._labels]
        several = isinstance(value, (tuple, list)) and any(isinstance(entry, Tensor) for entry in value)
        if not (isinstance(value, Tensor) or several or value is None or n.op == "output"):
            self._freeze_parameters(n.all_input_nodes, f"'{n.name}' reads it")
            self._numbers.record(n, self._labels, self.env, self._axes)
            return value
        self._explained: set[fx.Node] = set()
        if n.op == "output":
            self.model_outputs += [self._labels[node] for node in inputs]
            self._freeze(inputs, "the model's output")
            self._freeze_parameters(n.all_input_nodes, "the model's output")
        elif several:
            if not self._divided(n, value, inputs):
                self._not_understood(n, None, inputs)
        elif isinstance(value, Tensor) and not self._is_parameter(n, value):
            found = self._label(n, value, inputs)
            label, axis = found or (self._not_understood(n, value, inputs), 1)
            self._labels[n], self._axes[n] = label, axis
        counted = [node for node in n.all_input_nodes if node not in self._explained]
        reason = f"'{n.name}' depends on their number"
        self.reasons += [(reason, label) for label in self._numbers.among(counted)]
        return value

    def _is_parameter(self, node: fx.Node, value: Tensor) -> bool:
        """Whether a node is a parameter, possibly with added axes, that element-wise functions can meet."""
        if node.op == "get_attr":
            if value.numel() == 1:  # a single number is a factor and has no channels
                return True
            name = str(node.target)
            state = {**dict(self.module.named_parameters()), **dict(self.module.named_buffers())}
            if name in state:
                self._parameters[node] = name, tuple(range(value.ndim))
            return name in state
        source = node.args[0] if node.args else None
        if not isinstance(source, fx.Node) or source not in self._parameters or len(node.all_input_nodes) > 1:
            return False
        name, axes = self._parameters[source]
        found = parameter_axes(_name(node), node.args[1:], axes, value.shape)
        if found is not None:
            self._parameters[node] = name, found
        return found is not None

    def _label(self, node: fx.Node, value: Tensor, inputs: list[fx.Node]) -> Followed | None:
        """Return the label of a node's tensor, or `None` if the node is not understood."""
        if node is next(iter(self.graph.nodes)) and node.op == "placeholder" and value.ndim >= 2:
            if self.graph is self._first_graph:
                self.model_input = self._new(value.shape[1])
                self.reasons.append(("the model's input", self.model_input))
            return Followed(self.model_input)
        if not inputs or value.ndim < 2:
            return None
        if node.op == "call_module":
            if groups_of(self.module.get_submodule(str(node.target))):
                return self._through_heads(node, value, inputs)
            return self._through_module(node, value, inputs[0]) if len(inputs) == 1 else None
        name = _name(node)
        library = (getattr(node.target, "__module__", None) or "torch").split(".")[0]
        if library not in ("torch", "torchvision", "_operator"):
            return None
        if name in ("cat", "concat"):
            return self._concatenated(node, value)
        if (
            name == "getitem"
            and inputs == [node.args[0]]
            and isinstance(node.args[1], int)
            and inputs[0] in self._parts
        ):
            return self._parts[inputs[0]][node.args[1]]
        if not all(isinstance(self.env[source], Tensor) for source in inputs):
            return None
        if name in _ELEMENTWISE_FUNCTIONS:
            return self._elementwise(node, value, inputs)
        if len(inputs) > 1 or inputs[0] is not node.args[0]:
            return None
        return self._through_function(name, node, value, inputs[0])

    def _elementwise(self, node: fx.Node, value: Tensor, inputs: list[fx.Node]) -> Followed | None:
        """Label an operation on tensors and numbers, in which each tensor has all channels or one entry for all."""
        axes = {self._axes[source] + value.ndim - self.env[source].ndim for source in inputs}
        if len(axes) > 1:
            return None
        (axis,) = axes
        labels = [self._labels[source] for source in inputs if len(self._labels[source]) == value.shape[axis]]
        if not labels or len(labels) < sum(len(self._labels[source]) > 1 for source in inputs):
            return None
        for source in node.all_input_nodes:
            given = self.env[source]
            if (
                isinstance(given, Tensor)
                and source not in inputs
                and not self._meets(source, given, value, axis, labels[0])
            ):
                return None
        for label in labels[1:]:
            self._unite(labels[0], label)
        return Followed(labels[0], axis)

    def _meets(self, source: fx.Node, given: Tensor, value: Tensor, axis: int, label: Label) -> bool:
        """Record that a parameter meets the channels of a label, if it has an entry for each of them."""
        place = axis - value.ndim + given.ndim
        if place < 0 or given.shape[place] == 1:
            return True
        name, axes = self._parameters.get(source, ("", ()))
        if not name or axes[place] < 0 or given.shape[place] != len(label):
            return False
        owner, _, attribute = name.rpartition(".")
        return self._claim(owner, self.module.get_submodule(owner), attribute, axes[place], label)

    def _concatenated(self, node: fx.Node, value: Tensor) -> Followed | None:
        """Label a concatenation."""
        parts = node.args[0] if node.args else node.kwargs.get("tensors")
        along = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", 0)
        if isinstance(parts, fx.Node) and parts in self._parts:
            followed = self._parts[parts]
        elif isinstance(parts, (tuple, list)) and all(part in self._labels for part in parts):
            followed = [Followed(self._labels[part], self._axes[part]) for part in parts]  # type: ignore[index]
        else:
            return None
        axes = {part.axis for part in followed}
        if len(axes) > 1 or not isinstance(along, int):
            return None
        (axis,), along = axes, along % value.ndim
        if along == axis:
            return Followed(np.concatenate([part.label for part in followed]), axis)
        if along == 0:
            return None
        for part in followed[1:]:
            self._unite(followed[0].label, part.label)
        return Followed(followed[0].label, axis)

    def _divided(self, node: fx.Node, values: Sequence[Any], inputs: list[fx.Node]) -> bool:
        """Label the parts into which `chunk` or `split` divides a tensor; return whether the node is understood."""
        name = _name(node)
        if name == "getitem" and inputs == [node.args[0]] and isinstance(node.args[1], slice):
            self._labels[node], self._axes[node] = self._labels[inputs[0]], self._axes[inputs[0]]
            self._parts[node] = self._parts.get(inputs[0], [])[node.args[1]]
            return bool(self._parts[node])
        if name not in ("chunk", "split") or len(inputs) != 1 or inputs[0] is not node.args[0]:
            return False
        source = inputs[0]
        label, axis, given = self._labels[source], self._axes[source], self.env[source]
        among = node.args[1] if len(node.args) > 1 else node.kwargs.get("chunks")
        along = node.args[2] if len(node.args) > 2 else node.kwargs.get("dim", 0)
        if not isinstance(given, Tensor) or not isinstance(along, int) or along % given.ndim == 0:
            return False
        self._labels[node], self._axes[node] = label, axis
        if along % given.ndim != axis:
            self._parts[node] = [Followed(label, axis) for _ in values]
            return True
        sizes = [part.shape[axis] for part in values]
        if isinstance(among, fx.Node) and self._is_share(among, label):
            self._explained.add(among)
        elif name == "split":
            self._stop(f"'{node.name}' takes parts of a fixed size", label)
        if len(set(sizes)) == 1 and (name == "split" or among == len(sizes)):
            # The parts stay equal if channels in the same place of all parts are removed together.
            self._unite_rows(label.reshape(len(sizes), -1).T)
        else:
            self._stop(f"'{node.name}' takes parts of different size", label)
        ends = np.cumsum(sizes)
        self._parts[node] = [Followed(label[end - size : end], axis) for end, size in zip(ends, sizes, strict=True)]
        return True

    def _through_function(self, name: str, node: fx.Node, value: Tensor, source: fx.Node) -> Followed | None:
        label, axis, given = self._labels[source], self._axes[source], self.env[source]
        args, kwargs, same = node.args[1:], dict(node.kwargs), Followed(label, axis)
        if name in _ENTRYWISE_FUNCTIONS:
            return same if value.shape == given.shape else None
        if name in _CHANNELWISE_FUNCTIONS:
            return same if (given.ndim, axis) == (4, 1) and value.shape[:2] == given.shape[:2] else None
        if name in ("mean", "sum", "amax", "amin", "softmax"):
            axes = args[0] if args else kwargs.get("dim", ())
            keeps = name == "softmax" or bool(args[1] if len(args) > 1 else kwargs.get("keepdim", False))
            place = reduced_axis(axes, keeps, given.ndim, axis)
        elif name == "squeeze" and args and isinstance(args[0], int):
            place = reduced_axis(args[0], value.ndim == given.ndim, given.ndim, axis)
        elif name == "getitem":
            place = indexed_axis(args[0], given.ndim, axis)
        elif name == "flatten":
            ends = [*args, *(kwargs.get(key, end) for key, end in _FLATTENED[len(args) :])]
            first, last = (end if isinstance(end, int) else None for end in ends)
            return None if first is None or last is None else self._flattened(given, value, same, first, last)
        elif name in ("view", "reshape"):
            return self._viewed(args, given, value, same)
        elif name == "layer_norm" and args:
            shape: Any = self.env[args[0]] if isinstance(args[0], fx.Node) else args[0]
            return self._through_layer_norm(node.name, same, given, len(shape))
        elif name in ("pixel_shuffle", "pixel_unshuffle", "channel_shuffle") and (given.ndim, axis) == (4, 1):
            return self._shuffled(name, args, label)
        else:
            place = moved_axis(name, args, kwargs, given.ndim, axis)
        return None if place is None else Followed(label, place)

    def _viewed(self, args: Sequence[Any], given: Tensor, value: Tensor, followed: Followed) -> Followed | None:
        """Label a view. Only sizes that are inferred, or computed of the number of channels, adapt themselves."""
        sizes = args[0] if len(args) == 1 and isinstance(args[0], (tuple, list)) else args
        if not sizes or len(sizes) != value.ndim:
            return None
        # A stated number at the first axis would hold for one number of images only.
        if not (isinstance(sizes[0], fx.Node) or sizes[0] == -1) or value.shape[0] != given.shape[0]:
            return None
        shares = [size for size in sizes if isinstance(size, fx.Node) and self._is_share(size, followed.label)]
        adapting = {place for place, size in enumerate(sizes) if size in shares or size == -1}
        found = self._reshaped(given, value, followed, adapting)
        if found is not None:
            self._explained.update(shares)
        return found

    def _shuffled(self, name: str, args: Sequence[Any], label: Label) -> Followed | None:
        """Label a function that exchanges channels and positions, or that shuffles channels."""
        factor = args[0] if args else None
        if not isinstance(factor, int):
            return None
        if name == "pixel_unshuffle":
            return Followed(np.repeat(label, factor**2))
        if name == "pixel_shuffle":
            return Followed(self._unite_rows(label.reshape(-1, factor**2)))
        return Followed(np.repeat(self._unite_rows(label.reshape(factor, -1).T), factor))

    def _is_share(self, number: fx.Node, label: Label) -> bool:
        """Whether a number is in proportion to the number of channels of a label, whichever channels are removed."""
        counted = self._numbers.share(number)
        if counted is None:
            return False
        channel = self.united_channels()
        ours, theirs = (np.unique(channel[one], return_counts=True) for one in (label, counted))
        return np.array_equal(ours[0], theirs[0]) and np.array_equal(ours[1] * theirs[1][0], theirs[1] * ours[1][0])


def _name(node: fx.Node) -> str:
    return node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
