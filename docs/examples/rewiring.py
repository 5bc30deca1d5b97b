"""Rewiring: an example of masks whose connections are dropped and grown. `methods/rigl.py` is a complete method."""

import torch

from methods.masks.masking import MaskedMethod
from methods.masks.schedules import periodic
from methods.masks.scores import magnitude, uniform_random
from methods.masks.structures import strongest
from suite.method import SKIP_STEP
from suite.plan import random_key
from suite.registry import register


@register("method", "rewiring")
class Rewiring(MaskedMethod):
    """Train sparse weights from the first step, and replace the smallest by random others.

    Attributes:
        share: Share of the remaining weights that an update replaces.
        every: Steps between two updates.
    """

    share: float = 0.2
    every: int = 5

    def setup(self, ctx):
        super().setup(ctx)
        self.set_masks(self.choose_masks(self.random_scores(ctx), self.sparsity))

    def random_scores(self, ctx):
        generator = torch.Generator().manual_seed(random_key(ctx.seed, ctx.step, 0, "hook", "rewiring"))
        return {name: uniform_random(weight, generator) for name, weight in self.weights(ctx).items()}

    def update_masks(self, ctx):
        if not periodic(ctx.step, self.every):
            return None
        random, masks = self.random_scores(ctx), {}
        for name, weight in self.weights(ctx).items():
            active = self.masks[name]
            replaced = int(self.share * active.sum())
            kept = strongest(magnitude(weight).where(active, -1.0), int(active.sum()) - replaced)
            masks[name] = kept | strongest(random[name].where(~kept, -1.0), replaced)
        self.set_masks(masks)
        return SKIP_STEP  # this step changes the masks, and not the weights
