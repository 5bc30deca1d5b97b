"""Penalty on the scales of normalisation, and one cut of the channels with the smallest ones."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

import torch
from annotated_types import Ge, Interval
from torch import Tensor, nn

from methods.channels.cuts import drawn, kept_channels, refuse_frozen, refuse_one_epoch, removable_spaces, rounded_width
from methods.masks.structures import strongest
from suite.index_spaces import IndexSpace
from suite.method import Context, IndexMap, Method, ReconfigPlan
from suite.parameters import Search
from suite.recipe import Tuning

NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.InstanceNorm2d, nn.GroupNorm)
OTHERS = "gradual_channels and prunetrain need none"


class ScalePenalty(Method, ABC):
    """L1 penalty on the scales of normalisation, and one cut by them. A subclass decides when.

    Attributes:
        strength: Factor of the penalty, the sum of the |scale| of all normalisations with channels that may be removed.
            0 leaves it out. Behind a concatenation, a normalisation may scale channels that stay, too.
        ratio: Share of the channels with the smallest |scale| of the whole network that is removed.
        round_to: The number of channels of a space is rounded up to a multiple of this, by keeping the strongest of
            those to be removed. 8 and 16 suit the vectors of CPUs and the tensor cores of GPUs.
        penalty_after: Whether the penalty goes on after the cut.
        momentum: Whether the optimizer begins with a `new` state after the cut, or goes on with the `kept` one.
        train_scales: Whether scales that the network itself does not train, such as airbench's, are trained too.
        selection: Which channels are removed. `scale`: those with the smallest ones. `random`, the random twin: as many
            of each space at the same moment, drawn from the seed. Until then the two trainings are the same.
    """

    shrinks_network: ClassVar[bool] = True
    random_twin: ClassVar[Mapping[str, Any]] = {"selection": "random"}
    tuning: ClassVar[Sequence[Tuning]] = (
        Tuning(trials=0, chosen_on="publication", source="the papers and their code", presets=("paper",)),
        Tuning(
            trials=None,
            chosen_on="other",
            source="ten times the published strength, since these trainings have a hundredth of the published steps",
            presets=("quick", "smoke"),
        ),
    )

    strength: Annotated[float, Ge(0), Search(1e-5, 1e-2, log=True)] = 1e-4
    ratio: Annotated[float, Interval(gt=0, lt=1), Search(0.1, 0.7)] = 0.4
    round_to: Annotated[int, Ge(1)] = 1
    penalty_after: bool = False
    momentum: Literal["new", "kept"] = "new"
    train_scales: bool = False
    selection: Literal["scale", "random"] = "scale"

    @classmethod
    def defaults(cls, task: str, preset: str) -> dict[str, Any]:
        return {} if preset == "paper" else {"strength": 1e-3}

    @abstractmethod
    def chosen(self, ctx: Context) -> dict[str, Tensor] | None:
        """Return the masks, by space, with which the network is cut after this epoch; `None` if it is not yet."""

    def setup(self, ctx: Context) -> None:
        refuse_frozen(ctx)
        refuse_one_epoch(ctx)
        # By name: the scale of a normalisation; and the name of one without any.
        found: dict[str, nn.Parameter] = {}
        without = ""
        for space in removable_spaces(ctx):
            for name, norm, _ in _norms(space, ctx.model):
                if norm.weight is None:
                    without = without or name
                else:
                    found[f"{name}.weight"] = norm.weight
        if self.train_scales:
            for scale in found.values():
                scale.requires_grad_(True)
        self.scales: list[Tensor] = [scale for scale in found.values() if scale.requires_grad]
        self.is_cut = False
        if self.scales:
            return
        if found:
            what = f"the scales of normalisation are not trained, such as '{next(iter(found))}'"
            raise ValueError(f"{what} (requires_grad): train_scales=true trains them; {OTHERS}")
        if without:
            raise ValueError(f"normalisation has no scale, such as that of '{without}' (affine=False); {OTHERS}")
        raise ValueError(
            "no channel that can be removed has a scale of batch, instance or group normalisation (layer normalisation "
            f"is not followed); {OTHERS}"
        )

    def regularization(self, model: nn.Module, ctx: Context) -> Tensor | None:
        """Return strength * sum |scale|, with the subgradient strength * sign(scale) (lambda in Liu 2017, Eq. 1)."""
        if self.strength == 0 or (self.is_cut and not self.penalty_after):
            return None
        return self.strength * torch.cat(self.scales).abs().sum()

    def scores(self, ctx: Context) -> dict[str, Tensor]:
        """Return the score of each channel, (size,) on the CPU, by space: its largest |scale|.

        A channel of a residual stage has a scale in each block. It is below a threshold in all of them, and may go, if
        its largest |scale| is (the channel union). A space without a trained scale has no scores.
        """
        result = {}
        for space in removable_spaces(ctx):
            found = [
                norm.weight.detach().abs()[entries.to(norm.weight.device)].amax(1)
                for _, norm, entries in _norms(space, ctx.model)
                if norm.weight is not None and norm.weight.requires_grad
            ]
            if found:
                result[space.name] = torch.stack(found).amax(0).float().cpu()
        return result

    def masks(self, scores: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return which channels a global threshold keeps, (size,) bool by space: all but the smallest scores."""
        every = torch.cat([*scores.values()])
        # Without `round`, 0.29 of 100 channels would be 28, because 0.29 * 100 is 28.999999999999996.
        kept = strongest(every, len(every) - math.floor(round(self.ratio * len(every), 6)))
        return dict(zip(scores, kept.split([len(score) for score in scores.values()]), strict=True))

    def reconfigure(self, ctx: Context) -> ReconfigPlan | None:
        if self.is_cut or (masks := self.chosen(ctx)) is None:
            return None
        self.is_cut = True
        remaining, scores = {}, self.scores(ctx)
        for name, mask in masks.items():
            # A space whose channels are all below the threshold keeps its strongest one.
            count = rounded_width(max(1, int(mask.sum())), len(mask), self.round_to)
            remaining[name] = strongest(torch.where(mask, math.inf, scores[name]), count)
            if self.selection == "random":
                remaining[name] = drawn(ctx.spaces[name], count, ctx)
        kept = kept_channels(remaining, ctx)
        return ReconfigPlan(kept=kept) if kept else None

    def on_reconfigured(self, index_map: IndexMap, ctx: Context) -> None:
        if self.momentum == "new" and ctx.optimizer is not None:
            ctx.optimizer.state.clear()

    def record(self, ctx: Context) -> Mapping[str, Any]:
        return {"cut": self.is_cut}

    def state_dict(self) -> dict[str, Any]:
        return {"is_cut": self.is_cut}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.is_cut = state["is_cut"]


def _norms(space: IndexSpace, model: nn.Module) -> Iterator[tuple[str, Any, Tensor]]:
    """Yield name, module and scale entries, (channels, entries per channel), of each normalisation of a space."""
    seen = set()
    for part in space.slices:
        norm = model.get_submodule(part.module)
        # One without a scale (affine=False) is found by its running mean, so that `setup` can name it.
        if isinstance(norm, NORMS) and part.module not in seen and part.attribute in ("weight", "running_mean"):
            seen.add(part.module)
            yield part.module, norm, part.entries
