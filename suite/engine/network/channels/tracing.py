"""Run a model's graph once, and label the channels of every activation one by one.

A label is an array with the channel number of each entry of an activation's channel axis. This is axis 1, or another
axis after a transposition or after a linear layer that is applied to tokens, (N, tokens, C). A step of the graph passes
a label on, repeats it (flattening), joins several (concatenation), unites groups of channels (heads, equal parts of a
tensor), or creates a new one (a convolution). If two activations meet entry by entry, their channels are united. An
operation that mixes channels, or that this module does not understand, freezes the channels that it touches, with the
reason. `suite.engine.network.channels.spaces` forms index spaces of the result.

The file has, in this order: what labelling records, axes of reshaped tensors, labels of modules, tracing, and the run.
"""

from __future__ import annotations

import dataclasses
import math
import operator
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, fx, nn

from suite.engine.network.channels.numbers import WITHOUT_CHANNELS, ChannelNumbers, Label, groups_of, recording_reads
from suite.engine.network.channels.surgery import ChannelConstant
from suite.engine.network.forward_pass import copied
from suite.engine.network.layers import computed_by, planned_as

# While the model's forward runs, tracing replaces both in `nn.Module`.
_CALL, _GETATTR = nn.Module.__call__, nn.Module.__getattr__


class Use(NamedTuple):
    """A tensor's axis that has one entry per entry of a label, or a module's number of them (`axis` is -1)."""

    name: str
    axis: int
    label: Label


class Followed(NamedTuple):
    """The label of an activation, and the axis of the activation that it labels."""

    label: Label
    axis: int = 1


class ChannelRecord(fx.Interpreter):
    """Runs a graph, and records what its steps tell about channels. Subclasses label the steps.

    Attributes:
        count: Number of channels labelled so far.
        united: Pairs of labels whose channels are the same, entry by entry.
        uses: All tensor axes and numbers of modules that have entries for channels.
        producers, consumers: Name of a layer, and the label of its output or input.
        reasons: Why the channels of a label are frozen.
        grouped: Names of the grouped convolutions.
        heads: Names of the modules that compute with groups of channels, as attention does with heads.
        not_followed: Reasons for all operations that mix channels or are not understood.
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
        # Nodes that are parameters, or that element-wise functions compute from parameters alone: the names of the
        # parameters, and their axis at each axis of the node (or -1). Only element-wise functions may read them.
        self._parameters: dict[fx.Node, tuple[tuple[str, ...], tuple[int, ...]]] = {}
        self._numbers = ChannelNumbers()

    def follow(self, graph: fx.Graph, *inputs: Tensor) -> None:
        """Run another graph of the model, and add its constraints to those of earlier graphs."""
        super().__init__(self.module, graph=graph)
        self._forget_steps()
        self.run(*inputs)

    def freeze_reads(self, reads: Iterable[tuple[str, str]]) -> None:
        """Freeze the channels of tensors and numbers of layers that the model's own code read, as `trace` returned."""
        for name_of_module, attribute in dict.fromkeys(reads):
            reason = f"the model reads '{name_of_module}.{attribute}' itself"
            module = self.module.get_submodule(name_of_module)
            tensor = getattr(module, attribute)
            for (key, _), label in self._claimed.items():
                if isinstance(tensor, Tensor) and key == id(tensor):
                    self.reasons.append((reason, label))
            for name, axis, label in self.uses:
                owner, _, counted = name.rpartition(".")
                if axis < 0 and counted == attribute and self.module.get_submodule(owner) is module:
                    self.reasons.append((reason, label))

    def united_channels(self) -> NDArray[np.int64]:
        """Return for each channel the smallest number of a channel that it was united with so far, (count,)."""
        # SciPy takes a quarter of a second to import, which training without a trace should not cost.
        from scipy.sparse import coo_matrix
        from scipy.sparse.csgraph import connected_components

        pairs = [np.concatenate([pair[side] for pair in self.united] or [np.empty(0, np.int64)]) for side in (0, 1)]
        graph = coo_matrix((np.ones(len(pairs[0])), (pairs[0], pairs[1])), shape=(self.count, self.count))
        count, component = connected_components(graph, directed=False)
        smallest = np.full(count, self.count)
        np.minimum.at(smallest, component, np.arange(self.count))
        united: NDArray[np.int64] = smallest[component]
        return united

    def _claim(self, name: str, module: nn.Module, tensor_name: str, axis: int, label: Label) -> bool:
        """Record that a tensor's axis has one entry per entry of a label; the second use of a tensor unites labels."""
        tensor = getattr(module, tensor_name)
        if tensor is None:
            return True
        if tensor.shape[axis] != len(label):
            return False
        if computed := computed_by(module, tensor_name):
            self._stop(f"'{name}.{tensor_name}' is {computed}", label)
            return True
        key = (id(tensor), axis)
        if key in self._claimed:
            self._unite(self._claimed[key], label)
        else:
            self._claimed[key] = label
            self.uses.append(Use(f"{name}.{tensor_name}" if name else tensor_name, axis, label))
        return True

    def _count(self, name: str, attribute: str, label: Label) -> None:
        """Record that a number of a module counts the entries of a label, once for a module that runs twice."""
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
        """Freeze the channels of a label because an operation mixes or counts them, and go on following them."""
        self.not_followed.append(reason)
        self.reasons.append((reason, label))

    def _freeze_parameters(self, nodes: Iterable[fx.Node], reason: str) -> None:
        """Freeze the channels of parameters that an operation reads, if it is not an element-wise function."""
        for node in nodes:
            for name in self._parameters.get(node, ((), ()))[0]:
                owner, _, attribute = name.rpartition(".")
                tensor = getattr(self.module.get_submodule(owner), attribute)
                for axis in range(tensor.ndim):
                    key = (id(tensor), axis)
                    label = self._claimed.setdefault(key, self._new(tensor.shape[axis]))
                    self.reasons.append((reason, label))

    def _not_understood(self, node: fx.Node, value: Tensor | None, inputs: list[fx.Node]) -> Label:
        module = self.module.get_submodule(str(node.target)) if node.op == "call_module" else None
        kind = f" ({type(module).__name__})" if module else ""
        reason = f"'{node.target if isinstance(node.target, str) else node.name}'{kind} is not understood"
        if isinstance(module, nn.MultiheadAttention):
            reason = f"'{node.target}' is a MultiheadAttention, whose heads have the width embed_dim / num_heads"
        self.not_followed.append(reason)
        self._freeze(inputs, reason)
        self._freeze_parameters(node.all_input_nodes, reason)
        emitted = self._new(value.shape[1] if value is not None and value.ndim >= 2 else 0)
        self.reasons.append((reason, emitted))
        return emitted


