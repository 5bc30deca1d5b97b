"""Block-wise stochastic depth: random residual branches are left out of each training step.

Source: Huang, Sun, Liu, Sedra, Weinberger, "Deep Networks with Stochastic Depth", ECCV 2016 (arXiv 1603.09382).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar

from annotated_types import Interval

from suite.method import Context, Method
from suite.plan import random_key
from suite.recipe import Tuning
from suite.registry import register


@register("method", "stochastic_depth")
class StochasticDepth(Method):
    """Way without pruning: each step leaves out random residual branches (stochastic depth).

    A branch is left out for the whole batch, and is computed neither forward nor backward. Its parameters, their
    momentum and its batch statistics then stay as they are; in the published code, momentum and decay go on. Branches
    with a projection in the shortcut count too, as in the paper.

    The output of a branch that stays is divided by the probability of staying, so that the trained network is an
    ordinary one. The paper multiplies by this probability in evaluation instead. The mean of a branch's output over
    the steps is the output in evaluation either way.

    Attributes:
        drop: Probability with which a step leaves out the last branch. It rises linearly along the network: that of
            branch l of L is `l / L * drop`, so that the first branch is left out sometimes, too.
    """

    prunes: ClassVar[bool] = False
    source: ClassVar[str] = "Huang et al., Deep Networks with Stochastic Depth, ECCV 2016"
    tuning: ClassVar[Sequence[Tuning]] = (
        Tuning(trials=0, chosen_on="publication", source="p_L = 0.5 in the paper; equal in all presets"),
    )

    drop: Annotated[float, Interval(gt=0, lt=1)] = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.ignore:
            raise ValueError("stochastic depth prunes no layer, so that ignore leaves none out")

    def setup(self, ctx: Context) -> None:
        branches = {*ctx.spaces.removable_branches, *ctx.spaces.fixed_branches}
        if not branches:
            raise ValueError(
                "no branch of this model can be left out: none of its blocks declares a residual_branch, as those of "
                "resnet32 and resnet9 do"
            )
        in_order = [name for name, _ in ctx.model.named_modules() if name in branches]
        self._drops = {name: self.drop * number / len(in_order) for number, name in enumerate(in_order, start=1)}

    def branch_factors(self, ctx: Context) -> Mapping[str, float]:
        """Draw the branches of a step: 0 for those left out, and 1 / (1 - probability) for the others."""
        return {name: 0.0 if _draw(ctx, name) < drop else 1 / (1 - drop) for name, drop in self._drops.items()}


def _draw(ctx: Context, name: str) -> float:
    """Return a uniform random number in [0, 1] of a branch in the running step, equal on all ranks."""
    return random_key(ctx.seed, ctx.step, 0, "branch", name) / 2**63
