"""Index spaces: sets of tensor dimensions that share channels, which must be pruned together.

Several layers share channels: the convolution that produces them, the batch normalisation that scales them and the next
convolution that consumes them. Across the sum of a residual block, another convolution produces them too. Channels that
occur in the same tensors form one `IndexSpace`. `suite.engine.network.channels.spaces` finds the index spaces of a
model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor, nn

GATHER_INDEX, SCATTER_INDEX = "gather_index", "scatter_index"
"""Buffers of a gated layer, each (channels,) int64: the channels of the residual stage that it reads and writes."""


@dataclass(frozen=True, eq=False)
class Slice:
    """Where the channels of an index space are along one axis of one tensor. Other spaces may share the axis.

    Attributes:
        tensor: Name of the parameter or buffer.
        axis: Axis of that tensor.
        entries: (channels, entries per channel) int64, on the CPU. A channel has several entries in a linear layer
            behind a flattening, or as a whole group of a grouped convolution.
    """

    tensor: str
    axis: int
    entries: Tensor

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Slice)
            and (self.tensor, self.axis) == (other.tensor, other.axis)
            and torch.equal(self.entries, other.entries)
        )

    __hash__ = None  # type: ignore[assignment]

    @property
    def module(self) -> str:
        """Name of the module that owns the tensor."""
        return self.tensor.rpartition(".")[0]

    @property
    def attribute(self) -> str:
        """Name of the tensor in its module."""
        return self.tensor.rpartition(".")[2]


class LayerWeight(NamedTuple):
    """The weight of a layer that has the channels of an index space along one axis.

    Attributes:
        layer: Name of the layer.
        weight: (K, C / groups, R, S) or (K, C).
        axis: 0 for output channels, 1 for input channels.
        entries: (channels, entries per channel) int64, on the CPU: positions along the axis.
    """

    layer: str
    weight: Tensor
    axis: int
    entries: Tensor


@dataclass
class IndexSpace:
    """Channels that occur in several tensors at once.

    Attributes:
        name: Name of the first layer that produced the channels when the model was built; it never changes.
        original: The index that each channel had when the model was built, ascending.
        producers: Names of the layers whose outputs are these channels.
        consumers: Names of the layers whose inputs are these channels and whose weights have an axis for them. Grouped
            convolutions are producers only, because their groups are removed as a whole.
        slices: All places in tensors that are cut together with the channels.
        counts: Every number of a module that counts the channels, as (module, attribute, count per channel).
        frozen_because: The reason why no channel may be removed; empty if channels may be removed.
        may_be_empty: Whether the last channel may be removed too, because the space is inside a removable branch.
    """

    name: str
    original: list[int]
    producers: list[str] = field(default_factory=list)
    consumers: list[str] = field(default_factory=list)
    slices: list[Slice] = field(default_factory=list)
    counts: list[tuple[str, str, int]] = field(default_factory=list)
    frozen_because: str = ""
    may_be_empty: bool = False

    @property
    def size(self) -> int:
        """Number of channels now."""
        return len(self.original)

    @property
    def frozen(self) -> bool:
        """Whether no channel may be removed."""
        return bool(self.frozen_because)


@dataclass(frozen=True)
class Branch:
    """A residual branch that can be removed: a chain of layers whose output is only ever added to another tensor.

    Attributes:
        name: Name of the branch's module.
        layers: Its convolution and linear layers, in the order in which they run.
        spaces: The index spaces between them. If one of them is empty, the output does not depend on the input.
        outputs: The index spaces that its output belongs to.
        input_size: (H, W) of the input of its first layer; empty for a linear layer.
    """

    name: str
    layers: tuple[str, ...]
    spaces: tuple[str, ...]
    outputs: tuple[str, ...]
    input_size: tuple[int, ...]


class IndexSpaces(Mapping[str, IndexSpace]):
    """The index spaces of one model by name, in the order in which the model produces them.

    Attributes:
        removable_branches: Residual branches that can be removed, by name.
        fixed_branches: Residual branches that cannot be removed, with the reason, by name.
        not_followed: Operations of the model's graph that the analysis does not understand, each with the reason why it
            freezes channels.
        grouped: Names of the grouped convolutions, including depthwise ones.
        heads: Names of the modules that compute with groups of channels, as attention does with heads.
        model_input: Name of the space of the model's input, or `None` if the model could not be traced.
        model_outputs: Names of the spaces of the model's outputs.
        positions: Number of positions (P * Q) of each layer's output for one image. A linear layer has as many as one
            image has rows, which is 1 if its input is (N, C).
        input_sizes: (H, W) of each layer's input; empty for a linear layer.
        on_tokens: Names of the linear layers that are applied to the last axis of (N, ..., C).
    """

    def __init__(self, spaces: Mapping[str, IndexSpace]) -> None:
        self._spaces = dict(spaces)
        self.removable_branches: dict[str, Branch] = {}
        self.fixed_branches: dict[str, str] = {}
        self.not_followed: tuple[str, ...] = ()
        self.grouped: frozenset[str] = frozenset()
        self.heads: frozenset[str] = frozenset()
        self.model_input: str | None = None
        self.model_outputs: frozenset[str] = frozenset()
        self.positions: dict[str, int] = {}
        self.input_sizes: dict[str, tuple[int, ...]] = {}
        self.on_tokens: set[str] = set()
        self._index_layers()

    def enter_sizes(self, name: str, layer: nn.Module, given: torch.Size, output: torch.Size) -> None:
        """Enter the sizes of a layer from the shapes of its input and output, if they are not known yet."""
        linear = isinstance(layer, nn.Linear)
        if linear and len(output) > 2:
            self.on_tokens.add(name)
        self.positions.setdefault(name, (output[1:-1] if linear else output[2:]).numel())
        self.input_sizes.setdefault(name, () if linear else tuple(given[2:]))

    def replace_sizes(
        self, layers: Mapping[str, nn.Module], shapes: Mapping[str, tuple[torch.Size, torch.Size]]
    ) -> None:
        """Enter the sizes of layers for images of another size. Layers whose sizes are not known are left out.

        Args:
            layers: The layers by name.
            shapes: Shapes of input and output by name.
        """
        for name in [name for name in layers if name in self.positions]:
            del self.positions[name], self.input_sizes[name]
            self.enter_sizes(name, layers[name], *shapes[name])

    def __getitem__(self, name: str) -> IndexSpace:
        return self._spaces[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._spaces)

    def __len__(self) -> int:
        return len(self._spaces)

    def outputs_of(self, layer: str) -> tuple[str, ...]:
        """Return the names of the spaces that a layer produces; several if parts of its output have different uses."""
        return self._outputs_of.get(layer, ())

    def inputs_of(self, layer: str) -> tuple[str, ...]:
        """Return the names of the spaces that a layer consumes.

        There are several behind a concatenation. There are none if the analysis does not follow the input, or for a
        grouped layer.
        """
        return self._inputs_of.get(layer, ())

    def consists_of_heads(self, space: IndexSpace) -> bool:
        """Return whether a channel of a space is a head: outputs of several layers and inputs of others."""
        return any(module in self.heads for module, _, _ in space.counts)

    def weights(self, space: IndexSpace, layers: Mapping[str, nn.Module]) -> list[LayerWeight]:
        """Return the weights of all layers that share the channels of a space, each with its axis and entries.

        Weights of grouped convolutions are left out, because they mix the channels of a group.

        Args:
            space: A space of this model, or one that `split_by_gating` returned.
            layers: The layers to look at, by name, for example `ctx.layers`.
        """
        weights = []
        for part in space.slices:
            if part.attribute == "weight" and part.module in layers and part.module not in self.grouped:
                weight = layers[part.module].weight
                assert isinstance(weight, Tensor)
                weights.append(LayerWeight(part.module, weight, part.axis, part.entries))
        return weights

    def original_outputs(self, layer: str, count: int) -> list[int]:
        """Return the original index of each of the `count` output channels that a layer has now.

        The present index stands for output channels of a grouped convolution, and for those that belong to no space.
        """
        indices = list(range(count))
        for space in map(self.__getitem__, self.outputs_of(layer)):
            for part in space.slices:
                if (part.tensor, part.axis) == (f"{layer}.weight", 0) and part.entries.shape[1] == 1:
                    for position, original in zip(part.entries.flatten().tolist(), space.original, strict=True):
                        indices[position] = original
        return indices

    def why_not_gated(self, space: IndexSpace, layers: Mapping[str, nn.Module]) -> str:
        """Return the reason why the layers of a space cannot be gated; empty if they can.

        Args:
            space: A space of this model.
            layers: The space's producers and consumers by name, for example `ctx.layers`.
        """
        if space.frozen:
            return space.frozen_because
        if space.may_be_empty:
            return "it is inside a removable branch"
        if any(part.attribute in (GATHER_INDEX, SCATTER_INDEX) for part in space.slices):
            return "its layer is gated already"
        for name in (*space.producers, *space.consumers):
            if name in self.on_tokens:
                return f"'{name}' is applied to tokens"
        for name in space.producers:
            if name in self.grouped:
                return f"'{name}' is a grouped convolution"
            if layers[name].bias is not None:
                return f"'{name}' has a bias, which its removed channels emit too"
            if self.outputs_of(name) != (space.name,):
                return f"outputs of '{name}' belong to several index spaces"
        for name in space.consumers:
            if self.inputs_of(name) != (space.name,):
                return f"inputs of '{name}' come from several index spaces"
        return ""

    def split_by_gating(self, space: IndexSpace) -> list[IndexSpace]:
        """Return the spaces that gating would make of a space: one for each producer's outputs and consumer's inputs.

        Nothing is changed. A `ReconfigPlan` that also gates the space may name the new spaces, `LAYER:out` and
        `LAYER:in`.
        """
        parts = []
        for layers, axis, ending, buffer in (
            (space.producers, 0, "out", SCATTER_INDEX),
            (space.consumers, 1, "in", GATHER_INDEX),
        ):
            for name in layers:
                (weight,) = (cut for cut in space.slices if (cut.tensor, cut.axis) == (f"{name}.weight", axis))
                part = IndexSpace(f"{name}:{ending}", list(space.original))
                part.slices = [weight, Slice(f"{name}.{buffer}", 0, weight.entries)]
                part.counts = [entry for entry in space.counts if entry[0] == name and entry[1].startswith(ending)]
                (part.producers if axis == 0 else part.consumers).append(name)
                parts.append(part)
        return parts

    def replace_by_parts(self, name: str, parts: Sequence[IndexSpace], reason: str) -> None:
        """Move the layers of a space to new spaces, and freeze the rest of the space.

        Args:
            name: Name of the space.
            parts: The new spaces, with slices and counts of the old one and possibly more.
            reason: The reason why channels of the rest may not be removed any more.
        """
        space = self[name]
        moved = {(cut.tensor, cut.axis) for part in parts for cut in part.slices}
        space.slices = [cut for cut in space.slices if (cut.tensor, cut.axis) not in moved]
        counted = {entry[:2] for part in parts for entry in part.counts}
        space.counts = [entry for entry in space.counts if entry[:2] not in counted]
        space.producers, space.consumers, space.frozen_because = [], [], reason
        self._spaces |= {part.name: part for part in parts}
        self._index_layers()

    def fix_branch(self, name: str, reason: str) -> None:
        """Enter a removable branch as fixed; its spaces keep at least one channel from now on."""
        for inner in self.removable_branches.pop(name).spaces:
            self[inner].may_be_empty = False
        self.fixed_branches[name] = reason

    def forget_branch(self, branch: Branch, constant: str) -> None:
        """Remove a branch's spaces and layers, and its tensors from other spaces, after the branch was removed.

        Args:
            branch: One of `removable_branches`.
            constant: Name of the buffer with the constant that the branch still adds. The branch's output spaces
                include it from now on.
        """
        inside = branch.name + "."
        last = f"{branch.layers[-1]}.weight"
        own = [name for name, space in self.items() if {*space.producers, *space.consumers} <= set(branch.layers)]
        for name in own:
            if self[name].producers or self[name].consumers:  # the branch's inner spaces, and those of gated layers
                del self._spaces[name]
        for space in self._spaces.values():
            emitted = [Slice(constant, 0, cut.entries) for cut in space.slices if (cut.tensor, cut.axis) == (last, 0)]
            space.producers = [layer for layer in space.producers if not layer.startswith(inside)]
            space.consumers = [layer for layer in space.consumers if not layer.startswith(inside)]
            space.slices = [cut for cut in space.slices if not cut.tensor.startswith(inside)] + emitted
            space.counts = [entry for entry in space.counts if not entry[0].startswith(inside)]
        for layer in branch.layers:
            self.positions.pop(layer, None)
            self.input_sizes.pop(layer, None)
        self.grouped -= set(branch.layers)
        del self.removable_branches[branch.name]
        self._index_layers()

    def _index_layers(self) -> None:
        """Index the spaces by layer, because methods look up spaces at every step."""
        self._outputs_of: dict[str, tuple[str, ...]] = {}
        self._inputs_of: dict[str, tuple[str, ...]] = {}
        for name, space in self.items():
            for table, layers in ((self._outputs_of, space.producers), (self._inputs_of, space.consumers)):
                for layer in layers:
                    table[layer] = (*table.get(layer, ()), name)
