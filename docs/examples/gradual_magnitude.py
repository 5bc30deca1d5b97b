"""Gradual magnitude pruning (Zhu and Gupta, 2017): the smallest weights of each layer are masked, more over time."""

from suite.method import Density, Method
from suite.registry import register


@register("method", "gradual_magnitude")
class GradualMagnitude(Method):
    """Gradual magnitude pruning of every layer, with a cubic schedule.

    Attributes:
        sparsity: Share of the weights that are zero at the end.
        end: Share of the training after which the masks no longer change.
    """

    sparsity: float = 0.8
    end: float = 0.75

    def setup(self, ctx):
        self.masks = {name: layer.weight.new_ones(layer.weight.shape) for name, layer in ctx.layers.items()}

    def after_optimizer_step(self, ctx):
        sparsity = self.sparsity * (1 - (1 - min(ctx.progress / self.end, 1)) ** 3)
        for name, layer in ctx.layers.items():
            weight, mask = layer.weight.data, self.masks[name]
            dropped = (weight.abs() * mask).flatten().argsort()[: round(sparsity * mask.numel())]
            mask.view(-1)[dropped] = 0
            weight.mul_(mask)

    def density(self, name, ctx):
        share = self.masks[name].mean().item()
        return Density(share, share, share)

    def state_dict(self):
        return {"masks": self.masks}

    def load_state_dict(self, state):
        self.masks = state["masks"]