def reshaped(
    given: Sequence[int], label: Label, axis: int, shape: Sequence[int], adapting: Collection[int]
) -> tuple[Label, int] | None:
    """Return the channels of a reshaped tensor, or `None` if the view would be wrong with fewer channels.

    Args:
        given: Shape before the view; axis 0 is that of the images.
        label: Channel of each entry of `axis`, (given[axis],).
        axis: Axis of the channels before the view.
        shape: Shape after the view.
        adapting: Axes of `shape` whose size the code infers, or computes from the number of channels.

    Returns:
        (grid, axis): the channels of each entry of the new channel axis, (entries, several), and this axis. The view
        stays right only if all channels of a row are removed together.
    """
    # Find the smallest runs of axes, before and after, that have equally many entries and contain the channel axis.
    before = after = start = begin = 0
    while before < len(given):
        start, begin = before, after
        if after == len(shape):
            return None
        entries, entries_after = given[before], shape[after]
        before, after = before + 1, after + 1
        while entries != entries_after or (before == len(given) and after < len(shape)):
            if entries_after < entries or before == len(given):
                if after == len(shape):
                    return None
                entries_after *= shape[after]
                after += 1
            else:
                entries *= given[before]
                before += 1
        if start <= axis < before:
            break
    flexible = [flexible_axis for flexible_axis in range(begin, after) if flexible_axis in adapting]
    if start == 0 or len(flexible) != 1:
        return None
    label_shape = [1] * len(given)
    label_shape[axis] = len(label)
    run = np.broadcast_to(label.reshape(label_shape[start:before]), tuple(given[start:before])).reshape(
        tuple(shape[begin:after])
    )
    flexible_axis = flexible[0]
    return np.moveaxis(run, flexible_axis - begin, 0).reshape(shape[flexible_axis], -1), flexible_axis


def moved_axis(name: str, args: Sequence[Any], kwargs: dict[str, Any], ndim: int, axis: int) -> int | None:
    """Return where an axis is after a function that moves axes, or `None` for other functions or a moved first axis.

    Args:
        name: Name of the function.
        args: Its arguments after the tensor.
        kwargs: Its named arguments.
        ndim: Number of axes of the tensor.
        axis: The axis to follow.
    """
    values = [*args, *(kwargs[key] for key in ("dim", "dim0", "dim1", "dims", "axis0", "axis1") if key in kwargs)]
    if len(values) == 1 and isinstance(values[0], (tuple, list)):
        values = list(values[0])
    if not values or not all(isinstance(value, int) for value in values):
        return None
    if name == "permute":
        order = [value % ndim for value in values]
    elif name in ("transpose", "swapaxes", "swapdims"):
        order = list(range(ndim))
        first, second = (value % ndim for value in values)
        order[first], order[second] = second, first
    elif name == "unsqueeze":
        added = values[0] % (ndim + 1)
        return None if added == 0 else axis + (added <= axis)
    else:
        return None
    return order.index(axis) if order[0] == 0 else None


