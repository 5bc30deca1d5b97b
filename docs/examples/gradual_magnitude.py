"""Gradual magnitude pruning: the smallest weights are masked, more and more of them."""

from typing import Annotated, ClassVar

from annotated_types import Ge, Interval

from methods.masks.masking import MaskedMethod
from methods.masks.schedules import cubic, periodic
from suite.registry import register


@register("method", "gradual_magnitude")
class GradualMagnitude(MaskedMethod):
    """Gradual magnitude pruning: sparsity grows along a cubic schedule, and the smallest weights are masked.

    Attributes:
        start: Progress of the training at which pruning begins.
        end: Progress of the training at which the final sparsity is reached.
        every: Steps between two updates of the masks.
    """

    source: ClassVar[str] = "Zhu and Gupta, To Prune, or Not to Prune, 2017"

    start: Annotated[float, Interval(ge=0, lt=1)] = 0.2
    end: Annotated[float, Interval(gt=0, le=1)] = 0.8
    every: Annotated[int, Ge(1)] = 5

    def __post_init__(self):
        super().__post_init__()
        if self.start > self.end:
            raise ValueError(f"start is {self.start}; it must not be greater than end, {self.end}")

    def sparsity_now(self, ctx):
        if ctx.progress < self.start or not periodic(ctx.step, self.every):
            return None
        return self.sparsity * cubic(ctx.progress, self.start, self.end)
