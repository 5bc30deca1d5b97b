"""ssProp: both gradients of a layer are computed from the output channels whose gradients are largest.

Source: Zhong, Huang, Shi, "ssProp: Energy-Efficient Training for Convolutional Neural Networks with Scheduled Sparse
Back Propagation", 2024 (arXiv 2408.12561), and its code, https://github.com/lujiazho/ssProp.

In a sparse epoch, a layer with K output channels keeps k = max(int(keep * K), 1) of them in each backward:

    s_c = mean of |dO[n, c, p, q]| over images n and positions p, q       (`select_topk_idx_` in EfficientLayers.py)
    I   = the k channels with the largest s_c
    dA  = data gradient of dO[:, I] and W[I]                              (`EfficientConv2d.backward`)
    dW[I], db[I] = weight and bias gradient of dO[:, I]; they are 0 for all other channels

Nothing is rescaled. Other epochs are dense (`DropSchedular` in utils.py). As dO[:, I] and W[I] are dense tensors, any
kernel saves time with them.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import torch
from annotated_types import Ge, Interval
from torch import Tensor, nn

from kernels.prune.reference import philox4x32
from methods.backends.autotune import Fastest, Step, choose
from methods.backends.layer_choices import AUTO, LayerChoices, Shape
from suite.method import Compact, Context, Density, Layer, Method, OpPlan, Site
from suite.ops import TORCH
from suite.parameters import Search
from suite.recipe import Tuning
from suite.registry import register

log = logging.getLogger("pdt.ssprop")

DENSE, COMPACT = "dense", "compact"


@dataclass(frozen=True)
class KeepChannels:
    """A transform dO -> `Compact` that keeps some output channels of the micro-batch.

    Attributes:
        count: Number of channels that are kept.
        mode: `magnitude` or `random`, as in `SSProp`.
    """

    count: int
    mode: str

    def __call__(self, grad: Tensor, site: Site) -> Compact:
        if self.mode == "magnitude":
            others = [axis for axis in range(grad.ndim) if axis != 1]
            score = grad.abs().mean(others, dtype=torch.promote_types(grad.dtype, torch.float32))
        else:
            # The first of four numbers of a counter-based generator for each channel: a replayed step draws new ones.
            seed: Any = site.kernel_seed
            score, *_ = philox4x32(torch.arange(grad.shape[1], device=grad.device), seed)
        kept = score.topk(self.count).indices.sort().values
        # In channels-last order, indexing and then a copy are several times as fast as `index_select`.
        values = grad[:, kept]
        is_last = grad.ndim == 4 and grad.is_contiguous(memory_format=torch.channels_last)
        return Compact(values.contiguous(memory_format=torch.channels_last) if is_last else values, kept)


@register("method", "ssprop")
class SSProp(Method):
    """ssProp: in every second epoch, both gradients use the fifth of the output channels with the largest gradients.

    Weights of the other channels get no gradient in that step, but momentum and weight decay still change them. The
    forward is dense. Every rank and every micro-batch keeps channels of its own, chosen from its own images. In the
    published code, which trains in one process, they are chosen from the whole batch.

    Attributes:
        keep: Share of the output channels that is kept: `max(int(keep * K), 1)` of K.
        schedule: In which epochs. `interleave`, as published: the first epoch is dense, and every second one is sparse.
            `dense_sparse_dense`, which is not in the paper: from `start` to `end`. `constant`: in all.
        start, end: Shares of the epochs, rounded to whole ones, between which `dense_sparse_dense` is sparse.
        mode: Which channels are kept: those with the largest mean magnitude, or as many `random` ones. These are not
            divided by `keep` either.
        layers: Which layers may be pruned: convolutions (`conv`), as published, or linear layers too (`all`). Layers
            that produce the output of the network are dense, and so are convolutions with several groups.
        round_to: The number of kept channels is rounded up to a multiple of this.
        backend: `compact` prunes each of these layers, as the published code does. `auto` prunes only those whose
            gradients take less time by a margin than dense ones, with the choice of channels; the others train as in
            dense training. This is measured once on this machine for layers of equal shape
            (`methods.backends.autotune`), and decides what is trained: a time pass does not measure it again.
    """

    source: ClassVar[str] = "Zhong et al., ssProp, arXiv 2408.12561, and its code"
    replayable: ClassVar[bool] = True
    random_twin: ClassVar[Mapping[str, Any]] = {"mode": "random"}
    tuning: ClassVar[Sequence[Tuning]] = (
        Tuning(trials=0, chosen_on="publication", source="the command in its code's README; `backend` is ours"),
    )

    keep: Annotated[float, Interval(gt=0, le=1), Search(0.1, 0.6)] = 0.2
    schedule: Annotated[Literal["interleave", "dense_sparse_dense", "constant"], Search()] = "interleave"
    start: Annotated[float, Interval(ge=0, lt=1)] = 0.3
    end: Annotated[float, Interval(gt=0, le=1)] = 0.8
    mode: Literal["magnitude", "random"] = "magnitude"
    layers: Literal["conv", "all"] = "conv"
    round_to: Annotated[int, Ge(1)] = 1
    backend: Literal["auto", "compact"] = "auto"

    @classmethod
    def defaults(cls, task: str, preset: str) -> dict[str, Any]:
        """Prune every layer in `smoke`, whose networks are so small that no layer would get faster."""
        return {"backend": "compact"} if preset == "smoke" else {}

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.start >= self.end:
            raise ValueError(f"start is {self.start}; it must be less than end, {self.end}")

    def setup(self, ctx: Context) -> None:
        self._positions = ctx.spaces.positions
        self._channels = {name: layer.weight.shape[0] for name, layer in ctx.layers.items() if self._fits(ctx, name)}
        # The first layer alone, such as a patch embedding, has no data gradient and few of the network's products.
        if all(_reads_input(ctx, name) for name in self._channels):
            linear = self.layers == "conv" and any(isinstance(layer, nn.Linear) for layer in ctx.layers.values())
            raise ValueError(
                "no layer of this model is pruned: it has no Conv2d of one group between its input and its output"
                + ("; layers=all prunes its linear layers" if linear else "")
            )
        if not any(self.is_sparse(epoch, ctx.epochs) for epoch in range(ctx.epochs)):
            raise ValueError(
                f"schedule={self.schedule} has no sparse epoch in a training of {ctx.epochs}; use schedule=constant"
            )
        self._sparse = self.is_sparse(0, ctx.epochs)
        self._choices = LayerChoices(self.backend)
        if not ctx.rehearsal:
            self._choose(ctx)

    def _fits(self, ctx: Context, name: str) -> bool:
        """Return whether a layer may be pruned."""
        layer, spaces = ctx.layers[name], ctx.spaces
        kinds = nn.Conv2d if self.layers == "conv" else (nn.Conv2d, nn.Linear)
        is_output = bool(spaces.model_outputs.intersection(spaces.outputs_of(name)))
        return isinstance(layer, kinds) and layer.geometry.groups == 1 and not is_output

    def count(self, channels: int) -> int:
        """Return how many of a layer's output channels are kept.

        Args:
            channels: How many it has.
        """
        count = max(int(self.keep * channels), 1)
        return min(channels, -(-count // self.round_to) * self.round_to)

    def is_sparse(self, epoch: int, epochs: int) -> bool:
        """Return whether gradients are sparse in an epoch.

        Args:
            epoch: The epoch, counted from 0.
            epochs: Number of epochs of the training.
        """
        if self.schedule == "interleave":
            return epoch % 2 == 1
        return self.schedule == "constant" or round(self.start * epochs) <= epoch < round(self.end * epochs)

    def _choose(self, ctx: Context) -> None:
        """Choose the layers that are pruned, once for all layers of equal shape."""

        def candidates(name: str) -> list[str]:
            channels = self._channels[name]
            return [DENSE] if self.count(channels) == channels else [DENSE, COMPACT]

        def key(name: str) -> tuple[Any, ...]:
            layer = ctx.layers[name]
            layout = layer.weight.stride() if layer.weight.ndim == 4 else ()
            return layer.weight.shape, layout, layer.bias is None, Shape.of(name, layer, ctx), _reads_input(ctx, name)

        def measure(name: str, _: Sequence[str]) -> Fastest:
            # The random twin asks the same question, so that it prunes the same layers.
            keep = KeepChannels(self.count(self._channels[name]), "magnitude")
            layer = ctx.layers[name]
            return fastest(keep, layer, Shape.of(name, layer, ctx), not _reads_input(ctx, name), ctx.hardware_id())

        self._choices.choose_for(ctx, [*self._channels], candidates, key, measure)
        if self.backend == AUTO and not any(map(self._is_pruned, self._channels)) and ctx.rank == 0:
            log.warning("ssprop: in no layer are pruned gradients faster here, so that this training is dense")

    def _is_pruned(self, name: str) -> bool:
        return name in self._channels and self._choices.of(name) == COMPACT

    def plan(self, name: str, layer: Layer) -> OpPlan | None:
        if not (self._sparse and self._is_pruned(name)):
            return None
        return OpPlan(grad_shared=KeepChannels(self.count(self._channels[name]), self.mode))

    def on_epoch_end(self, ctx: Context) -> None:
        before, self._sparse = self._sparse, self.is_sparse(ctx.epochs_done, ctx.epochs)
        if self._sparse != before:
            ctx.replan()

    def density(self, name: str, ctx: Context) -> Density:
        """Return the share of the channels that is kept, for both gradients."""
        if not (self._sparse and self._is_pruned(name)):
            return Density()
        share = self.count(self._channels[name]) / self._channels[name]
        return Density(1.0, share, share)

    def overhead(self, name: str, samples: int, ctx: Context) -> float:
        """Return the operations of the choice: an absolute value and a sum for each value of dO, or a random number."""
        if not (self._sparse and self._is_pruned(name)):
            return 0.0
        each = 2 * samples * self._positions[name] if self.mode == "magnitude" else 1
        return float(each * self._channels[name])

    def record(self, ctx: Context) -> dict[str, Any]:
        """Return which layers are pruned and, in the first epoch, what was measured for the choice."""
        return self._choices.record(ctx)

    def state_dict(self) -> dict[str, Any]:
        return {"sparse": self._sparse, **self._choices.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._sparse = state["sparse"]
        self._choices.load_state_dict(state)


def _reads_input(ctx: Context, name: str) -> bool:
    """Return whether a layer reads the input of the network, so that it has no data gradient."""
    return ctx.spaces.model_input in ctx.spaces.inputs_of(name)


def fastest(keep: KeepChannels, layer: Layer, shape: Shape, with_dgrad: bool, hardware_id: str) -> Fastest:
    """Choose between the gradients of a layer from all channels of dO and from the kept ones, on random operands.

    Args:
        keep: Chooses the channels, which is part of the time.
        layer: Gives the weight, and says whether there is a bias.
        shape: What the layer's operands are like.
        with_dgrad: Whether the data gradient is needed.
        hardware_id: Short name of the machine's hardware.
    """
    geometry, with_bias = shape.geometry, layer.bias is not None
    question = {
        "what": "the gradients of a layer from the output channels with the largest gradients, and their choice",
        **shape.question(layer.weight),
        "kept": keep.count,
        "data_gradient": with_dgrad,
        "with_bias": with_bias,
    }

    def steps() -> dict[str, Step]:
        activation, weight = shape.operands(layer.weight)
        like = TORCH.forward(activation, weight, None, geometry)
        grad = torch.empty_like(like).copy_(torch.randn(like.shape, generator=torch.Generator().manual_seed(1)))

        def dense() -> None:
            if with_dgrad:
                TORCH.dgrad(grad, weight, activation, geometry)
            TORCH.wgrad(grad, activation, weight, geometry, with_bias)

        def compact() -> None:  # as the suite computes the gradients from a `Compact`
            chosen = keep(grad, Site(layer.name, "grad_shared", 0, 0, 0))
            small = weight.index_select(0, chosen.kept)
            if with_dgrad:
                TORCH.dgrad(chosen.values, small, activation, geometry)
            part, _ = TORCH.wgrad(chosen.values, activation, small, geometry, False)
            torch.zeros_like(weight).index_copy_(0, chosen.kept, part)
            if with_bias:
                chosen.values.sum([axis for axis in range(grad.ndim) if axis != 1])

        return {DENSE: dense, COMPACT: compact}

    return choose(question, (DENSE, COMPACT), steps, layer.weight.device, hardware_id)