def reduced_axis(axes: Any, keeps: bool, ndim: int, axis: int) -> int | None:
    """Return where an axis is after a reduction over other axes, or `None` if it or the images are reduced."""
    axes = axes if isinstance(axes, (tuple, list)) else (axes,)
    if not axes or not all(isinstance(reduced, int) for reduced in axes):
        return None
    gone = {reduced % ndim for reduced in axes}
    if gone & {0, axis}:
        return None
    return axis if keeps else axis - sum(reduced < axis for reduced in gone)


def indexed_axis(index: Any, ndim: int, axis: int) -> tuple[int, slice] | None:
    """Return where an axis is after an indexing that takes an interval of it, or `None` for any other indexing.

    Args:
        index: The expression in the brackets.
        ndim: Number of axes of the tensor.
        axis: The axis to follow; axis 0 has to remain whole.

    Returns:
        (axis, interval): the axis in the result, and the part of it that was taken.
    """
    entries = list(index) if isinstance(index, tuple) else [index]
    taken = sum(entry is not None and entry is not Ellipsis for entry in entries)
    if Ellipsis in [entry for entry in entries if entry is Ellipsis]:
        dots = next(n for n, entry in enumerate(entries) if entry is Ellipsis)
        entries[dots : dots + 1] = [slice(None)] * (ndim - taken)
    else:
        entries += [slice(None)] * (ndim - taken)
    source = behind = 0
    for entry in entries:
        if entry is None:
            behind += 1
            continue
        if source == 0 and entry != slice(None):
            return None
        if source == axis:
            whole = isinstance(entry, slice) and entry.step in (None, 1)
            bounds = [entry.start, entry.stop] if whole else [""]
            return (behind, entry) if all(bound is None or isinstance(bound, int) for bound in bounds) else None
        if not isinstance(entry, (int, slice)):
            return None
        behind += isinstance(entry, slice)
        source += 1
    return None


def parameter_axes(
    name: str, args: Sequence[Any], axes: tuple[int, ...], shape: Sequence[int]
) -> tuple[int, ...] | None:
    """Return the axes of a parameter after a function that adds axes of size 1, or `None` for any other function.

    Args:
        name: Name of the function.
        args: Its arguments after the tensor.
        axes: Axis of the parameter at each axis of the tensor, or -1 for an added one.
        shape: Shape of the result.
    """
    if name == "getitem":
        entries = args[0] if isinstance(args[0], tuple) else (args[0],)
        if not all(entry is None or entry == slice(None) for entry in entries):
            return None
        rest = iter(axes)
        result = [-1 if entry is None else next(rest) for entry in entries]
        return (*result, *rest)
    if name == "unsqueeze" and args and isinstance(args[0], int):
        added = args[0] % (len(axes) + 1)
        return (*axes[:added], -1, *axes[added:])
    if name in ("view", "reshape") and len(axes) == 1:
        sizes = args[0] if len(args) == 1 and isinstance(args[0], (tuple, list)) else args
        if list(sizes).count(-1) == 1 and math.prod(shape) == max(shape):
            return tuple(0 if size == -1 else -1 for size in sizes)
    return None


# A subclass, such as one with an activation, counts as its base class. A trial cut finds those that differ.
BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
NORMS = (*BATCH_NORMS, nn.InstanceNorm2d, nn.GroupNorm)
# Each of these processes every entry in the same way.
_ENTRYWISE = (
    nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU, nn.Mish, nn.Hardswish, nn.Hardsigmoid,
    nn.Hardtanh, nn.Sigmoid, nn.Tanh, nn.Softplus, nn.Identity, nn.Dropout,
)  # fmt: skip
# Each of these processes every channel of (N, C, H, W) in the same way and independently.
_CHANNELWISE = (
    nn.Dropout2d, nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveMaxPool2d, nn.AdaptiveAvgPool2d, nn.Upsample, nn.ZeroPad2d,
    nn.ReflectionPad2d, nn.ReplicationPad2d,
)  # fmt: skip


