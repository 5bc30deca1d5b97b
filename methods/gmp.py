"""Gradual magnitude pruning: the smallest weights of every layer are masked, more and more of them.

Source: Zhu, Gupta, "To Prune, or Not to Prune: Exploring the Efficacy of Pruning for Model Compression", 2017 (arXiv
1710.01878).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

import torch
from annotated_types import Ge, Interval
from torch import Tensor

from methods.masks.final_masks import FinalMasksMethod
from methods.masks.schedules import cubic, periodic
from methods.masks.scores import uniform_random
from suite.method import Context
from suite.parameters import Search
from suite.plan import random_key
from suite.recipe import Tuning
from suite.registry import register


@register("method", "gmp")
class GMP(FinalMasksMethod):
    """Gradual magnitude pruning: sparsity grows along a cubic schedule, and the smallest weights are masked.

    At the share t of the training, the sparsity of all masked layers together (with `uniform`, of each) is

        s(t) = sparsity + (initial - sparsity) * (1 - (t - start) / (end - start)) ** 3

    from `start` to `end` (equation 1 of the paper). Masks are set in every `every`-th step in between, and a last time
    in the first step from `end` on, or after the last epoch if no step begins so late. Then they stay as they are. A
    masked weight is zero, so that it has the smallest magnitude at the next update and remains masked, and its gradient
    is not used.

    Nothing gets faster on kernels for dense tensors, which multiply the zeros. From `end` on, kernels may skip them.

    Attributes:
        initial: Sparsity at `start`.
        start: Share of the training at which pruning begins.
        end: Share of the training at which the final sparsity is reached. The paper lets the learning rate be still
            high enough then, so that the network recovers.
        every: Steps between two updates of the masks.
        mode: Which weights are masked: those of the smallest `magnitude`, or as many `random` ones of each layer, which
            needs a `distribution` that does not depend on magnitudes.
        distribution: `uniform`, as published: the same sparsity in every masked layer. Others are those of
            `methods.masks`.
    """

    source: ClassVar[str] = "Zhu and Gupta, To Prune, or Not to Prune, arXiv 1710.01878"
    random_twin: ClassVar[Mapping[str, Any]] = {"mode": "random"}
    tuning: ClassVar[Sequence[Tuning]] = (
        Tuning(
            trials=0,
            chosen_on="publication",
            source="power and frequency of `PolynomialDecay` in tensorflow-model-optimization (`pruning_schedule.py`); "
            "start and end are ours",
        ),
    )

    initial: Annotated[float, Interval(ge=0, lt=1)] = 0.0
    start: Annotated[float, Interval(ge=0, lt=1), Search(0.0, 0.4)] = 0.2
    end: Annotated[float, Interval(gt=0, lt=1), Search(0.5, 0.9)] = 0.8
    every: Annotated[int, Ge(1)] = 100
    mode: Literal["magnitude", "random"] = "magnitude"
    distribution: Literal["uniform", "erdos_renyi", "global"] = "uniform"

    @classmethod
    def defaults(cls, task: str, preset: str) -> dict[str, Any]:
        """Update masks more often in the short presets, which have few steps."""
        return {} if preset == "paper" else {"every": 5}

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.start > self.end:
            raise ValueError(f"start is {self.start}; it must not be greater than end, {self.end}")
        if self.initial > self.sparsity:
            raise ValueError(f"initial is {self.initial}; it must not be greater than sparsity, {self.sparsity}")
        if self.mode == "random" and self.distribution == "global":
            raise ValueError(
                "distribution is global; with mode=random, scores say nothing about layers: use uniform or erdos_renyi"
            )

    def sparsity_now(self, ctx: Context) -> float | None:
        if self._is_final or ctx.progress < self.start:
            return None
        if ctx.progress < self.end and not periodic(ctx.step, self.every):
            return None
        if ctx.progress >= self.end:
            self.end_updates(ctx)
        return self.initial + (self.sparsity - self.initial) * cubic(ctx.progress, self.start, self.end)

    def scores(self, ctx: Context) -> dict[str, Tensor]:
        """Return |w|, or random numbers that are 0 for masked weights, so that these remain masked."""
        if self.mode == "magnitude":
            return super().scores(ctx)
        # Without the rank: all processes mask the same weights.
        generator = torch.Generator().manual_seed(random_key(ctx.seed, ctx.step, 0, "hook", "masked weights"))
        # By weight: layers that share one give it the same mask.
        drawn = {weight: uniform_random(weight, generator) + 1.0 for weight in self.weights(ctx).values()}
        scores = {name: drawn[weight] for name, weight in self.weights(ctx).items()}
        return {name: score * self.masks[name] if self.masks else score for name, score in scores.items()}

    def on_epoch_end(self, ctx: Context) -> None:
        """Mask at the end of the training, if no step began at `end` or later."""
        super().on_epoch_end(ctx)
        if ctx.epochs_done == ctx.epochs and not self._is_final:
            self.update_masks(ctx)
            self.after_optimizer_step(ctx)

    def kept_gradients(self, ctx: Context) -> Mapping[str, Tensor]:
        """Return the masks: a weight that is masked once stays so."""
        return self.masks
