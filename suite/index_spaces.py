"""Index spaces: which entries of which tensors of a model are one channel, and must be pruned together.

The channel that a convolution produces is the same one that the batch normalisation behind it scales, that the next
convolution consumes, and, across the sum of a residual block, that another convolution produces. Channels that occur in
the same tensors make one `IndexSpace`; `suite.network.channel_tracing` finds them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn


@dataclass(frozen=True, eq=False)
class Slice:
    """Where the channels of an index space lie along one axis of one tensor; other spaces may have the rest of it.

    Attributes:
        tensor: the parameter's or buffer's name.
        axis: of that tensor.
        entries: (channels, entries of a channel) int64, on the CPU. A channel has several where a linear layer stands
            behind a flattening, or where it is a whole group of a grouped convolution.
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


@dataclass
class IndexSpace:
    """Channels that exist in several tensors at once.

    Attributes:
        name: that of the first layer that produced it when the model was built; it never changes.
        original: the index that each channel had when the model was built, ascending.
        producers: names of the layers whose outputs it has.
        consumers: names of the layers whose inputs it has and whose weights have an axis for them. A grouped
            convolution has none: its groups go as a whole, and it is a producer alone.
        slices: everything that is cut with it.
        counts: every number of a module that counts its channels, as (module, attribute, by how much one counts).
        frozen_because: why none of its channels may go; empty where they may.
        may_be_empty: it lies inside a removable branch, which goes with its last channel. Every other space keeps one.
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
        return len(self.original)

    @property
    def frozen(self) -> bool:
        return bool(self.frozen_because)


@dataclass(frozen=True)
class Branch:
    """A residual branch that can be taken out: a chain of layers whose output is only ever added.

    Attributes:
        name: the branch's module.
        layers: its convolution and linear layers, in the order in which they run.
        spaces: the index spaces between them; when one is empty, the branch's output no longer depends on its input.
        outputs: the index spaces that its output belongs to.
        input_size: (H, W) of its first layer's input; empty for a linear layer.
    """

    name: str
    layers: tuple[str, ...]
    spaces: tuple[str, ...]
    outputs: tuple[str, ...]
    input_size: tuple[int, ...]


class IndexSpaces(Mapping[str, IndexSpace]):
    """The index spaces of one model by name, in the order in which the model produces them.

    Attributes:
        removable_branches: residual branches that can be taken out, by name.
        fixed_branches: residual branches that cannot, and why.
        not_followed: steps of the model's graph that are not understood, each with what it froze, in words.
        grouped: names of the grouped convolutions, depthwise ones among them.
        model_input: the space of the model's input, or `None` if the model could not be traced.
        model_outputs: the spaces of the model's outputs.
        positions: places (P * Q) of each layer's output for one image; a linear layer has one.
        input_sizes: (H, W) of each layer's input; empty for a linear layer.
    """

    def __init__(self, spaces: Mapping[str, IndexSpace]) -> None:
        self._spaces = dict(spaces)
        self.removable_branches: dict[str, Branch] = {}
        self.fixed_branches: dict[str, str] = {}
        self.not_followed: tuple[str, ...] = ()
        self.grouped: frozenset[str] = frozenset()
        self.model_input: str | None = None
        self.model_outputs: frozenset[str] = frozenset()
        self.positions: dict[str, int] = {}
        self.input_sizes: dict[str, tuple[int, ...]] = {}
        self._enter_layers()

    def __getitem__(self, name: str) -> IndexSpace:
        return self._spaces[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._spaces)

    def __len__(self) -> int:
        return len(self._spaces)

    def outputs_of(self, layer: str) -> tuple[str, ...]:
        """The spaces that a layer produces; several where its outputs go different ways."""
        return self._outputs_of.get(layer, ())

    def inputs_of(self, layer: str) -> tuple[str, ...]:
        """The spaces that a layer consumes; several behind a concatenation, none where its input is not followed."""
        return self._inputs_of.get(layer, ())

    def part(self, name: str, own: Sequence[IndexSpace], reason: str) -> None:
        """Take layers out of a space into spaces of their own; what is left of it is frozen.

        Args:
            name: of the space.
            own: the new spaces, with slices and counts of the old one, and perhaps more.
            reason: why none of its channels may go any more.
        """
        space = self[name]
        taken = {(one.tensor, one.axis) for part in own for one in part.slices}
        space.slices = [one for one in space.slices if (one.tensor, one.axis) not in taken]
        counted = {entry[:2] for part in own for entry in part.counts}
        space.counts = [entry for entry in space.counts if entry[:2] not in counted]
        space.producers, space.consumers, space.frozen_because = [], [], reason
        self._spaces |= {part.name: part for part in own}
        self._enter_layers()

    def forget_branch(self, branch: Branch, constant: str) -> None:
        """Drop a branch that was taken out: its spaces, its layers, and its tensors in other spaces.

        Args:
            branch: one of `removable_branches`.
            constant: the buffer of what the branch still adds; it joins the branch's output spaces.
        """
        inside = branch.name + "."
        last = f"{branch.layers[-1]}.weight"
        own = [name for name, space in self.items() if {*space.producers, *space.consumers} <= set(branch.layers)]
        for name in own:
            if self[name].producers or self[name].consumers:  # the branch's inner spaces, and those of gated layers
                del self._spaces[name]
        for space in self._spaces.values():
            emitted = [Slice(constant, 0, one.entries) for one in space.slices if (one.tensor, one.axis) == (last, 0)]
            space.producers = [layer for layer in space.producers if not layer.startswith(inside)]
            space.consumers = [layer for layer in space.consumers if not layer.startswith(inside)]
            space.slices = [one for one in space.slices if not one.tensor.startswith(inside)] + emitted
            space.counts = [entry for entry in space.counts if not entry[0].startswith(inside)]
        for layer in branch.layers:
            self.positions.pop(layer, None)
            self.input_sizes.pop(layer, None)
        self.grouped -= set(branch.layers)
        del self.removable_branches[branch.name]
        self._enter_layers()

    def _enter_layers(self) -> None:
        # Methods ask for them at every step.
        self._outputs_of: dict[str, tuple[str, ...]] = {}
        self._inputs_of: dict[str, tuple[str, ...]] = {}
        for name, space in self.items():
            for table, layers in ((self._outputs_of, space.producers), (self._inputs_of, space.consumers)):
                for layer in layers:
                    table[layer] = (*table.get(layer, ()), name)


class ChannelConstant(nn.Module):
    """What stands where a residual branch was taken out: the constant that the branch emitted at its end.

    Buffers:
        constant: (K,), a value a channel.
    """

    constant: Tensor

    def __init__(self, constant: Tensor) -> None:
        super().__init__()
        self.register_buffer("constant", constant)

    def forward(self, x: Tensor) -> Tensor:
        """The constant in the type of x, shaped (1, K, 1, 1) or (1, K) so that it can be added to the other summand."""
        return self.constant.to(x.dtype).view(1, -1, *[1] * (x.ndim - 2))
