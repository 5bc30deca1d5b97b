"""Networks with removed channels: by a plan for a share of the FLOPs, and by PruneTrain."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np
from torch import nn

from benchmarks.steps.training_steps import CLASSES, SHAPE
from methods.prunetrain import PruneTrain
from suite.engine.cost.flops import count_model
from suite.engine.network.channels.spaces import find_index_spaces
from suite.engine.network.channels.surgery import apply_plan
from suite.index_spaces import IndexSpaces
from suite.method import Context, Method, ReconfigPlan
from suite.ops import apply

SPREAD = 0.5  # relative half-width of the remaining shares of index spaces around their mean


class Cut(Method):
    """Dense training of a network that is cut before training; for these measurements only."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.plans: Sequence[ReconfigPlan] = ()

    def begin(self, ctx: Context) -> Sequence[ReconfigPlan]:
        return self.plans


def cut(plans: Sequence[ReconfigPlan]) -> Cut:
    method = Cut()
    method.plans = [ReconfigPlan(one.kept, one.removed_branches, one.gated) for one in plans]
    return method


def final_plan(model: nn.Module, share: float, round_to: int) -> ReconfigPlan:
    """Return a plan that leaves about this share of the inference FLOPs, with different shares per index space.

    Args:
        model: Model without cuts.
        share: Remaining share of the inference FLOPs.
        round_to: Channel counts are rounded up to multiples of this, as in PruneTrain.
    """
    spaces = find_index_spaces(model, SHAPE)
    free = [space for space in spaces.values() if not space.frozen]
    factors = np.random.default_rng(0).uniform(1 - SPREAD, 1 + SPREAD, len(free))

    def plan(level: float) -> ReconfigPlan:
        kept = {}
        for space, factor in zip(free, factors, strict=True):
            count = max(1, round(min(1.0, level * factor) * space.size))
            kept[space.name] = space.original[: min(space.size, -(-count // round_to) * round_to)]
        return ReconfigPlan(kept=kept)

    whole = count_model(model, SHAPE)["inference_flops"]
    low, high = 0.0, 1.0 / (1 - SPREAD)
    for _ in range(20):
        middle = (low + high) / 2
        fits = count_model(smaller(model, [plan(middle)]), SHAPE)["inference_flops"] <= share * whole
        low, high = (middle, high) if fits else (low, middle)
    return plan(low)


def smaller(model: nn.Module, plans: Sequence[ReconfigPlan]) -> nn.Module:
    """Return a copy of a network with plans applied."""
    copied = copy.deepcopy(model)
    spaces = find_index_spaces(copied, SHAPE)
    for plan in plans:
        apply_plan(copied, plan, spaces, None)
    return copied


def by_prunetrain(model: nn.Module, spaces: IndexSpaces, gating: bool) -> ReconfigPlan:
    """Return the plan of PruneTrain for a network with its present weights."""
    copied = copy.deepcopy(model)
    method = PruneTrain(interval=1, gating=gating)
    hooks = apply(copied, method, input_shape=SHAPE, num_classes=CLASSES, epochs=1, batch_size=1)
    plan = hooks.plan_epoch_end()
    assert plan is not None
    if gating:
        assert plan.gated, [spaces.why_not_gated(space, dict(model.named_modules())) for space in spaces.values()]
    return plan
