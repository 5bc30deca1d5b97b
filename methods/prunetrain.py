"""PruneTrain: a group lasso drives channels to zero, and the network is rebuilt smaller while it trains.

Source: Lym, Choukse, Zangeneh, Wen, Sanghavi, Erez, "PruneTrain: Fast Neural Network Training by Dynamic Sparse Model
Reconfiguration", SC 2019. `docs/methods/prunetrain.md` says what differs here.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from methods.lasso import (
    arithmetic,
    channel_peaks,
    lasso_layers,
    penalty,
    soft_threshold,
    soft_threshold_arithmetic,
    weights_of,
)
from suite.method import Context, Method, ReconfigPlan
from suite.registry import register
from suite.surgery import IndexSpace


@register("method", "prunetrain")
class PruneTrain(Method):
    """PruneTrain: group lasso over channels; channels that are zero everywhere are cut out of the network as it trains.

    Attributes:
        ratio: share of the penalty in the whole loss at the first step (the penalty ratio); fixes the coefficient.
        interval: epochs between reconfigurations.
        threshold: a channel of a tensor is dead when all its |w| are below.
        coefficient: `global`, one for all groups; or `size`, times the square root of the group's number of weights.
        update: `subgradient`, the penalty is part of the loss; or `proximal`, groups are shrunk by learning rate times
            coefficient after each step instead.
        zeroing: what a reconfiguration sets to zero: every `dead` group, also in channels that another layer still
            needs; or only those of `removed` channels.
    """

    source: ClassVar[str] = "Lym et al., PruneTrain, SC 2019"

    ratio: float = 0.2
    interval: int = 10
    threshold: float = 1e-4
    coefficient: Literal["global", "size"] = "global"
    update: Literal["subgradient", "proximal"] = "subgradient"
    zeroing: Literal["dead", "removed"] = "dead"

    @classmethod
    def defaults(cls, task: str, preset: str) -> dict[str, Any]:
        """As published for `paper`; the short presets cut every epoch, and by a coarser threshold.

        `quick`'s threshold was chosen on validation images. `smoke` trains for a few dozen steps, in which weights
        hardly leave their initial range: its thresholds lie inside that range, so that some channels go.
        """
        if preset == "quick":
            return {"ratio": 0.18, "interval": 1, "threshold": 3e-2, "zeroing": "removed"}
        if preset == "smoke":
            return {"interval": 1, "threshold": 5e-2 if task == "digits" else 3.5e-2}
        return {"ratio": 0.25, "interval": 5} if task == "imagenet" else {}

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.ratio < 1:
            raise ValueError(f"ratio is {self.ratio}; a share of the loss lies between 0 and 1")
        if self.interval < 1:
            raise ValueError(f"interval is {self.interval}; the smallest is 1 epoch")
        if not self.threshold > 0:
            raise ValueError(f"threshold is {self.threshold}; it must be positive")
        self._by_size = self.coefficient == "size"
        self._penalty_coefficient: float | None = None

    def setup(self, ctx: Context) -> None:
        self._ctx = ctx
        if all(space.frozen for space in ctx.spaces.values()):
            reasons = dict.fromkeys(space.frozen_because for space in ctx.spaces.values())
            raise ValueError(f"no channel of this model can be cut out: {'; '.join(reasons)}")

    def regularization(self, model: nn.Module, ctx: Context) -> Tensor | None:
        if self.update == "proximal" and self._penalty_coefficient is not None:
            return None
        total = penalty(lasso_layers(ctx.layers, ctx.spaces).values(), self._by_size)
        if self._penalty_coefficient is None:
            assert ctx.task_loss is not None
            # ratio = coefficient * P / (task loss + coefficient * P), solved at the first step (Sec. 4.1, Eq. 3).
            coefficient = self.ratio * ctx.task_loss.item() / ((1 - self.ratio) * total.item())
            if not math.isfinite(coefficient):
                return None  # a diverged first step, which the trainer skips or ends; nothing to fix a coefficient by
            self._penalty_coefficient = coefficient
        return self._penalty_coefficient * total if self.update == "subgradient" else None

    def after_optimizer_step(self, ctx: Context) -> None:
        if self.update == "subgradient" or self._penalty_coefficient is None:
            return
        assert ctx.optimizer is not None
        rates = {id(weight): group["lr"] for group in ctx.optimizer.param_groups for weight in group["params"]}
        for layer in lasso_layers(ctx.layers, ctx.spaces).values():
            rate = rates.get(id(layer.weight), 0.0)  # a weight that the optimizer does not train stays as it is
            soft_threshold(layer, rate * self._penalty_coefficient, self._by_size)

    def on_epoch_end(self, ctx: Context) -> None:
        """Before a reconfiguration, set to zero what is dead: cutting it then changes no output in evaluation.

        All that is zeroed lies under the threshold, so that no other group falls under it by this.
        """
        if ctx.epochs_done % self.interval:
            return
        spared = []  # the weights of a last channel that has to stay, which groups of the other axis would zero too
        dead = []
        for space in _prunable(ctx):
            stays, forced = self._channels_that_stay(space, ctx)
            for weight, axis, block in weights_of(space, ctx.layers):
                channels = weight.data.movedim(axis, 0).unflatten(0, (-1, block))
                is_dead = channel_peaks(weight, axis, block) < self.threshold
                dead.append((channels, is_dead if self.zeroing == "dead" else ~stays))
                if forced:
                    spared.append((channels, stays, channels[stays]))
        for channels, is_zeroed in dead:
            channels[is_zeroed] = 0.0
        for channels, stays, values in spared:
            channels[stays] = values

    def reconfigure(self, ctx: Context) -> ReconfigPlan | None:
        """Every `interval` epochs, after the last one too where it divides: what is reported is the smaller network."""
        if ctx.epochs_done % self.interval:
            return None
        kept: dict[str, list[int]] = {}
        for space in _prunable(ctx):
            stays, _ = self._channels_that_stay(space, ctx)
            if not stays.all():
                kept[space.name] = list(itertools.compress(space.original, stays.tolist()))
        # A branch with no channel left inside emits a constant, whatever its input (Sec. 4.1, layer removal).
        branches = ctx.spaces.removable_branches
        removed = [name for name, branch in branches.items() if any(kept.get(space) == [] for space in branch.spaces)]
        return ReconfigPlan(kept=kept, removed_branches=tuple(removed)) if kept or removed else None

    def _channels_that_stay(self, space: IndexSpace, ctx: Context) -> tuple[Tensor, bool]:
        """The channel union, (size,) bool: a channel goes only if it is dead in every producer and every consumer.

        The second value says that all are dead, and that the strongest stays because one has to.
        """
        peaks = torch.stack([channel_peaks(*entry) for entry in weights_of(space, ctx.layers)]).amax(0)
        stays = ~(peaks < self.threshold)  # a NaN is not below
        forced = not (stays.any() or space.may_be_empty)
        if forced:
            stays[peaks.argmax()] = True
        return stays, forced

    def overhead(self, name: str, samples: int) -> float:
        """Operations of the lasso on this layer, as `methods.lasso` counts them; they do not depend on the batch."""
        layer = lasso_layers({name: self._ctx.layers[name]}, self._ctx.spaces).get(name)
        if layer is None:
            return 0.0
        return arithmetic(layer) if self.update == "subgradient" else soft_threshold_arithmetic(layer)

    def state_dict(self) -> dict[str, Any]:
        return {"penalty_coefficient": self._penalty_coefficient}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._penalty_coefficient = state["penalty_coefficient"]


def _prunable(ctx: Context) -> list[IndexSpace]:
    return [space for space in ctx.spaces.values() if not space.frozen and space.producers]
