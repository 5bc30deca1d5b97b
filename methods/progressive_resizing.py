"""Progressive resizing: training images grow, so that the first epochs cost less."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Ge, Interval

from suite.method import Method
from suite.recipe import Recipe, Tuning
from suite.registry import register


@register("method", "progressive_resizing")
class ProgressiveResizing(Method):
    """Way without pruning: training images begin small and grow to full size (progressive resizing).

    Their side is `start` of the full one until the share `delay` of the training. It then grows linearly, in steps of
    `step` pixels, until the share 1 - `full`. A size is used for whole epochs. The method only sets the fields
    `train_sizes`, `size_milestones` and `shrink_by` of its trials' recipe.

    Attributes:
        start: First side of the images, as a share of the full one.
        delay: Share of the training with the first size.
        full: Share of the training with the full size, at its end.
        step: Pixels of which sizes are multiples; the full size always occurs.
        by: `crop` cuts a random window out of the augmented image; for tasks of image files, whose images are random
            resized crops, it makes these smaller. `resize` shrinks the augmented image. Composer's default is `resize`,
            and its card finds that on CIFAR crops are better.
    """

    source: ClassVar[str] = "progressive resizing in MosaicML Composer"
    replayable: ClassVar[bool] = True
    prunes: ClassVar[bool] = False
    tuning: ClassVar[Sequence[Tuning]] = (
        Tuning(
            trials=0, chosen_on="publication", source="defaults of Composer, and crops as its card advises on CIFAR"
        ),
    )

    start: Annotated[float, Interval(gt=0, le=1)] = 0.5
    delay: Annotated[float, Interval(ge=0, le=1)] = 0.5
    full: Annotated[float, Interval(ge=0, le=1)] = 0.2
    step: Annotated[int, Ge(1)] = 4
    by: Literal["crop", "resize"] = "crop"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.ignore:
            raise ValueError("growing images change no layer, so that ignore leaves none out")
        if self.delay + self.full > 1:
            raise ValueError(f"delay={self.delay:g} and full={self.full:g} are together more than the whole training")

    def recipe_fields(self, recipe: Recipe, input_shape: tuple[int, int, int]) -> Mapping[str, Any]:
        if recipe.growing.train_sizes:
            raise ValueError("the recipe has sizes of its own; --set 'recipe.train_sizes=()' takes them back")
        side = input_shape[1]
        first = max(self.step, round(side * self.start / self.step) * self.step)
        sizes = [*range(first, side, self.step), side]
        begins = {sizes[0]: 0.0}
        for before, size in pairwise(sizes):
            # A size begins when the side, as it grows, is nearer to it than to the size before.
            growth = max(0.0, ((before + size) / 2 - side * self.start) / (side * (1 - self.start)))
            begins[size] = round(self.delay + (1 - self.full - self.delay) * growth, 6)
        # A size is left out if the next one begins at the same time.
        used = [
            size
            for (size, begin), after in zip(begins.items(), [*begins.values(), 1.0][1:], strict=True)
            if begin < after
        ]
        return {
            "train_sizes": tuple(used),
            "size_milestones": tuple(begins[size] for size in used[1:]),
            "shrink_by": self.by,
        }
