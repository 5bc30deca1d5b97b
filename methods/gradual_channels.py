"""Gradual channel pruning: between epochs, the channels with the smallest weights are removed, up to a target width."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, ClassVar, Literal

import torch
from annotated_types import Ge, Interval
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.weak import WeakIdKeyDictionary

from methods.channels.cuts import drawn, kept_channels, refuse_frozen, refuse_one_epoch, removable_spaces, rounded_width
from methods.masks.schedules import cubic
from methods.masks.structures import strongest
from suite.index_spaces import IndexSpace
from suite.method import Context, Method, ReconfigPlan
from suite.parameters import Search
from suite.plan import Layer
from suite.recipe import Tuning
from suite.registry import register

IMAGES = 64  # at most, of the newest batch, from which the means of removed channels are taken
PASSING = (nn.MaxPool2d, nn.AdaptiveMaxPool2d, nn.AdaptiveAvgPool2d, nn.Dropout, nn.Dropout2d, nn.Identity)
"""Modules that, in evaluation, add a constant to their output if it is added to a channel of their input."""


@register("method", "gradual_channels")
class GradualChannels(Method):
    """Gradual channel pruning: between epochs, channels are removed until each index space has its target width.

    At the share p of the training, of the N channels that an index space had at first, N * (1 - (1 - width) * f(p))
    remain, where f rises from 0 at `start` to 1 at `end` (`schedule`). Those with the smallest sum of squared weights
    go: of all weights of the channel, as output of each layer that produces it and as input of each that consumes it
    (Torch-Pruning's `GroupNormImportance` without scales of normalisation). Grouped convolutions do not count, because
    their weights mix the channels of a group. All spaces keep the same share, as in a narrower network.

    A layer that consumed removed channels loses their contribution to its output. Its mean m, per output channel, is
    added where a constant belongs, so that a channel with a constant value is removed without a change of the network's
    function in evaluation:

        bias of the layer         += m    if it has one (Mean Replacement Pruning); else
        running mean of the norm  -= m    if its output goes to batch normalisation, directly or through max pooling.

    Other layers lose the contribution, and the record names them. If something else reads an output in front of a norm
    too, it loses m, and is not named. The running means are ours, and so is the estimate of m, by one forward in
    evaluation mode of up to 64 images of the newest batch, which may be a smaller last one; behind zero padding it is
    the mean over all positions.

    Attributes:
        width: Share of the channels of each index space that remains in the end.
        start, end: Shares of the training between which channels are removed.
        schedule: f, where x = (p - start) / (end - start): `linear`, x, or `cubic`, 1 - (1 - x)^3, of gradual magnitude
            pruning, which removes more at first.
        every: Number of epochs between two cuts.
        round_to: The number of channels of a space is rounded up to a multiple of this.
        compensate: Whether removed channels leave the mean of their contributions.
        selection: Which channels are removed: those with the smallest `norm`; or, as the `random` twin, as many of each
            space after the same epochs, drawn from the seed.
    """

    shrinks_network: ClassVar[bool] = True
    random_twin: ClassVar[Mapping[str, Any]] = {"selection": "random"}
    source: ClassVar[str] = (
        "group norm of DepGraph (Fang et al., CVPR 2023; VainF/Torch-Pruning), schedules of fasterai, Mean Replacement "
        "Pruning (Evci et al., openreview BJxRVnC5Fm, 2018)"
    )
    tuning: ClassVar[Sequence[Tuning]] = (
        Tuning(trials=0, chosen_on="other", source="a mild, early cut; nothing was searched"),
    )

    width: Annotated[float, Interval(gt=0, lt=1), Search(0.4, 0.9)] = 0.7
    start: Annotated[float, Interval(ge=0, lt=1)] = 0.0
    end: Annotated[float, Interval(gt=0, le=1), Search(0.1, 0.7)] = 0.3
    schedule: Annotated[Literal["linear", "cubic"], Search()] = "linear"
    every: Annotated[int, Ge(1)] = 1
    round_to: Annotated[int, Ge(1)] = 1
    compensate: bool = True
    selection: Literal["norm", "random"] = "norm"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.start >= self.end:
            raise ValueError(f"start={self.start:g} has to be before end={self.end:g}")

    def setup(self, ctx: Context) -> None:
        refuse_frozen(ctx)
        refuse_one_epoch(ctx)
        self.sizes = {space.name: space.size for space in removable_spaces(ctx)}  # before the first cut
        if not self.sizes:
            raise ValueError(
                "no channel of this model can be removed: each belongs to a layer whose weight is not trained "
                "(requires_grad)"
            )
        self.images: Tensor | None = None  # some of the newest batch
        self.remaining: dict[str, Tensor] = {}  # what `reconfigure` is going to keep
        self.without: list[str] = []  # layers without a place for a mean

    def transform_batch(self, images: Tensor, labels: Tensor, ctx: Context) -> tuple[Tensor, Tensor]:
        self.images = images[:IMAGES]
        return images, labels

    def share(self, ctx: Context) -> float:
        """Return the share of the channels that remains after this epoch (fasterai's `lin` and `agp`)."""
        if ctx.epochs_done == ctx.epochs - 1:  # the last cut behind which the network is trained
            return self.width
        linear = min(1.0, max(0.0, (ctx.progress - self.start) / (self.end - self.start)))
        reached = linear if self.schedule == "linear" else cubic(ctx.progress, self.start, self.end)
        return 1 - (1 - self.width) * reached

    def cuts_now(self, ctx: Context) -> bool:
        """Return whether channels are removed after this epoch: each `every`-th, and those that end the schedule."""
        ends = ctx.progress >= self.end - 1e-9 or ctx.epochs_done == ctx.epochs - 1
        return ends or ctx.epochs_done % self.every == 0

    def count(self, space: IndexSpace, ctx: Context) -> int:
        """Return how many channels of a space remain after this epoch: at least one."""
        wanted = max(1, round(self.share(ctx) * self.sizes[space.name]))
        return rounded_width(wanted, space.size, self.round_to)

    def on_epoch_end(self, ctx: Context) -> None:
        """Choose the channels that remain, and move the means of the others."""
        self.remaining, self.without = {}, []
        if not self.cuts_now(ctx):
            return
        for space in removable_spaces(ctx):
            if space.name in self.sizes and (count := self.count(space, ctx)) < space.size:
                mask = drawn(space, count, ctx) if self.selection == "random" else strongest(squares(space, ctx), count)
                self.remaining[space.name] = mask.cpu()
        if self.compensate and self.remaining:
            self.without = self._move_means(ctx)

    def reconfigure(self, ctx: Context) -> ReconfigPlan | None:
        return ReconfigPlan(kept=kept_channels(self.remaining, ctx)) if self.remaining else None

    def _move_means(self, ctx: Context) -> list[str]:
        """Add the mean contributions of removed channels to biases and running means; return the layers without any."""
        removed: dict[str, list[Tensor]] = {}  # positions along the input axis, by layer
        for name, mask in self.remaining.items():
            for layer, _, axis, entries in ctx.spaces.weights(ctx.spaces[name], ctx.layers):
                if axis == 1:
                    removed.setdefault(layer, []).append(entries[~mask].flatten())
        if self.images is None:
            return list(removed)
        inputs = {name: torch.cat(positions).to(ctx.device) for name, positions in removed.items()}
        found, behind = contributions(ctx.model, self.images, {n: ctx.layers[n] for n in inputs}, inputs)
        without = []
        with torch.no_grad():
            for name in inputs:
                bias = ctx.layers[name].bias
                if name not in found or (bias is None and name not in behind):
                    without.append(name)
                    continue
                mean = ctx.all_reduce(found[name]) / ctx.ranks
                if bias is not None:
                    bias += mean
                else:
                    for running_mean in behind[name]:
                        running_mean.sub_(mean)
        return without

    def record(self, ctx: Context) -> Mapping[str, Any]:
        return {"share": self.share(ctx), "without_mean": self.without}


def squares(space: IndexSpace, ctx: Context) -> Tensor:
    """Return the sum of squares of all weights of each channel of a space, (size,): its squared group norm."""
    of_layers = [
        one.weight.detach().movedim(one.axis, 0)[one.entries.to(one.weight.device)].float().square().flatten(1).sum(1)
        for one in ctx.spaces.weights(space, ctx.layers)
    ]
    return torch.stack(of_layers).sum(0)


def contributions(
    model: nn.Module, images: Tensor, layers: Mapping[str, Layer], inputs: Mapping[str, Tensor]
) -> tuple[dict[str, Tensor], dict[str, set[Tensor]]]:
    """Return what some input channels add to each layer's output on average, and the running means behind each layer.

    Args:
        model: The bare model; it runs once, in evaluation mode.
        images: (N, C, H, W).
        layers: Convolutions and linear layers of the model, by name.
        inputs: Positions of the channels along each layer's input channels, by name.

    Returns:
        (means, behind): means over images and positions, (K,), of the layers that ran; and the running means, (K,), of
        the batch normalisations that get a layer's output, directly or through `PASSING`.
    """
    means: dict[str, Tensor] = {}
    behind: dict[str, set[Tensor]] = {}
    # Name of the layer, by output; and the output's version, which in-place operations change.
    emitted: Any = WeakIdKeyDictionary()

    def measure(name: str, layer: Layer, given: Tensor, output: Tensor) -> None:
        emitted[output] = name, output._version
        if name in means:  # the layer is called for the second time
            return
        axis = 1 if isinstance(layer, nn.Conv2d) else -1
        some = torch.zeros_like(given).index_copy_(axis, inputs[name], given.index_select(axis, inputs[name]))
        # `forward` does not call this hook again.
        product = layer.forward(some).movedim(axis, 0).flatten(1)
        means[name] = product.mean(1) - (0 if layer.bias is None else layer.bias)

    def enter(module: nn.Module, given: Tensor, output: Tensor) -> None:
        name, version = emitted.get(given, (None, 0))
        if name is None or given._version != version:
            return
        if isinstance(module, PASSING):
            emitted[output] = name, output._version
        elif isinstance(module, _BatchNorm) and module.running_mean is not None:
            behind.setdefault(name, set()).add(module.running_mean)

    handles = [
        layer.register_forward_hook(
            lambda one, given, named, output, name=name: measure(name, one, (*given, *named.values())[0], output),
            with_kwargs=True,
        )
        for name, layer in layers.items()
    ] + [
        module.register_forward_hook(lambda one, given, output: enter(one, given[0], output))
        for module in model.modules()
        if isinstance(module, (*PASSING, _BatchNorm))
    ]
    try:
        with evaluating(model), torch.no_grad():
            model(images.to(next(model.parameters()).dtype))
    finally:
        for handle in handles:
            handle.remove()
    return means, behind


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put a model into evaluation mode inside the context; afterwards each module has its own mode again."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
