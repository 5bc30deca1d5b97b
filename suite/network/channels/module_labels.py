"""Labels behind modules: layers, normalisations, and modules that keep, repeat or reorder channels."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from torch import Tensor, fx, nn

from suite.network.channels.branches import ChannelConstant
from suite.network.channels.numbers import Label, groups_of
from suite.network.channels.record import ChannelRecord, Followed
from suite.network.channels.reshapes import reshaped
from suite.network.layers import PlannedConv2d, PlannedLinear

# Compared by exact class: a subclass may compute anything.
LAYERS = (nn.Conv2d, nn.Linear, PlannedConv2d, PlannedLinear)
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
        if type(module) in LAYERS:
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
        found = reshaped(given.shape, followed.label, followed.axis, value.shape, adapting)
        if found is None:
            return None
        (grid, axis), rows = found, self._unite_rows(found[0])
        is_mixed = not np.array_equal(grid, np.broadcast_to(rows[:, None], grid.shape))
        if is_mixed and len(np.unique(self.united_channels()[followed.label])) == 1:
            return None  # only all channels together could be removed
        return Followed(rows, axis)

    def _through_channels(self, name: str, module: nn.Module, value: Tensor, label: Label) -> Label | None:
        """Return the label of the output of a module whose input has its channels on axis 1."""
        if isinstance(module, ChannelConstant):
            emitted = self._new(value.shape[1])
            return emitted if self._claim(name, module, "constant", 0, emitted) else None
        if type(module) is nn.PReLU:
            self._count(name, "num_parameters", label)
            return label if self._claim(name, module, "weight", 0, label) else None
        if type(module) in BATCH_NORMS or (type(module) is nn.InstanceNorm2d and value.ndim == 4):
            self._count(name, "num_features", label)
            tensors = ("weight", "bias", "running_mean", "running_var")
            understood = [self._claim(name, module, tensor, 0, label) for tensor in tensors]
            return label if all(understood) else None
        if type(module) is nn.GroupNorm:
            return self._through_group_norm(name, module, label)
        if isinstance(module, (nn.PixelShuffle, nn.PixelUnshuffle)) and value.ndim == 4:
            if isinstance(module, nn.PixelShuffle):
                return self._unite_rows(label.reshape(-1, module.upscale_factor**2))
            return np.repeat(label, module.downscale_factor**2)
        if isinstance(module, nn.ChannelShuffle):
            # As many channels remain in each group if channels in the same place of all groups go together.
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

        Methods plan no such layer. They see that a channel is not read any more only in weights of planned layers.
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
            # This axis was not followed so far.
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
        if any(one.shape[-1] % heads for one in tensors):
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
        weight = module._parameters.get("weight")
        if weight is None:
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
