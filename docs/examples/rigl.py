"""RigL: training with sparse weights from the first step, whose connections are dropped and grown."""

from typing import Annotated, ClassVar

import torch
from annotated_types import Ge, Interval

from methods.masks.masking import MaskedMethod
from methods.masks.schedules import cosine, periodic
from methods.masks.scores import gradient, magnitude, uniform_random
from methods.masks.structures import strongest
from suite.method import SKIP_STEP
from suite.registry import register


@register("method", "rigl")
class RigL(MaskedMethod):
    """RigL: random sparse weights whose smallest are replaced, every few steps, where gradients are largest.

    Attributes:
        fraction: Share of the remaining weights that the first update replaces; it falls to 0 along a cosine.
        every: Steps between two updates.
        until: Progress of the training after which the connections stay as they are.
    """

    source: ClassVar[str] = "Evci et al., Rigging the Lottery, ICML 2020"

    fraction: Annotated[float, Interval(gt=0, lt=1)] = 0.3
    every: Annotated[int, Ge(1)] = 100
    until: Annotated[float, Interval(gt=0, le=1)] = 0.75

    @classmethod
    def defaults(cls, task, preset):
        """The short presets have few steps, so that connections have to change more often."""
        return {} if preset == "paper" else {"every": 5}

    def setup(self, ctx):
        super().setup(ctx)
        generator = torch.Generator().manual_seed(ctx.key("connections"))
        scores = {name: uniform_random(weight, generator) for name, weight in self.weights(ctx).items()}
        self.set_masks(self.choose_masks(scores, self.sparsity))

    def updates(self, ctx):
        return ctx.progress < self.until and periodic(ctx.step, self.every)

    def update_masks(self, ctx):
        if not self.updates(ctx):
            return None
        share, masks = self.fraction * cosine(ctx.progress, self.until), {}
        for name, weight in self.weights(ctx).items():
            active = self.masks[name]
            count = int(active.sum())
            replaced = round(share * count)
            kept = strongest(magnitude(weight).where(active, -1.0), count - replaced)
            grown = strongest(gradient(weight).where(~kept, -1.0), replaced)
            masks[name] = kept | grown
        self.set_masks(masks)
        return SKIP_STEP  # as published: a step changes either the masks or the weights

    def density(self, name, ctx):
        """The weight gradient is dense in updates, which read the gradients of masked weights."""
        density = super().density(name, ctx)
        return density._replace(wgrad=1.0) if self.updates(ctx) else density