class ModuleLabels(ChannelRecord):
    """Labels the outputs of modules."""

    def _through_module(self, node: fx.Node, value: Tensor, source: fx.Node) -> Followed | None:
        """Return the label of a module's output, or `None` if the module is not understood."""
        name, label, axis, given = str(node.target), self._labels[source], self._axes[source], self.env[source]
        module = self.module.get_submodule(name)
        if isinstance(module, _ENTRYWISE) or (type(module) is nn.PReLU and module.num_parameters == 1):
            return Followed(label, axis) if value.shape == given.shape else None
        if planned_as(module) is not None:
            return self._through_planned(node, module, value, source)
        if isinstance(module, nn.Flatten):
            return self._flattened(given, value, Followed(label, axis), module.start_dim, module.end_dim)
        if type(module) is nn.LayerNorm:
            return self._through_layer_norm(name, Followed(label, axis), given, len(module.normalized_shape))
        if axis != 1:
            return None
        if isinstance(module, _CHANNELWISE):
            return Followed(label) if given.ndim == 4 and value.shape[:2] == given.shape[:2] else None
        found_label = self._through_channels(name, module, value, label)
        return None if found_label is None else Followed(found_label)

    def _flattened(self, given: Tensor, value: Tensor, followed: Followed, first: int, last: int) -> Followed | None:
        """Label a tensor whose axes `first` to `last` become one axis."""
        first, last = first % given.ndim, last % given.ndim
        places = [*range(first), *[first] * (last + 1 - first), *range(first + 1, value.ndim)]
        return self._reshaped(given, value, followed, {places[followed.axis]})

    def _reshaped(self, given: Tensor, value: Tensor, followed: Followed, adapting: Collection[int]) -> Followed | None:
        """Label a view; the sizes of the `adapting` axes follow the number of channels."""
        view = reshaped(given.shape, followed.label, followed.axis, value.shape, adapting)
        if view is None:
            return None
        (grid, axis), rows = view, self._unite_rows(view[0])
        is_mixed = not np.array_equal(grid, np.broadcast_to(rows[:, None], grid.shape))
        if is_mixed and len(np.unique(self.united_channels()[followed.label])) == 1:
            return None  # the channels could only be removed all together
        return Followed(rows, axis)

    def _through_channels(self, name: str, module: nn.Module, value: Tensor, label: Label) -> Label | None:
        """Return the label of the output of a module whose input has its channels on axis 1."""
        if isinstance(module, ChannelConstant):
            emitted = self._new(value.shape[1])
            return emitted if self._claim(name, module, "constant", 0, emitted) else None
        if type(module) is nn.PReLU:
            self._count(name, "num_parameters", label)
            return label if self._claim(name, module, "weight", 0, label) else None
        if isinstance(module, BATCH_NORMS) or (isinstance(module, nn.InstanceNorm2d) and value.ndim == 4):
            self._count(name, "num_features", label)
            tensors = ("weight", "bias", "running_mean", "running_var")
            understood = [self._claim(name, module, tensor, 0, label) for tensor in tensors]
            return label if all(understood) else None
        if isinstance(module, nn.GroupNorm):
            return self._through_group_norm(name, module, label)
        if isinstance(module, (nn.PixelShuffle, nn.PixelUnshuffle)) and value.ndim == 4:
            if isinstance(module, nn.PixelShuffle):
                return self._unite_rows(label.reshape(-1, module.upscale_factor**2))
            return np.repeat(label, module.downscale_factor**2)
        if isinstance(module, nn.ChannelShuffle):
            # Groups stay equal if channels in the same place of all groups are removed together.
            return np.repeat(self._unite_rows(label.reshape(module.groups, -1).T), module.groups)
        if type(module) is nn.ConvTranspose2d:
            return self._through_transposed(name, module, value, label)
        return None

    def _through_group_norm(self, name: str, module: nn.GroupNorm, label: Label) -> Label:
        """Label a GroupNorm: a group is removed as a whole, so that the statistics of the others stay the same."""
        if module.num_groups == 1:
            self._stop(f"'{name}' is a GroupNorm of one group, which normalises all channels together", label)
        whole = self._new(module.num_groups)
        self._unite(np.repeat(whole, len(label) // module.num_groups), label)
        self._count(name, "num_groups", whole)
        self._count(name, "num_channels", label)
        for tensor in ("weight", "bias"):
            self._claim(name, module, tensor, 0, label)
        return label

    def _through_layer_norm(self, name: str, followed: Followed, given: Tensor, num_axes: int) -> Followed:
        """Label a LayerNorm over the last axes: it freezes the channels if they are among these axes."""
        if followed.axis >= given.ndim - num_axes:
            self._stop(f"'{name}' is a LayerNorm, which normalises all channels together", followed.label)
        return followed

    def _through_transposed(self, name: str, module: nn.ConvTranspose2d, value: Tensor, label: Label) -> Label:
        """Label a transposed convolution: its outputs can be cut, and its inputs are frozen.

        A method finds out from the weights of planned layers that nothing reads a channel any more, and it plans no
        transposed convolution.
        """
        self._stop(f"'{name}' is a ConvTranspose2d, whose inputs are not cut", label)
        emitted = self._new(value.shape[1])
        if module.groups > 1:
            self._stop(f"'{name}' is a grouped ConvTranspose2d, whose outputs are not cut", emitted)
        else:
            self._claim(name, module, "weight", 1, emitted)
        self._claim(name, module, "bias", 0, emitted)
        self._count(name, "out_channels", emitted)
        return emitted

    def _through_planned(self, node: fx.Node, module: nn.Module, value: Tensor, source: fx.Node) -> Followed | None:
        """Label a convolution, whose channels are on axis 1, or a linear layer, which is applied to the last axis."""
        label, name = self._labels[source], str(node.target)
        axis = value.ndim - 1 if isinstance(module, nn.Linear) else 1
        if self._axes[source] != axis:
            # The layer mixes an axis that was not followed so far.
            self._freeze([source], f"'{name}' is applied to another axis")
            label = self._new(self.env[source].shape[axis])
            self.reasons.append((f"'{node.name}' reads an axis that was not followed", label))
        emitted = self._through_layer(name, module, value, label, axis)
        return None if emitted is None else Followed(emitted, axis)

    def _through_heads(self, node: fx.Node, value: Tensor, inputs: list[fx.Node]) -> Followed | None:
        """Label a module that computes with heads, each an equal share of the channels of all its tokens."""
        name = str(node.target)
        module = self.module.get_submodule(name)
        attribute = groups_of(module)
        heads = int(getattr(module, attribute))
        last = value.ndim - 1
        tensors = [*(self.env[source] for source in inputs), value]
        if last < 2 or any(self._axes[source] != last or self.env[source].ndim != value.ndim for source in inputs):
            return None
        if any(tensor.shape[-1] % heads for tensor in tensors):
            return None
        # A head is removed as a whole from all of them.
        whole = self._new(heads)
        for source in inputs:
            label = self._labels[source]
            self._unite(np.repeat(whole, len(label) // heads), label)
        self.heads.add(name)
        self._count(name, attribute, whole)
        return Followed(np.repeat(whole, value.shape[-1] // heads), last)

    def _through_layer(self, name: str, module: nn.Module, value: Tensor, label: Label, axis: int) -> Label | None:
        weight = module.weight
        assert isinstance(weight, Tensor)
        groups = int(getattr(module, "groups", 1))
        kind = "features" if isinstance(module, nn.Linear) else "channels"
        if (weight.shape[0], weight.shape[1] * groups) != (value.shape[axis], len(label)):
            return None  # for example after a gate, whose output has other channels than its input
        if groups > 1:
            # Only whole groups are removed, with all inputs and outputs, so that the rest is a grouped convolution.
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


# Each of these processes every entry in the same way.
_ENTRYWISE_FUNCTIONS = {
    "relu", "relu_", "relu6", "leaky_relu", "elu", "selu", "celu", "gelu", "silu", "mish", "hardswish", "hardsigmoid",
    "hardtanh", "sigmoid", "tanh", "softplus", "neg", "abs", "exp", "square", "sqrt", "rsqrt", "pow", "clamp",
    "dropout", "log", "log1p", "erf", "sin", "cos", "reciprocal", "softsign", "logsigmoid", "tanhshrink", "threshold",
    "sigmoid_", "tanh_", "leaky_relu_", "elu_", "clamp_", "hardtanh_",
    "contiguous", "clone", "detach", "stochastic_depth", "to", "type", "float", "half", "bfloat16", "double",
}  # fmt: skip
# Each of these processes every channel of (N, C, H, W) in the same way and independently.
_CHANNELWISE_FUNCTIONS = {
    "dropout2d", "max_pool2d", "avg_pool2d", "adaptive_max_pool2d", "adaptive_avg_pool2d", "interpolate",
}  # fmt: skip
_ELEMENTWISE_FUNCTIONS = {
    "add", "add_", "iadd", "sub", "sub_", "isub", "mul", "mul_", "imul", "truediv", "div", "div_", "itruediv",
}  # fmt: skip
# Values of a graph that hold no tensor.
_PLAIN = (bool, int, float, complex, str, torch.Size, torch.dtype, torch.device, torch.layout, slice, tuple, list)
_NEW = {"new_empty", "new_zeros", "new_ones", "new_full"}
_FLATTENED = (("start_dim", 0), ("end_dim", -1))


_OF_SHAPES = WITHOUT_CHANNELS | {"shape", "size", "numel", "nelement", "stride"}
"""Attributes and methods of a tensor that depend at most on its shape."""
_SHAPED_BY_VALUES = {"nonzero", "argwhere", "unique", "unique_consecutive", "masked_select"}


class _Numbers(fx.Proxy):
    """A value of the graph whose length a model's code may ask for, or which it may use as a number."""

    def __getattr__(self, k: str) -> Any:
        is_property = k in WITHOUT_CHANNELS and not callable(getattr(Tensor, k))
        if is_property and isinstance(tensor := self.tracer.value(self.node), Tensor):  # type: ignore[attr-defined]
            return getattr(tensor, k)
        return _NumbersAttribute(self, k)

    def __len__(self) -> int:
        return len(self.tracer.known(self, of_shape=True))  # type: ignore[attr-defined]

    def __index__(self) -> int:
        return operator.index(self.tracer.known(self))  # type: ignore[attr-defined]

    def __float__(self) -> float:
        return float(self.tracer.known(self))  # type: ignore[attr-defined]


class _NumbersAttribute(_Numbers, fx.proxy.Attribute):
    """An attribute of a value of the graph, which is itself such a value."""


class LeafTracer(fx.Tracer):
    """Traces a model down to its layers. A subclass of torch's own layers, such as a planned one, is a layer too.

    Arguments of the forward other than the first have their defaults. Where the code needs a number or a truth value
    (`if x.shape[1] != 3`, `len(parts)`), the tracer runs the graph that it has so far on a blank batch. It gives the
    code the value if that depends on shapes only.

    Args:
        blank: Batch of blank images, (N, C, H, W).
        reads: Attributes of layers that the model's code read. The tracer removes from it what its own runs read.
    """

    proxy_buffer_attributes = True  # buffers are followed as parameters are

    def __init__(self, blank: Tensor, reads: list[tuple[nn.Module, str]]) -> None:
        super().__init__()
        self._blank, self._reads = blank, reads
        self._values: dict[fx.Node, Any] = {}
        self._buffers: dict[str, Tensor] = {}

    def trace(self, root: Any, concrete_args: Any = None) -> fx.Graph:
        """Return the graph of a model. Its forward may replace buffers and attributes by parts of the graph."""
        self._buffers = dict(root.named_buffers())
        return super().trace(root, concrete_args)

    def create_args_for_root(self, root_fn: Any, is_module: bool, concrete_args: Any = None) -> tuple[Any, list[Any]]:
        """Return the forward and its arguments: the images, and defaults."""
        function, given = super().create_args_for_root(root_fn, is_module, concrete_args)
        first = next(iter(self.graph.nodes))
        for index, argument in enumerate(given):
            if isinstance(argument, fx.Proxy) and argument.node is not first:
                name, default = str(argument.node.target), argument.node.args
                if name.startswith("*"):
                    default = ({},) if name.startswith("**") else ((),)
                if default:
                    self.graph.erase_node(argument.node)
                    given[index] = default[0]
        return function, given

    def create_arg(self, a: Any) -> Any:
        """Return an argument or an output of the graph; an object that holds tensors becomes a dictionary."""
        if dataclasses.is_dataclass(a) and not isinstance(a, type):
            a = {field.name: getattr(a, field.name) for field in dataclasses.fields(a)}
        elif isinstance(a, Mapping):
            a = dict(a.items())
        try:
            return super().create_arg(a)
        except NotImplementedError:
            if not hasattr(a, "__dict__"):
                raise
            return super().create_arg(dict(vars(a)))

    def proxy(self, node: fx.Node) -> fx.Proxy:
        """Return the proxy of a node."""
        return _Numbers(node, self)

    def to_bool(self, obj: fx.Proxy) -> bool:
        """Return a truth value that depends on shapes only."""
        return bool(self.known(obj))

    def iter(self, obj: fx.Proxy) -> Iterator[Any]:
        """Iterate over the parts of a tensor, or over a shape."""
        value = self.value(obj.node)
        if isinstance(value, (tuple, list)):
            return iter([obj[index] for index in range(len(value))])  # type: ignore[index]
        parts: Iterator[Any] = super().iter(obj)
        return parts

    def known(self, proxy: fx.Proxy, of_shape: bool = False) -> Any:
        """Return the value of a proxy.

        Args:
            proxy: The proxy.
            of_shape: Whether the caller uses only the shape of a tensor, or the number of several.

        Raises:
            fx.proxy.TraceError: The value depends on the values of the images.
        """
        value = self.value(proxy.node)
        if self._reads_values(proxy.node, of_shape):
            raise fx.proxy.TraceError("the code depends on the values of the images, not only on their shape")
        return value

    def _reads_values(self, node: fx.Node, of_shape: bool) -> bool:
        """Return whether a node depends on values of tensors; with `of_shape`, only the shape of the node matters."""
        left, seen = [(node, of_shape)], set()
        while left:
            if (pair := left.pop()) in seen:
                continue
            seen.add(pair)
            (node, of_shape), value = pair, self._values[pair[0]]
            name = node.args[1] if node.target is getattr else _name(node)
            holds = isinstance(value, Tensor) or (isinstance(value, (tuple, list)) and any(map(_is_tensor, value)))
            if (holds and not of_shape) or name in _SHAPED_BY_VALUES:
                return True
            left += [(source, holds or name in _OF_SHAPES) for source in node.all_input_nodes]
        return False

    def value(self, node: fx.Node) -> Any:
        """Return the value of a node: run the graph up to it, with the original methods of modules."""
        replaced, before = (nn.Module.__call__, nn.Module.__getattr__), len(self._reads)
        nn.Module.__call__, nn.Module.__getattr__ = _CALL, _GETATTR  # type: ignore[method-assign]
        try:
            for step in self.graph.nodes:
                if step not in self._values:
                    self._values[step] = self._run(step)
                if step is node:
                    break
        finally:
            nn.Module.__call__, nn.Module.__getattr__ = replaced  # type: ignore[method-assign]
            del self._reads[before:]
        return self._values[node]

    def _run(self, node: fx.Node) -> Any:
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), self._values.__getitem__)
        if node.op == "placeholder":
            return self._blank
        if node.op == "get_attr":
            before = {**self._buffers, **{name: tensor for tensor, name in self.tensor_attrs.items()}}
            tensor_before = before.get(str(node.target))
            return operator.attrgetter(str(node.target))(self.root) if tensor_before is None else tensor_before
        if node.op == "call_module":
            return self.root.get_submodule(str(node.target))(*args, **kwargs)  # type: ignore[union-attr]
        if node.op == "call_method":
            return getattr(args[0], str(node.target))(*args[1:], **kwargs)
        return node.target(*args, **kwargs)  # type: ignore[operator]

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, Any]) -> Any:
        """Return an attribute of a module; for a buffer that the forward has assigned, the value of the graph."""
        if isinstance(attr_val, fx.Proxy):
            return attr_val
        return super().getattr(attr, attr_val, parameter_proxy_cache)

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Return whether `m` is a single step of the graph."""
        leaves = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear, *NORMS, ChannelConstant)
        return isinstance(m, leaves) or bool(groups_of(m)) or super().is_leaf_module(m, module_qualified_name)


def trace(model: nn.Module, blank: Tensor) -> tuple[fx.Graph, list[tuple[str, str]]]:
    """Return the graph of a model in its current mode, and (module, attribute) of what its code read of layers.

    The function traces a copy, because a forward may keep what it is given. Tensors that the forward or the tracer
    made, such as constants, become attributes of the model, so that the model can run the graph.

    Args:
        model: A copy of the user's model.
        blank: Batch of blank images, (N, C, H, W).
    """
    duplicate = copied(model)
    names = {id(module): name for name, module in duplicate.named_modules()}
    with recording_reads(duplicate, (nn.Conv2d, nn.Linear, *NORMS, nn.PReLU, nn.ConvTranspose2d)) as reads:
        graph = LeafTracer(blank, reads).trace(duplicate)
    for target in {str(node.target) for node in graph.nodes if node.op == "get_attr"}:
        owner, _, attribute = target.rpartition(".")
        module = model.get_submodule(owner)
        if getattr(module, attribute, None) is None:  # not as a buffer: a model that did not run has no such state
            vars(module)[attribute] = getattr(duplicate.get_submodule(owner), attribute)
    return graph, [(names[id(module)], attribute) for module, attribute in reads]


class ChannelLabels(ModuleLabels):
    """Runs a graph and labels every activation with its channels.

    A model that computes differently in training and in evaluation has two graphs. The second one is run with `follow`
    and adds its constraints to those of the first.
    """

    def run_node(self, n: fx.Node) -> Any:
        """Compute a node, then label its result. Numbers, such as sizes, get no label."""
        value = super().run_node(n)
        inputs = [node for node in n.all_input_nodes if node in self._labels]
        several = isinstance(value, (tuple, list)) and any(isinstance(entry, Tensor) for entry in value)
        if not (isinstance(value, (Tensor, *_PLAIN)) or several or value is None or n.op == "output"):
            # This is an object of the model's own, such as a dataclass, whose content is not followed.
            self._not_understood(n, None, inputs)
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
            followed = self._label(n, value, inputs)
            label, axis = followed or (self._not_understood(n, value, inputs), 1)
            self._labels[n], self._axes[n] = label, axis
        counted = [node for node in n.all_input_nodes if node not in self._explained]
        reason = f"'{n.name}' depends on their number"
        self.reasons += [(reason, label) for label in self._numbers.among(counted)]
        return value

    def _is_parameter(self, node: fx.Node, value: Tensor) -> bool:
        """Return whether a node is a parameter, possibly with added axes, that element-wise functions can meet."""
        if node.op == "get_attr":
            if value.numel() == 1:  # a single number has no channels
                return True
            name = str(node.target)
            state = {**dict(self.module.named_parameters()), **dict(self.module.named_buffers())}
            if name in state:
                self._parameters[node] = (name,), tuple(range(value.ndim))
            return name in state
        sources = node.all_input_nodes
        if sources and value.numel() == 1 and all(self._is_number(source) for source in sources):
            return True
        if not sources or node.op == "call_module" or not all(source in self._parameters for source in sources):
            return False
        names, axes = self._parameters[sources[0]]
        if _name(node) in _ELEMENTWISE_FUNCTIONS | _ENTRYWISE_FUNCTIONS:
            if any(self._parameters[source][1] != axes for source in sources) or value.ndim != len(axes):
                return False
            names = tuple(dict.fromkeys(name for source in sources for name in self._parameters[source][0]))
            self._parameters[node] = names, axes
            return True
        if len(sources) > 1 or node.args[0] is not sources[0]:
            return False
        axes_after = parameter_axes(_name(node), node.args[1:], axes, value.shape)
        if axes_after is not None:
            self._parameters[node] = names, axes_after
        return axes_after is not None

    def _is_number(self, source: fx.Node) -> bool:
        """Return whether a node is a tensor of one number without channels, such as a counter of steps."""
        given = self.env[source]
        return isinstance(given, Tensor) and given.numel() == 1 and source not in self._labels

    def _label(self, node: fx.Node, value: Tensor, inputs: list[fx.Node]) -> Followed | None:
        """Return the label of a node's tensor, or `None` if the node is not understood."""
        if node is next(iter(self.graph.nodes)) and node.op == "placeholder" and value.ndim >= 2:
            if self.graph is self._first_graph:
                self.model_input = self._new(value.shape[1])
                self.reasons.append(("the model's input", self.model_input))
            return Followed(self.model_input)
        if not inputs or value.ndim < 2:
            return None
        if node.op == "call_method" and node.target in _NEW:  # only its sizes depend on the tensor
            return Followed(self._new(value.shape[1]))
        if node.op == "call_method" and node.target == "bernoulli_" and len(self._labels[inputs[0]]) == 1:
            return Followed(self._labels[inputs[0]])
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
        """Label an element-wise operation. Each tensor must have an entry per channel, or one entry for all."""
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
        """Record that a parameter meets the channels of a label; return whether it fits them."""
        axis_of_given = axis - value.ndim + given.ndim
        if axis_of_given < 0 or given.shape[axis_of_given] == 1:
            return True
        names, axes = self._parameters.get(source, ((), ()))
        if not names or axes[axis_of_given] < 0 or given.shape[axis_of_given] != len(label):
            return False
        parts = [name.rpartition(".") for name in names]
        return all(
            self._claim(owner, self.module.get_submodule(owner), attribute, axes[axis_of_given], label)
            for owner, _, attribute in parts
        )

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
            # Parts stay equal if channels in the same place of all parts are removed together.
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
            new_axis = reduced_axis(axes, keeps, given.ndim, axis)
        elif name == "squeeze" and args and isinstance(args[0], int):
            new_axis = reduced_axis(args[0], value.ndim == given.ndim, given.ndim, axis)
        elif name == "getitem":
            indexed = indexed_axis(args[0], given.ndim, axis)
            return None if indexed is None else Followed(self._interval(node.name, label, indexed[1]), indexed[0])
        elif name == "flatten":
            ends = [*args, *(kwargs.get(key, end) for key, end in _FLATTENED[len(args) :])]
            first, last = (end if isinstance(end, int) else None for end in ends)
            return None if first is None or last is None else self._flattened(given, value, same, first, last)
        elif name in ("view", "reshape"):
            return self._viewed(args, given, value, same)
        elif name == "pad":
            # `pad` begins with the last axis, two sizes an axis.
            sides = args[0] if args else kwargs.get("pad", ())
            last = given.ndim - len(sides) // 2 if isinstance(sides, (tuple, list)) else 0
            return same if axis < last else None
        elif name == "layer_norm" and args:
            shape: Any = self.env[args[0]] if isinstance(args[0], fx.Node) else args[0]
            return self._through_layer_norm(node.name, same, given, len(shape))
        elif name in ("pixel_shuffle", "pixel_unshuffle", "channel_shuffle") and (given.ndim, axis) == (4, 1):
            return self._shuffled(name, args, label)
        else:
            new_axis = moved_axis(name, args, kwargs, given.ndim, axis)
        return None if new_axis is None else Followed(label, new_axis)

    def _interval(self, name: str, label: Label, taken: slice) -> Label:
        """Return the channels in an interval, and freeze those on which its place and its size depend.

        A bound counts from the first channel, or from the last if it is negative. The channels that it counts have to
        stay. An interval that ends after the last channel has no bound there.
        """
        for bound in (taken.start, taken.stop):
            if bound is not None and -len(label) < bound < len(label):
                fixed = label[:bound] if bound >= 0 else label[bound:]
                if len(fixed):
                    self._stop(f"'{name}' takes channels from or to a fixed number", fixed)
        return label[taken]

    def _viewed(self, args: Sequence[Any], given: Tensor, value: Tensor, followed: Followed) -> Followed | None:
        """Label a view. Only sizes that torch infers, or that the code computes from the number of channels, adapt."""
        sizes = args[0] if len(args) == 1 and isinstance(args[0], (tuple, list)) else args
        if not sizes or len(sizes) != value.ndim:
            return None
        # A stated size of the first axis would fit one number of images only.
        if not (isinstance(sizes[0], fx.Node) or sizes[0] == -1) or value.shape[0] != given.shape[0]:
            return None
        shares = [size for size in sizes if isinstance(size, fx.Node) and self._is_share(size, followed.label)]
        adapting = {index for index, size in enumerate(sizes) if size in shares or size == -1}
        viewed = self._reshaped(given, value, followed, adapting)
        if viewed is not None:
            self._explained.update(shares)
        return viewed

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
        """Return whether a number stays in proportion to a label's number of channels, whichever are removed."""
        counted = self._numbers.share(number)
        if counted is None:
            return False
        channel = self.united_channels()
        ours, theirs = (np.unique(channel[labelled], return_counts=True) for labelled in (label, counted))
        return np.array_equal(ours[0], theirs[0]) and np.array_equal(ours[1] * theirs[1][0], theirs[1] * ours[1][0])


def _is_tensor(value: Any) -> bool:
    return isinstance(value, Tensor)


def _name(node: fx.Node) -> str:
    return node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
