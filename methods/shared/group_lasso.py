"""Pruning channels that a group lasso drove to zero: what PruneTrain and its baselines have in common.

Source: Lym, Choukse, Zangeneh, Wen, Sanghavi, Erez, "PruneTrain: Fast Neural Network Training by Dynamic Sparse Model
Reconfiguration", SC 2019. `docs/methods/prunetrain.md` says what differs here.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn

from methods.shared.lasso import (
    arithmetic,
    channel_peaks,
    lasso_layers,
    penalty,
    soft_threshold,
    soft_threshold_arithmetic,
)
from suite.index_spaces import IndexSpace
from suite.method import Context, Method, ReconfigPlan


class GroupLasso(Method):
    """A lasso over the output and input channels of every layer; a subclass says when dead channels are cut out.

    Attributes:
        ratio: share of the penalty in the whole loss at the first step (the penalty ratio); fixes the coefficient.
        threshold: a channel of a tensor is dead when all its |w| are below.
        coefficient: `global`, one for all groups; or `size`, times the square root of the group's number of weights.
        update: `subgradient`, the penalty is part of the loss; or `proximal`, groups are shrunk by learning rate times
            coefficient after each step instead.
        zeroing: what a reconfiguration sets to zero: every `dead` group, also in channels that another layer still
            needs; or only those of `removed` channels.
        round_to: channels of a space are cut to a multiple of this; what fills up are the strongest of the dead ones.
            8 and 16 suit the vectors of CPUs and the tensor cores of GPUs.
        gating: at nodes of a residual network each layer is cut by itself, its channels gathered out of the node's and
            scattered into them, in place of the union over all of them.
        watch: the largest |w| of each output channel of each layer goes into `epochs.jsonl`, every epoch, as it was
            before anything was set to zero. About 13 bytes a channel and epoch; changes nothing else.
    """

    ratio: float = 0.2
    threshold: float = 1e-4
    coefficient: Literal["global", "size"] = "global"
    update: Literal["subgradient", "proximal"] = "subgradient"
    zeroing: Literal["dead", "removed"] = "dead"
    round_to: int = 1
    gating: bool = False
    watch: bool = False

    @classmethod
    def defaults(cls, task: str, preset: str) -> dict[str, Any]:
        """As published for `paper`; the short presets cut by a coarser threshold.

        `quick`'s threshold was chosen on validation images. `smoke` trains for a few dozen steps, in which weights
        hardly leave their initial range: its thresholds lie inside that range, so that some channels go.
        """
        if preset == "quick":
            return {"ratio": 0.18, "threshold": 3e-2, "zeroing": "removed"}
        if preset == "smoke":
            return {"threshold": 5e-2 if task == "digits" else 3.5e-2}
        return {"ratio": 0.25} if task == "imagenet" else {}

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.ratio < 1:
            raise ValueError(f"ratio is {self.ratio}; a share of the loss lies between 0 and 1")
        if not self.threshold > 0:
            raise ValueError(f"threshold is {self.threshold}; it must be positive")
        if self.round_to < 1:
            raise ValueError(f"round_to is {self.round_to}; the smallest is 1")
        self._by_size = self.coefficient == "size"
        self._penalty_coefficient: float | None = None
        self._watched: dict[str, Any] = {}

    def cuts_now(self, ctx: Context) -> bool:
        """Whether the epoch that has just ended is one after which dead channels are cut out."""
        raise NotImplementedError

    def setup(self, ctx: Context) -> None:
        if ctx.spaces.not_followed:
            raise ValueError(f"the channels of this model cannot be followed: {'; '.join(ctx.spaces.not_followed)}")
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
        if self.watch:
            self._watched = {name: _peaks(name, layer, ctx) for name, layer in ctx.layers.items()}
        if not self.cuts_now(ctx):
            return
        dead, spared, removed = [], [], []
        for space in self._prunable(ctx):
            stays, dead_ones = self._channels_that_stay(space, ctx)
            for _, weight, axis, entries in ctx.spaces.weights(space, ctx.layers):
                rows, at = weight.data.movedim(axis, 0), entries.to(weight.device)
                removed.append((rows, at[~stays].flatten()))
                if self.zeroing == "dead":
                    dead.append((rows, at[channel_peaks(weight, axis, entries) < self.threshold].flatten()))
                    kept = at[dead_ones].flatten()
                    spared.append((rows, kept, rows[kept]))
        for rows, places in dead:
            rows[places] = 0.0
        for rows, places, values in spared:
            rows[places] = values
        for rows, places in removed:  # last: what is spared has entries in the channels that go
            rows[places] = 0.0

    def reconfigure(self, ctx: Context) -> ReconfigPlan | None:
        """What is dead goes; after the last epoch too where it is one: what is reported is the smaller network."""
        if not self.cuts_now(ctx):
            return None
        kept: dict[str, list[int]] = {}
        for space in self._prunable(ctx):
            stays, _ = self._channels_that_stay(space, ctx)
            if not stays.all():
                kept[space.name] = list(itertools.compress(space.original, stays.tolist()))
        # A branch with no channel left inside emits a constant, whatever its input (Sec. 4.1, layer removal).
        branches = ctx.spaces.removable_branches
        removed = [name for name, branch in branches.items() if any(kept.get(space) == [] for space in branch.spaces)]
        if not (kept or removed):
            return None
        nodes = [name for name, own in self._nodes(ctx).items() if any(part.name in kept for part in own)]
        return ReconfigPlan(kept=kept, removed_branches=tuple(removed), gated=tuple(nodes))

    def _prunable(self, ctx: Context) -> list[IndexSpace]:
        """The spaces that may shrink; of a node whose layers are to be gated, those that gating makes of it."""
        nodes = self._nodes(ctx)
        return [
            part
            for space in ctx.spaces.values()
            if not space.frozen
            for part in nodes.get(space.name, [space])
            if ctx.spaces.weights(part, ctx.layers)
        ]

    def _nodes(self, ctx: Context) -> dict[str, list[IndexSpace]]:
        """The spaces that several layers produce or consume, with those that gating makes of them; none without it."""
        if not self.gating:
            return {}
        return {
            space.name: ctx.spaces.split_by_gating(space)
            for space in ctx.spaces.values()
            if max(len(space.producers), len(space.consumers)) > 1
            and not space.may_be_empty
            and not ctx.spaces.why_not_gated(space, ctx.layers)
        }

    def _channels_that_stay(self, space: IndexSpace, ctx: Context) -> tuple[Tensor, Tensor]:
        """The channel union: which channels stay, and which of these are dead, both (size,) bool.

        A channel is dead only if it is in every producer and every consumer. Dead ones stay where a space has to keep
        a channel, or to fill up to a multiple of `round_to`: the strongest.
        """
        weights = ctx.spaces.weights(space, ctx.layers)
        peaks = torch.stack([channel_peaks(*own[1:]) for own in weights]).amax(0)
        alive = ~(peaks < self.threshold)  # a NaN is not below
        count, least = int(alive.sum()), 0 if space.may_be_empty else 1
        wanted = min(space.size, -(-max(count, least) // self.round_to) * self.round_to)
        stays = alive.clone()
        stays[torch.where(alive, -1.0, peaks).argsort(descending=True, stable=True)[: wanted - count]] = True
        return stays, stays & ~alive

    def overhead(self, name: str, samples: int, ctx: Context) -> float:
        """Operations of the lasso on this layer (`methods.shared.lasso`); they do not depend on the batch."""
        layer = lasso_layers({name: ctx.layers[name]}, ctx.spaces).get(name)
        if layer is None:
            return 0.0
        return arithmetic(layer) if self.update == "subgradient" else soft_threshold_arithmetic(layer)

    def record(self, ctx: Context) -> Mapping[str, Any]:
        return {"peaks": self._watched} if self.watch else {}

    def state_dict(self) -> dict[str, Any]:
        return {"penalty_coefficient": self._penalty_coefficient}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._penalty_coefficient = state["penalty_coefficient"]


def _peaks(name: str, layer: nn.Module, ctx: Context) -> dict[str, list[Any]]:
    """The output channels that a layer has, by their original numbers, and the largest |w| of each, to three digits."""
    weight = layer.weight
    assert isinstance(weight, Tensor)
    channels = ctx.spaces.original_outputs(name, len(weight))
    peaks = weight.detach().flatten(1).abs().amax(1).tolist()
    return {"channels": channels, "peaks": [float(f"{peak:.3g}") for peak in peaks]}
