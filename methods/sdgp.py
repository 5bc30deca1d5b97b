"""SDGP: the data gradient is computed from an output gradient pruned to n of every m channels.

Source: McDanel, Dinh, Magallanes, "Accelerating DNN Training with Structured Data Gradient Pruning", ICPR 2022
(arXiv 2202.00774).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Ge, Interval
from torch import Tensor, nn

import kernels
from kernels import PruneRule
from kernels.prune.rule import Mode
from methods.gradients.backends import PrunedGradientBackends, Pruning
from suite.method import Compressed, Context, Density, Method, OpPlan, Site
from suite.parameters import Search
from suite.recipe import Tuning
from suite.registry import register

RGB = 3
"""Convolutions with at most this many input channels are not pruned: they read the image, which needs no gradient."""


@dataclass(frozen=True)
class PruneOutputGradient:
    """A transform dO -> dO that keeps n of every m channels by a rule; see `kernels.prune_nm`."""

    rule: PruneRule

    def __call__(self, grad: Tensor, site: Site) -> Tensor:
        return kernels.prune_nm(grad, self.rule, seed=site.kernel_seed)


@dataclass(frozen=True)
class CompressOutputGradient:
    """A transform dO -> dO that keeps the same values as `PruneOutputGradient`, and stores no others."""

    rule: PruneRule

    def __call__(self, grad: Tensor, site: Site) -> Compressed:
        values, channels = kernels.compress_nm(grad, self.rule, seed=site.kernel_seed)
        return Compressed(values, channels, tuple(grad.shape), grad.dtype, self.rule.n, self.rule.m)


@register("method", "sdgp")
class SDGP(Method):
    """SDGP: the data gradient uses n of every m channels of the output gradient; the weight gradient stays dense.

    `products=both` is not in the paper: there the weight gradient and the bias gradient are always dense.

    Attributes:
        n: Number of channels kept in each group.
        m: Number of consecutive channels, at one pixel, that form a group. If m does not divide the number of channels,
            the last group is shorter and keeps min(n, its size).
        mode: Which channels are kept. `magnitude` keeps the largest values, and `rescaled` also multiplies them so that
            the sum of magnitudes does not change; `random` keeps random ones. `unbiased`, which is not in the paper,
            draws larger ones more probably and divides each by its probability. The expectation is then the dense
            gradient, with the smallest variance (Chmiel et al., ICLR 2023).
        scope: The set over which `rescaled` preserves the sum: each channel of each sample (`sample_channel`, the
            published code), each `group` of m channels, or each `channel` over the whole batch (the paper's text).
            Other modes ignore it.
        layers: Which layers are pruned: every convolution except those that read the image (`conv`), or linear layers
            too (`all`).
        products: Which products use the pruned output gradient: the data gradient only, as published (`dgrad`), or the
            data gradient, the weight gradient and the bias gradient, all from one pruning (`both`).
        backend: How the products with the pruned output gradient are computed. `masked` uses torch's dense products,
            which multiply the zeros, as the published code does. `skip` uses kernels that skip the channels that are
            not kept, on the CPU. `auto` uses `skip` in each layer where it is faster by a margin, with the pruning;
            this is measured once on this machine for layers of equal shape (`methods.backends.autotune`).
    """

    version: ClassVar[int] = 3  # 2: other random masks; 3: other sums in bfloat16 with AVX512_BF16
    source: ClassVar[str] = "McDanel et al., Structured Data Gradient Pruning, ICPR 2022"
    replayable: ClassVar[bool] = True
    random_twin: ClassVar[Mapping[str, Any]] = {"mode": "random"}
    cpu_kernels: ClassVar[Sequence[str]] = ("prune_nm", "compressed_gradients")
    tuning: ClassVar[Sequence[Tuning]] = (
        Tuning(trials=0, chosen_on="publication", source="the paper and its code; equal in all presets"),
    )

    n: Annotated[int, Ge(1)] = 2
    m: Annotated[int, Interval(ge=2, le=32)] = 4
    mode: Literal["random", "magnitude", "rescaled", "unbiased"] = "rescaled"
    scope: Annotated[Literal["sample_channel", "group", "channel"], Search()] = "sample_channel"
    layers: Literal["conv", "all"] = "conv"
    products: Literal["dgrad", "both"] = "dgrad"
    backend: Literal["auto", "masked", "skip"] = "auto"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.n > self.m:
            raise ValueError(f"n is {self.n}; it must not be larger than m, which is {self.m}")
        self._channels: dict[str, int] = {}  # output channels of each pruned layer

    def setup(self, ctx: Context) -> None:
        self._positions = ctx.spaces.positions
        if not any(map(self._pruned_channels, ctx.layers.values())):
            linear = any(isinstance(layer, nn.Linear) for layer in ctx.layers.values())
            hint = "; layers=all prunes its linear layers" if linear and self.layers == "conv" else ""
            raise ValueError(f"no layer of this model is pruned: no Conv2d reads more than {RGB} channels{hint}")
        pruning = Pruning(
            PruneOutputGradient(self._rule),
            CompressOutputGradient(self._rule),
            facts=dataclasses.asdict(self._rule),
            both=self.products == "both",
        )
        self._backends = PrunedGradientBackends(self.backend, pruning, ctx.device)
        if ctx.rehearsal:
            return
        shapes = [
            (1, channels, 1, self._positions[name]) if isinstance(layer, nn.Conv2d) else (1, channels)
            for name, layer in ctx.layers.items()
            if (channels := self._pruned_channels(layer))
        ]
        # Compile the kernels before training time is measured, if the command has not done so.
        kernels.prepare(shapes, ctx.device, self._rule)
        self._choose(ctx)

    def _choose(self, ctx: Context) -> None:
        if self.n < self.m:  # n = m keeps everything
            self._backends.choose(ctx, [name for name, layer in ctx.layers.items() if self._pruned_channels(layer)])

    def choose_again(self, ctx: Context) -> None:
        self._backends.forget()
        self._choose(ctx)

    def plan(self, name: str, layer: nn.Module) -> OpPlan | None:
        self._channels.pop(name, None)
        if channels := self._pruned_channels(layer):
            self._channels[name] = channels
        return self._backends.plan(name) if channels and self.n < self.m else None

    @property
    def _rule(self) -> PruneRule:
        mode: Mode = "magnitude" if self.mode == "rescaled" else self.mode
        return PruneRule(self.n, self.m, mode, self.scope if self.mode == "rescaled" else "none")

    def _pruned_channels(self, layer: nn.Module) -> int:
        """Return the number of output channels of a layer, 0 if it is not pruned."""
        if isinstance(layer, nn.Conv2d) and layer.in_channels > RGB:
            return layer.out_channels
        return layer.out_features if isinstance(layer, nn.Linear) and self.layers == "all" else 0

    def density(self, name: str, ctx: Context) -> Density:
        """Return the share of the output gradient's channels that is kept, including the short group."""
        channels = self._channels.get(name, 0)
        share = self._rule.kept(channels) / channels if channels else 1.0
        return Density(dgrad=share, wgrad=share if self.products == "both" else 1.0)

    def overhead(self, name: str, samples: int, ctx: Context) -> float:
        """Return the operations of the pruning, counted for each pixel of the output gradient.

        Magnitude: one comparison for every two channels of a group. Random: one draw and one comparison per channel.
        Rescaling: three per channel (add to the sums before and after, multiply). Unbiased: six per channel (add and
        compare, once for the certain channels, once to see that no other is certain, once to sample), and one draw and
        one division per group.
        """
        channels = self._channels.get(name, 0)
        if self.n == self.m or not channels:
            return 0.0
        if self.mode == "random":
            operations = 2 * channels
        elif self.mode == "unbiased":
            operations = 6 * channels + 2 * len(self._groups(channels))
        else:
            operations = sum(size * (size - 1) // 2 for size in self._groups(channels))
        if self.mode == "rescaled":
            operations += 3 * channels
        return float(operations * samples * self._positions[name])

    def record(self, ctx: Context) -> dict[str, Any]:
        """Return the backend by layer and, in the first epoch, what was measured for the choice."""
        return self._backends.record(ctx)

    def state_dict(self) -> dict[str, Any]:
        return self._backends.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._backends.load_state_dict(state)

    def _groups(self, channels: int) -> list[int]:
        """Return the sizes of the groups of one pixel."""
        whole, rest = divmod(channels, self.m)
        return [self.m] * whole + ([rest] if rest else [])
