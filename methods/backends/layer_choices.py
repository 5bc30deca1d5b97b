"""The backend of each layer of a trial, and the operands on which backends are measured."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from methods.backends.autotune import Fastest
from suite.method import Context, Geometry, Layer
from suite.ops import PlannedConv2d

AUTO = "auto"
MASKED = "masked"
"""torch's dense products, which also multiply by the zeros of masked weights and of pruned gradients."""


class LayerChoices:
    """The backend of each layer of a trial: chosen once, kept in the trial's checkpoint, and recorded.

    A subclass knows which backends a layer can have, and measures them.

    Args:
        wanted: Name of a backend for all layers that can have it, or `auto`: the fastest for each layer.

    Attributes:
        chosen: Name of the backend by layer; `None` until a choice is made.
        choices: By layer, what was measured for the choice; empty unless `wanted` is `auto`.
    """

    def __init__(self, wanted: str) -> None:
        self.wanted = wanted
        self.chosen: dict[str, str] | None = None
        self.choices: dict[str, dict[str, Any]] = {}

    def of(self, name: str) -> str:
        """Return the name of a layer's backend; `masked` for a layer without a choice."""
        return (self.chosen or {}).get(name, MASKED)

    def choose_for(
        self,
        ctx: Context,
        names: Iterable[str],
        candidates: Callable[[str], Sequence[str]],
        key: Callable[[str], Hashable],
        measure: Callable[[str, Sequence[str]], Fastest],
    ) -> None:
        """Choose a backend for every layer, once for all layers with equal keys. A second call changes nothing.

        Args:
            ctx: Context of the method.
            names: Names of the layers.
            candidates: Returns the backends that a layer can have; the first is the baseline.
            key: Returns what decides the times of a layer's products.
            measure: Measures the candidates for a layer; called outside the measured training time, and by rank 0 only.
        """
        if self.chosen is not None:
            return
        self.chosen = {}
        found: dict[Hashable, dict[str, Any]] = {}
        for name in names:
            allowed = candidates(name)
            if self.wanted != AUTO:
                self.chosen[name] = self.wanted if self.wanted in allowed else allowed[0]
                continue
            if len(allowed) == 1:
                self.chosen[name] = allowed[0]
                continue
            if (asked := key(name)) not in found:
                with ctx.untimed():
                    found[asked] = ctx.from_first_rank(measure(name, allowed).to_json() if ctx.rank == 0 else None)
            self.choices[name] = found[asked]
            self.chosen[name] = found[asked]["chosen"]

    def forget(self) -> None:
        """Let the next call of `choose_for` choose again."""
        self.chosen, self.choices = None, {}

    def record(self, ctx: Context) -> dict[str, Any]:
        """Return the backend by layer and, in the first epoch, what was measured for the choice."""
        chosen = {"backends": self.chosen or {}}
        return {**chosen, "choices": self.choices} if ctx.epochs_done <= 1 and self.choices else chosen

    def state_dict(self) -> dict[str, Any]:
        """Return the choice and what was measured for it."""
        return {"backends": self.chosen, "choices": self.choices}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over the choice of a checkpoint."""
        self.chosen, self.choices = state["backends"], dict(state["choices"])


class Shape(NamedTuple):
    """What the operands of a layer's products are like in a training.

    Attributes:
        geometry: Geometry of the layer.
        images: Images in a micro-batch.
        size: (H, W) of a convolution's padded input; of a linear layer, the rows of each image and 1.
        dtype: Type of the products.
    """

    geometry: Geometry
    images: int
    size: tuple[int, int]
    dtype: torch.dtype

    @classmethod
    def of(cls, name: str, layer: Layer, ctx: Context) -> Shape:
        """Return what the operands of a layer are like in the training of a context."""
        if isinstance(layer, PlannedConv2d):
            size = layer.padded_size(*ctx.spaces.input_sizes[name])
        else:
            size = (ctx.spaces.positions[name], 1)
        images = ctx.batch_size // (ctx.micro_batches * ctx.ranks)
        return cls(layer.geometry, images, size, ctx.dtype)

    def question(self, weight: Tensor) -> dict[str, Any]:
        """Return the facts as plain data, with those of the weight, for `autotune.choose`."""
        return {
            "weight": [*weight.shape],
            "channels_last": _is_channels_last(weight),
            "geometry": dataclasses.asdict(self.geometry),
            "images": self.images,
            "size": [*self.size],
            "dtype": str(self.dtype),
        }

    def operands(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Return a random A in the layout of the weight, and the weight in the type of the products.

        The draws use no generator of torch's own.
        """
        generator = torch.Generator().manual_seed(0)
        weight = weight.detach().to(self.dtype)
        if self.geometry.kind == "linear":
            rows = self.images * self.size[0]
            return torch.randn((rows, weight.shape[1]), generator=generator).to(weight), weight
        shape = (self.images, weight.shape[1] * self.geometry.groups, *self.size)
        layout = torch.channels_last if _is_channels_last(weight) else torch.contiguous_format
        activation = torch.randn(shape, generator=generator).to(weight)
        return activation.contiguous(memory_format=layout), weight


def _is_channels_last(weight: Tensor) -> bool:
    return weight.ndim == 4 and weight.is_contiguous(memory_format=torch.channels_last)
