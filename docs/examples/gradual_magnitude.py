"""Gradual magnitude pruning: an example of masks by a schedule. `methods/gmp.py` is a complete method."""

from methods.masks.masking import MaskedMethod
from methods.masks.schedules import cubic, periodic
from suite.registry import register


@register("method", "gradual_magnitude")
class GradualMagnitude(MaskedMethod):
    """Mask the smallest weights, more and more of them.

    Attributes:
        every: Steps between two updates of the masks.
    """

    every: int = 5

    def sparsity_now(self, ctx):
        if ctx.progress < 0.2 or not periodic(ctx.step, self.every):
            return None
        return self.sparsity * cubic(ctx.progress, begin=0.2, end=0.8)
