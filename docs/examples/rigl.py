"""RigL (Evci et al., 2020): masks of a fixed density; the smallest weights are dropped, the largest gradients grown."""

import math

import torch

from suite.method import SKIP_STEP, Density, Method
from suite.registry import register


@register("method", "rigl")
class RigL(Method):
    """RigL with the same density in every layer.

    Attributes:
        kept: Share of the weights of each layer that are not masked.
        interval: Number of steps between two updates of the masks.
        moved: Share of the unmasked weights that the first update replaces; it falls to 0 by a cosine.
        end: Share of the training after which the masks no longer change.
    """

    kept: float = 0.2
    interval: int = 4
    moved: float = 0.3
    end: float = 0.75

    def setup(self, ctx):
        generator = torch.Generator().manual_seed(ctx.seed)
        self.masks = {}
        for name, layer in ctx.layers.items():
            scores = torch.rand(layer.weight.shape, generator=generator)
            self.masks[name] = largest(scores, round(self.kept * scores.numel())).to(layer.weight)

    def begin(self, ctx):
        self.apply_masks(ctx)
        return ()

    def before_optimizer_step(self, ctx):
        if not self.updates(ctx):
            return None
        share = self.moved / 2 * (1 + math.cos(math.pi * ctx.progress / self.end))
        for name, layer in ctx.layers.items():
            mask, count = self.masks[name], int(self.masks[name].sum())
            dropped = round(share * count)
            remaining = largest(torch.where(mask > 0, layer.weight.detach().abs(), -1), count - dropped)
            grown = largest(torch.where(mask > 0, -1, layer.weight.grad.abs()), dropped)
            self.masks[name] = (remaining | grown).to(mask)
        return SKIP_STEP  # as published, a step changes either the masks or the weights

    def after_optimizer_step(self, ctx):
        self.apply_masks(ctx)

    def apply_masks(self, ctx):
        for name, layer in ctx.layers.items():
            layer.weight.data.mul_(self.masks[name])

    def updates(self, ctx):
        return ctx.progress < self.end and ctx.step % self.interval == self.interval - 1

    def density(self, name, ctx):
        share = self.masks[name].mean().item()
        return Density(share, share, 1.0 if self.updates(ctx) else share)  # growing needs the gradient of all weights

    def state_dict(self):
        return {"masks": self.masks}

    def load_state_dict(self, state):
        self.masks = state["masks"]


def largest(scores, count):
    """Return a boolean mask of the `count` largest scores."""
    order = scores.flatten().argsort(descending=True)
    return torch.zeros_like(scores, dtype=torch.bool).view(-1).index_fill_(0, order[:count], True).view_as(scores)
