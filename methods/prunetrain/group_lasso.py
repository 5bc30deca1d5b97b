"""Removal of channels that a group lasso drives to zero: the common part of PruneTrain and its baselines.

Source: Lym, Choukse, Zangeneh, Wen, Sanghavi, Erez, "PruneTrain: Fast Neural Network Training by Dynamic Sparse Model
Reconfiguration", SC 2019. `docs/methods/prunetrain.md` lists the differences from the paper.
"""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

import torch
from annotated_types import Ge, Gt, Interval
from torch import Tensor, nn

from methods.channels.cuts import drawn, is_trained, refuse_frozen, rounded_width
from methods.prunetrain.lasso import (
    LassoHeads,
    LassoLayer,
    arithmetic,
    channel_peaks,
    head_arithmetic,
    lasso_heads,
    lasso_layers,
    soft_threshold,
    soft_threshold_arithmetic,
    soft_threshold_heads,
    total_penalty,
)
from methods.prunetrain.step_sizes import KNOWN, UnknownOptimizerError, adaptive, holders, known, step_size
from suite.index_spaces import IndexSpace
from suite.method import Context, Method, ReconfigPlan
from suite.parameters import Search, declared, show
from suite.recipe import Tuning


class GroupLasso(Method, ABC):
    """A lasso over output channels, input channels and heads. A subclass decides when dead ones are removed.

    Attributes:
        ratio: Share of the penalty in the whole loss at the first step (the penalty ratio); it fixes the coefficient.
        threshold: A channel of a tensor is dead if all its |w| are below this value.
        coefficient: Whether the coefficient of the penalty is the same for all groups (`global`), or multiplied by the
            square root of the number of weights in the group (`size`).
        update: Whether the penalty is part of the loss (`subgradient`), or groups are shrunk after each step by the
            learning rate times the coefficient instead (`proximal`). Adam, AdamW, NAdam, RMSprop and Adagrad need
            `proximal`, which then divides by the size of a group's gradients as they do; other adaptive optimizers are
            refused.
        zeroing: What a reconfiguration sets to zero: every `dead` group, also in channels that another layer still
            needs; or only the groups of `removed` channels.
        round_to: The number of channels of a space is rounded up to a multiple of this, by keeping the strongest dead
            ones. 8 and 16 suit the vectors of CPUs and the tensor cores of GPUs.
        gating: Whether the layers of a residual stage are cut individually, with gates that gather and scatter their
            channels; otherwise a channel is removed only if it is dead in all of them (channel union).
        selection: Which channels are removed. `lasso` removes dead ones. `random`, the random twin, draws channels from
            the seed: as many of each space, and after the same epochs, as the trial with `lasso` and otherwise equal
            parameters has removed. That trial runs first.
        watch: Whether `epochs.jsonl` stores, for every epoch, the largest |w| of each output channel before anything is
            set to zero: about 13 bytes per channel and epoch. It changes nothing else.
    """

    shrinks_network: ClassVar[bool] = True
    random_twin: ClassVar[Mapping[str, Any]] = {"selection": "random"}
    tuning: ClassVar[Sequence[Tuning]] = (
        Tuning(trials=0, chosen_on="publication", source="PruneTrain's paper and code", presets=("paper",)),
        Tuning(
            trials=8,
            chosen_on="validation images",
            source="prunetrain on cifar10, resnet9[width=0.25], so that more than 20 % of the inference FLOPs go: "
            "results/cpu-zen4-2cores/quick-tuning.csv, which has their test accuracies too",
            presets=("quick",),
        ),
        Tuning(trials=None, chosen_on="other", source="thresholds at which channels are removed", presets=("smoke",)),
    )

    ratio: Annotated[float, Interval(gt=0, lt=1), Search(0.05, 0.5, log=True)] = 0.2
    threshold: Annotated[float, Gt(0), Search(1 / 3, 3, log=True, relative=True)] = 1e-4
    coefficient: Literal["global", "size"] = "global"
    update: Literal["subgradient", "proximal"] = "subgradient"
    zeroing: Literal["dead", "removed"] = "dead"
    round_to: Annotated[int, Ge(1)] = 1
    gating: bool = False
    selection: Literal["lasso", "random"] = "lasso"
    watch: bool = False

    @classmethod
    def defaults(cls, task: str, preset: str) -> dict[str, Any]:
        """Use the published values for `paper`; the short presets have a larger threshold.

        The threshold of `quick` was chosen on validation images. `smoke` trains for a few dozen steps, in which weights
        hardly leave their initial range: its thresholds are within that range, so that some channels are removed.
        """
        if preset == "quick":
            return {"ratio": 0.18, "threshold": 3e-2, "zeroing": "removed"}
        if preset == "smoke":
            return {"threshold": 5e-2 if task == "digits" else 3.5e-2}
        return {"ratio": 0.25} if task == "imagenet" else {}

    def __post_init__(self) -> None:
        super().__post_init__()
        self._by_size = self.coefficient == "size"
        self._penalty_coefficient: float | None = None
        self._watched: dict[str, Any] = {}

    def depends_on(self) -> tuple[str, ...]:
        """Return the trial whose numbers of removed channels a random selection repeats."""
        if self.selection == "lasso":
            return ()
        own: type = type(self)
        values = {name: show(getattr(self, name)) for name in declared(own) if name != "selection"}
        # An empty text cannot be typed, and an empty list is the default.
        typed = ",".join(f"{name}={value}" for name, value in values.items() if value not in ("", "()"))
        return (f"{self.registered_name}[{typed}]",)

    @abstractmethod
    def cuts_now(self, ctx: Context) -> bool:
        """Return whether dead channels are removed after the epoch that has just ended."""

    def setup(self, ctx: Context) -> None:
        refuse_frozen(ctx)
        layers, heads = self._penalised(ctx)
        if not (layers or heads):
            untrained = [name for name, layer in ctx.layers.items() if not layer.weight.requires_grad]
            example = f", such as '{untrained[0]}'" if untrained else ""
            raise ValueError(
                "no channel of this model can be removed: each belongs to a layer whose weight is not trained "
                f"(requires_grad){example}"
            )

    def on_attached(self, ctx: Context) -> None:
        """Refuse adaptive optimizers under which the penalty drives no group to zero, or every group.

        These are all of them with the subgradient, and those with an unknown step size with the proximal update.
        """
        layers, heads = self._penalised(ctx)
        weights = [layer.weight for layer in layers.values()] + [part.weight for one in heads for part in one.parts]
        held = holders(ctx.optimizer)
        *most, last = [kind.__name__ for kind in KNOWN]
        working = f"{', '.join(most)} or {last} of torch.optim"
        holding = {id(held[id(weight)][0]): held[id(weight)][0] for weight in weights if id(weight) in held}
        for optimizer in holding.values():
            try:
                if not adaptive(optimizer):
                    continue
            except UnknownOptimizerError as error:
                raise ValueError(
                    f"{type(optimizer).__name__} does not show whether it divides by the size of the gradients, in "
                    f"which case the penalty removes nothing ({error}); use SGD, or update=proximal with {working}"
                ) from error
            if self.update == "subgradient":
                raise ValueError(
                    f"update=subgradient removes no channel with {type(optimizer).__name__}, which divides the penalty "
                    "by the size of the gradients, so that weights move around zero by the learning rate and stay "
                    f"above the threshold; use SGD, or update=proximal with {working}"
                )
            if not known(optimizer):
                raise ValueError(
                    f"update=proximal does not know the step size of {type(optimizer).__name__}, by which groups must "
                    f"shrink; use SGD, or {working}"
                )

    def regularization(self, model: nn.Module, ctx: Context) -> Tensor | None:
        if self.update == "proximal" and self._penalty_coefficient is not None:
            return None
        total = total_penalty(ctx.layers, ctx.spaces, self._by_size, self._untrained(ctx))
        if self._penalty_coefficient is None:
            assert ctx.task_loss is not None
            if not (cost := total.item()):
                return None  # all weights were frozen after `setup`; the first step that trains one fixes it
            # Solve ratio = coefficient * P / (task loss + coefficient * P) at the first step (Sec. 4.1, Eq. 3).
            coefficient = self.ratio * ctx.task_loss.item() / ((1 - self.ratio) * cost)
            if not math.isfinite(coefficient):
                return None  # the first step diverged; the trainer skips or ends it, and it gives no coefficient
            self._penalty_coefficient = coefficient
        return self._penalty_coefficient * total if self.update == "subgradient" else None

    def after_optimizer_step(self, ctx: Context) -> None:
        if self.update == "subgradient" or self._penalty_coefficient is None:
            return
        held = holders(ctx.optimizer)
        layers, several = self._penalised(ctx)
        for layer in layers.values():
            # Weights outside the optimizer are not changed.
            step = step_size(held, layer.weight).times(self._penalty_coefficient)
            soft_threshold(layer, step, self._by_size)
        for heads in several:
            steps = [step_size(held, part.weight).times(self._penalty_coefficient) for part in heads.parts]
            soft_threshold_heads(heads, steps, self._by_size)

    def on_epoch_end(self, ctx: Context) -> None:
        """Set dead groups to zero before a reconfiguration, so that removing them changes no output in evaluation.

        All values that are set to zero are below the threshold, so that no other group becomes dead by this.
        """
        if self.watch:
            self._watched = {name: _peaks(name, layer, ctx) for name, layer in ctx.layers.items()}
        if not self.cuts_now(ctx):
            return
        # Collect the entries of dead groups, of dead channels that remain, and of channels that will be removed.
        dead, spared, removed = [], [], []
        for space in self._prunable(ctx):
            remaining, dead_ones = self._remaining_channels(space, ctx)
            for _, weight, axis, entries in ctx.spaces.weights(space, ctx.layers):
                rows, at = weight.data.movedim(axis, 0), entries.to(weight.device)
                removed.append((rows, at[~remaining].flatten()))
                if self.zeroing == "dead":
                    dead.append((rows, at[channel_peaks(weight, axis, entries) < self.threshold].flatten()))
                    kept = at[dead_ones].flatten()
                    spared.append((rows, kept, rows[kept]))
        # Set them to zero; dead channels that remain keep their values.
        for rows, places in dead:
            rows[places] = 0.0
        for rows, places, values in spared:
            rows[places] = values
        for rows, places in removed:  # last: channels that remain have entries in removed ones
            rows[places] = 0.0

    def reconfigure(self, ctx: Context) -> ReconfigPlan | None:
        """Remove dead channels; also after the last epoch, so that the smaller network is reported."""
        if not self.cuts_now(ctx):
            return None
        kept: dict[str, list[int]] = {}
        for space in self._prunable(ctx):
            remaining, _ = self._remaining_channels(space, ctx)
            if not remaining.all():
                kept[space.name] = list(itertools.compress(space.original, remaining.tolist()))
        # A branch without channels emits a constant, whatever its input (Sec. 4.1, layer removal).
        branches = ctx.spaces.removable_branches
        removed = [name for name, branch in branches.items() if any(kept.get(space) == [] for space in branch.spaces)]
        if not (kept or removed):
            return None
        nodes = [name for name, own in self._nodes(ctx).items() if any(part.name in kept for part in own)]
        return ReconfigPlan(kept=kept, removed_branches=tuple(removed), gated=tuple(nodes))

    def _prunable(self, ctx: Context) -> list[IndexSpace]:
        """Return the spaces that may shrink; a space with gated layers is replaced by the spaces of these layers.

        A space with a weight that is not trained is left as it is.
        """
        nodes = self._nodes(ctx)
        return [
            part
            for space in ctx.spaces.values()
            if not space.frozen
            for part in nodes.get(space.name, [space])
            if is_trained(part, ctx)
        ]

    def _penalised(self, ctx: Context) -> tuple[dict[str, LassoLayer], list[LassoHeads]]:
        """Return the layers by name, and the heads, over which the penalty sums."""
        untrained = self._untrained(ctx)
        return lasso_layers(ctx.layers, ctx.spaces, untrained), lasso_heads(ctx.layers, ctx.spaces, untrained)

    def _untrained(self, ctx: Context) -> set[str]:
        """Return the names of the spaces that never shrink because one of their weights is not trained.

        Without this, the penalty would drive channels to zero that no reconfiguration removes.
        """
        if all(layer.weight.requires_grad for layer in ctx.layers.values()):
            return set()
        split = self._nodes(ctx)  # their layers shrink individually
        return {
            name
            for name, space in ctx.spaces.items()
            if name not in split and not all(one.weight.requires_grad for one in ctx.spaces.weights(space, ctx.layers))
        }

    def _nodes(self, ctx: Context) -> dict[str, list[IndexSpace]]:
        """Return the spaces to split by gating, each with the spaces of its layers; empty without gating."""
        if not self.gating:
            return {}
        return {
            space.name: ctx.spaces.split_by_gating(space)
            for space in ctx.spaces.values()
            if max(len(space.producers), len(space.consumers)) > 1
            and not space.may_be_empty
            and not ctx.spaces.why_not_gated(space, ctx.layers)
        }

    def _remaining_channels(self, space: IndexSpace, ctx: Context) -> tuple[Tensor, Tensor]:
        """Return which channels of a space remain, and which of these are dead, both (size,) bool (channel union).

        A channel is dead only if it is dead in every producer and consumer. The strongest dead channels remain if the
        space must keep a channel, or to reach a multiple of `round_to`.
        """
        weights = ctx.spaces.weights(space, ctx.layers)
        peaks = torch.stack([channel_peaks(*own[1:]) for own in weights]).amax(0)
        alive = ~(peaks < self.threshold)  # a NaN is not below the threshold
        count, least = int(alive.sum()), 0 if space.may_be_empty else 1
        wanted = rounded_width(max(count, least), space.size, self.round_to)
        remaining = alive.clone()
        remaining[torch.where(alive, -1.0, peaks).argsort(descending=True, stable=True)[: wanted - count]] = True
        if self.selection == "random":
            remaining = self._drawn_channels(space, ctx).to(alive.device)
        return remaining, remaining & ~alive

    def _drawn_channels(self, space: IndexSpace, ctx: Context) -> Tensor:
        """Return random channels of a space, (size,) bool: as many as remained in the trial without a random selection.

        Raises:
            ValueError: if that trial's result does not say when its network was changed.
        """
        other = ctx.others[GroupLasso.depends_on(self)[0]]
        if len(other.epochs) != len(other.reconfigurations):
            raise ValueError("selection=random needs the epochs of the other trial's reconfigurations")
        plan = dict(zip(other.epochs, other.reconfigurations, strict=True)).get(ctx.epochs_done, ReconfigPlan())
        count = len(plan.kept.get(space.name, space.original))
        return drawn(space, count, ctx)

    def overhead(self, name: str, samples: int, ctx: Context) -> float:
        """Return the operations of the lasso on this layer (`methods.prunetrain.lasso`), whatever the batch."""
        own, in_loss, untrained = {name: ctx.layers[name]}, self.update == "subgradient", self._untrained(ctx)
        per_weight, per_group = (4, 3) if in_loss else (3, 4)
        heads = lasso_heads(own, ctx.spaces, untrained)
        of_heads = sum(head_arithmetic(one, name, per_weight, per_group) for one in heads)
        layer = lasso_layers(own, ctx.spaces, untrained).get(name)
        if layer is None:
            return of_heads
        return of_heads + (arithmetic(layer) if in_loss else soft_threshold_arithmetic(layer))

    def record(self, ctx: Context) -> Mapping[str, Any]:
        return {"peaks": self._watched} if self.watch else {}

    def state_dict(self) -> dict[str, Any]:
        return {"penalty_coefficient": self._penalty_coefficient}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._penalty_coefficient = state["penalty_coefficient"]


def _peaks(name: str, layer: nn.Module, ctx: Context) -> dict[str, list[Any]]:
    """Return the original indices of a layer's output channels, and the largest |w| of each, to three digits."""
    weight = layer.weight
    assert isinstance(weight, Tensor)
    channels = ctx.spaces.original_outputs(name, len(weight))
    peaks = weight.detach().flatten(1).abs().amax(1).tolist()
    return {"channels": channels, "peaks": [float(f"{peak:.3g}") for peak in peaks]}
