"""RigL and SET: training with sparse weights from the first step, whose connections are dropped and grown.

Sources: Evci, Gale, Menick, Castro, Elsen, "Rigging the Lottery: Making All Tickets Winners", ICML 2020 (arXiv
1911.11134), and its code, https://github.com/google-research/rigl (`rigl/sparse_optimizers.py`). Mocanu, Mocanu, Stone,
Nguyen, Gibescu, Liotta, "Scalable Training of Artificial Neural Networks with Adaptive Sparse Connectivity Inspired by
Network Science", Nature Communications 2018 (SET).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

import torch
from annotated_types import Ge, Interval
from torch import Tensor

from methods.masks.final_masks import FinalMasksMethod
from methods.masks.schedules import cosine, periodic
from methods.masks.scores import gradient, magnitude, uniform_random
from methods.masks.structures import strongest
from suite.method import SKIP_STEP, Context, Density
from suite.parameters import Search
from suite.plan import random_key
from suite.recipe import Tuning
from suite.registry import register


@register("method", "rigl")
class RigL(FinalMasksMethod):
    """RigL: random sparse weights, the smallest of which are replaced every few steps where gradients are largest.

    A layer with A active weights replaces r = int(f * A) of them at the share t of the training, where

        f = fraction / 2 * (1 + cos(pi * t / until))        (`get_drop_fraction` with `cosine`)

    The A - r largest |w| stay, and the r largest gradients |dL/dw| among all other weights are grown, so that the layer
    keeps A weights (`_get_update_op`). A grown weight is 0 and so is its momentum, unless it was active before, so that
    only what is dropped changes the network's outputs. The step that updates the masks updates no weights.

    Nothing gets faster on kernels for dense tensors, which multiply the zeros. From `until` on, kernels may skip them.

    Attributes:
        grow: What is grown: the weights with the largest `gradient` (RigL), or `random` ones (SET, with the schedule
            of RigL's authors).
        drop: What is dropped: the weights of the smallest `magnitude`, or `random` ones, which with `grow=random` is
            the random twin.
        fraction: Share of the active weights that an update at the beginning would replace. 0 keeps the connections of
            the beginning.
        every: Steps between two updates.
        until: Share of the training after which the connections stay as they are.
    """

    source: ClassVar[str] = "Evci et al., Rigging the Lottery, ICML 2020; Mocanu et al., SET, 2018"
    random_twin: ClassVar[Mapping[str, Any]] = {"grow": "random", "drop": "random"}
    tuning: ClassVar[Sequence[Tuning]] = (
        Tuning(trials=0, chosen_on="publication", source="the paper's; `every` only in `paper`"),
    )

    grow: Literal["gradient", "random"] = "gradient"
    drop: Literal["magnitude", "random"] = "magnitude"
    fraction: Annotated[float, Interval(ge=0, lt=1), Search(0.1, 0.5)] = 0.3
    every: Annotated[int, Ge(1), Search(0.25, 4, log=True, relative=True)] = 100
    until: Annotated[float, Interval(gt=0, le=1)] = 0.75

    @classmethod
    def defaults(cls, task: str, preset: str) -> dict[str, Any]:
        """The short presets have few steps, so that connections have to change more often."""
        return {} if preset == "paper" else {"every": 5}

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.structure != "unstructured":
            raise ValueError(f"structure is {self.structure}; single weights are dropped and grown: use unstructured")
        if self.distribution == "global":
            raise ValueError(
                "distribution is global; the scores of the first connections are random: use erdos_renyi or uniform"
            )

    def setup(self, ctx: Context) -> None:
        super().setup(ctx)
        self.set_masks(self.choose_masks(self._scores("random", "connections", ctx), self.sparsity))

    def _scores(self, rule: str, purpose: str, ctx: Context) -> dict[str, Tensor]:
        """Return the score of every weight by a rule; random numbers are the same on all ranks."""
        generator = torch.Generator().manual_seed(random_key(ctx.seed, ctx.step, 0, "hook", purpose))
        random = partial(uniform_random, generator=generator)
        rules: dict[str, Callable[[Tensor], Tensor]] = {"magnitude": magnitude, "gradient": gradient, "random": random}
        return {name: rules[rule](weight) for name, weight in self.weights(ctx).items()}

    def updates(self, ctx: Context) -> bool:
        """Return whether the running step updates the masks."""
        return self.fraction > 0 and ctx.progress < self.until and periodic(ctx.step, self.every)

    def update_masks(self, ctx: Context) -> Any:
        if ctx.progress >= self.until or not self.fraction:
            self.end_updates(ctx)
        if not self.updates(ctx):
            return None
        share, masks = self.fraction * cosine(ctx.progress, self.until), {}
        drop, grow = self._scores(self.drop, "drop", ctx), self._scores(self.grow, "grow", ctx)
        for name, weight in self.weights(ctx).items():
            active = self.masks[name]
            masks[name] = replaced(active, share, drop[name], grow[name])
            _forget(weight, masks[name] & ~active, ctx)
        self.set_masks(masks)
        return SKIP_STEP

    def density(self, name: str, ctx: Context) -> Density:
        """The weight gradient is dense in updates that read the gradients of masked weights."""
        density = super().density(name, ctx)
        return density._replace(wgrad=1.0) if self.grow == "gradient" and self.updates(ctx) else density


def replaced(active: Tensor, share: float, drop: Tensor, grow: Tensor) -> Tensor:
    """Return the mask of a layer after an update, with as many weights as before.

    Args:
        active: Mask of the active weights.
        share: Share of them to replace, rounded down.
        drop: Scores, not negative; the active weights with the smallest are dropped.
        grow: Scores, not negative; the weights with the largest are grown. A weight that was just dropped may be, too.
    """
    count = int(active.sum())
    number = int(share * count)
    kept = strongest(drop.where(active, -1.0), count - number)
    return kept | strongest(grow.where(~kept, -1.0), number)


@torch.no_grad()
def _forget(weight: Tensor, grown: Tensor, ctx: Context) -> None:
    """Set new weights to zero, and all that the optimizer has accumulated for them (`reset_momentum`)."""
    weight.masked_fill_(grown, 0.0)  # not yet zero if the steps so far were left out, with infinite gradients
    assert ctx.optimizer is not None
    for value in ctx.optimizer.state.get(weight, {}).values():
        if isinstance(value, Tensor) and value.shape == weight.shape:
            value.masked_fill_(grown, 0.0)
