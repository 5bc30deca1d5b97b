"""Early-Bird tickets: channels are removed once, as soon as the mask by scales of normalisation hardly changes.

Source: You, Li, Xu, Fu, Wang, Chen, Lin, Wang, Baraniuk, "Drawing Early-Bird Tickets: Toward More Efficient Training of
Deep Networks", ICLR 2020 (arXiv 1909.11957), and its code, https://github.com/GATECH-EIC/Early-Bird-Tickets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar

import torch
from annotated_types import Ge, Interval
from torch import Tensor

from methods.channels.cuts import is_due
from methods.channels.scales import ScalePenalty
from suite.method import Context, IndexMap, ReconfigPlan
from suite.parameters import Search
from suite.recipe import Tuning
from suite.registry import register

LOOKS = 5  # masks that are compared: `epoch_keep` of the authors' `main.py`


@register("method", "earlybird")
class EarlyBird(ScalePenalty):
    """Early-Bird tickets: Network Slimming that chooses the moment of its cut.

    The penalty, the threshold and the cut are those of `slimming`. From time to time a *look* makes the mask that a cut
    would make now: for each channel that `slimming` ranks, whether it remains. The distance of two masks is the share
    of entries that differ. The ticket is drawn at the first look whose mask has a distance of at most `distance` to
    each of the four masks before it (class `EarlyBird` of the authors' `main.py`). The network is cut by this mask at
    the end of the epoch, and the training goes on (`main_c.py`).

    Attributes:
        look_every: Share of the training between two looks, which follow steps. The authors look once in an epoch, at
            1/160 of the training.
        distance: Largest distance of a ticket to the four masks before it.
        latest: Share of the training after which the network is cut by its present mask, if no ticket was drawn.
        restart: Whether the schedule begins again after the cut, with the initial weights of the channels that remain
            (new ones in `main_scratch.py`). The training is longer then, by the epochs before the cut.
    """

    source: ClassVar[str] = "Early-Bird Tickets (You et al., ICLR 2020) and its code (GATECH-EIC/Early-Bird-Tickets)"
    tuning: ClassVar[Sequence[Tuning]] = (
        *ScalePenalty.tuning,
        Tuning(trials=0, chosen_on="other", source="look_every and latest, which the authors do not have"),
    )

    penalty_after: bool = True
    look_every: Annotated[float, Interval(gt=0, lt=1)] = 0.02
    distance: Annotated[float, Ge(0)] = 0.1
    latest: Annotated[float, Interval(gt=0, lt=1), Search(0.1, 0.5)] = 0.3
    restart: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if LOOKS * self.look_every > self.latest + 1e-9:
            raise ValueError(
                f"look_every is {self.look_every}; the {LOOKS}th look, which draws the first ticket, would come after "
                f"latest={self.latest}: take at most {self.latest / LOOKS:g}"
            )
        if self.restart and self.momentum == "kept":
            raise ValueError("momentum is kept; restart=true begins with a new state of the optimizer: use new")

    def setup(self, ctx: Context) -> None:
        super().setup(ctx)
        self.looks = 0  # the newest multiple of `look_every` with a look: a step may pass several of them
        self.newest: list[Tensor] = []  # the newest masks, (channels of all spaces,) bool, at most `LOOKS`
        self.distances: list[float] = []  # of the newest mask to those before it
        self.ticket: Tensor | None = None
        self.initial: dict[str, Tensor] = {}
        if self.restart:
            self.initial = {name: tensor.clone() for name, tensor in ctx.model.state_dict().items()}

    def after_optimizer_step(self, ctx: Context) -> None:
        self.look(ctx)

    def on_epoch_end(self, ctx: Context) -> None:
        self.look(ctx)

    def look(self, ctx: Context) -> None:
        """Look if a multiple of `look_every` has come since the last look; in a loop of one's own, after each epoch."""
        due = int(ctx.progress / self.look_every + 1e-9)
        if due <= self.looks or self.is_cut or self.ticket is not None:
            return
        self.looks = due
        mask = torch.cat([*self.masks(self.scores(ctx)).values()])
        self.newest = [*self.newest, mask][-LOOKS:]
        self.distances = [float((mask != other).double().mean()) for other in self.newest[:-1]]
        if len(self.newest) == LOOKS and max(self.distances) <= self.distance:
            self.ticket = mask

    def chosen(self, ctx: Context) -> dict[str, Tensor] | None:
        scores = self.scores(ctx)
        if self.ticket is not None:
            sizes = [len(score) for score in scores.values()]
            return dict(zip(scores, self.ticket.split(sizes), strict=True))
        return self.masks(scores) if is_due(self.latest, ctx) else None

    def reconfigure(self, ctx: Context) -> ReconfigPlan | None:
        plan = super().reconfigure(ctx)
        return ReconfigPlan(kept=plan.kept, restart=True) if plan and self.restart else plan

    def on_reconfigured(self, index_map: IndexMap, ctx: Context) -> None:
        super().on_reconfigured(index_map, ctx)
        if self.initial:
            for name, tensor in ctx.model.state_dict().items():
                tensor.copy_(index_map(name, self.initial[name]))
            self.initial = {}
        self.newest = []

    def record(self, ctx: Context) -> Mapping[str, Any]:
        return {
            **super().record(ctx),
            "looks": self.looks,
            "distances": self.distances,
            "drawn": self.ticket is not None,
        }

    def state_dict(self) -> dict[str, Any]:
        return {
            **super().state_dict(),
            "looks": self.looks,
            "newest": self.newest,
            "distances": self.distances,
            "ticket": self.ticket,
            "initial": self.initial,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self.looks, self.distances, self.initial = state["looks"], state["distances"], state["initial"]
        self.newest = [mask.cpu() for mask in state["newest"]]
        self.ticket = None if state["ticket"] is None else state["ticket"].cpu()
