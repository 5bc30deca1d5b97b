"""Index spaces: which dimensions of which tensors of a model share their channels, and must be pruned together.

The channels that a convolution produces are the same ones that the batch normalisation behind it scales, that the next
convolution consumes, and, across the sum of a residual block, that another convolution produces. Each set of dimensions
that share their channels is one `IndexSpace`; `suite.channel_labels` finds them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn


@dataclass
class IndexSpace:
    """Channels that exist in several tensors at once.

    Attributes:
        name: that of the first layer that produced it when the model was built; it never changes.
        original: the index that each channel had when the model was built, ascending.
        producers: names of the layers whose output channels it is.
        consumers: layers whose inputs it is, as (layer, block): each channel is `block` consecutive inputs, more than
            one for a linear layer behind a flattening.
        axes: every dimension that is sliced with it, as (parameter or buffer, axis, block).
        attributes: every number of a module that counts its channels, as (module, attribute, block).
        frozen_because: why none of its channels may go; empty where they may.
        may_be_empty: it lies inside a removable branch, which goes with its last channel. Every other space keeps one.
    """

    name: str
    original: list[int]
    producers: list[str] = field(default_factory=list)
    consumers: list[tuple[str, int]] = field(default_factory=list)
    axes: list[tuple[str, int, int]] = field(default_factory=list)
    attributes: list[tuple[str, str, int]] = field(default_factory=list)
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
        output: the index space that its output belongs to.
        input_size: (H, W) of its first layer's input; empty for a linear layer.
    """

    name: str
    layers: tuple[str, ...]
    spaces: tuple[str, ...]
    output: str
    input_size: tuple[int, ...]


class IndexSpaces(Mapping[str, IndexSpace]):
    """The index spaces of one model by name, in the order in which the model produces them.

    Attributes:
        removable_branches: residual branches that can be taken out, by name.
        fixed_branches: residual branches that cannot, and why.
        output_of: the space that a layer produces, by the layer's name.
        input_of: the space that a layer consumes, by the layer's name; absent where its input is not understood.
        model_input: the space of the model's input, or `None` if the model could not be traced.
        model_outputs: the spaces of the model's outputs.
        positions: places (P * Q) of each layer's output for one image; a linear layer has one.
    """

    def __init__(self, spaces: Mapping[str, IndexSpace]) -> None:
        self._spaces = dict(spaces)
        self.removable_branches: dict[str, Branch] = {}
        self.fixed_branches: dict[str, str] = {}
        self.output_of = {layer: name for name, space in spaces.items() for layer in space.producers}
        self.input_of = {layer: name for name, space in spaces.items() for layer, _ in space.consumers}
        self.model_input: str | None = None
        self.model_outputs: frozenset[str] = frozenset()
        self.positions: dict[str, int] = {}

    def __getitem__(self, name: str) -> IndexSpace:
        return self._spaces[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._spaces)

    def __len__(self) -> int:
        return len(self._spaces)

    def forget_branch(self, branch: Branch, constant: str) -> None:
        """Drop a branch that was taken out: its spaces, its layers, and its tensors in other spaces.

        Args:
            branch: one of `removable_branches`.
            constant: the buffer of what the branch still adds; it joins the branch's output space.
        """
        inside = branch.name + "."
        for name in branch.spaces:
            del self._spaces[name]
        for space in self._spaces.values():
            space.producers = [layer for layer in space.producers if not layer.startswith(inside)]
            space.consumers = [entry for entry in space.consumers if not entry[0].startswith(inside)]
            space.axes = [entry for entry in space.axes if not entry[0].startswith(inside)]
            space.attributes = [entry for entry in space.attributes if not entry[0].startswith(inside)]
        self._spaces[branch.output].axes.append((constant, 0, 1))
        tables: tuple[dict[str, Any], ...] = (self.output_of, self.input_of, self.positions)
        for table in tables:
            for layer in branch.layers:
                table.pop(layer, None)
        del self.removable_branches[branch.name]


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
