"""How much of a training is done, counted in pixels, for training images whose size changes between epochs."""

from __future__ import annotations

from suite.recipe import Recipe


def work(recipe: Recipe, epochs: float) -> float:
    """Return the pixels of the first epochs of a schedule, in images of one pixel; `epochs` if all sizes are equal.

    The time of a step is assumed to grow with the pixels of its images.

    Args:
        recipe: The recipe.
        epochs: Number of epochs, of which the last may be a part of one; epochs after the schedule count as its last.
    """
    if len(recipe.train_sizes) < 2:
        return epochs
    whole = int(epochs)
    sides = [phase.image_size or 0 for phase in recipe.phases()]
    sides += sides[-1:] * (whole + 1 - len(sides))
    return float(sum(side**2 for side in sides[:whole]) + (epochs - whole) * sides[whole] ** 2)


def share_of_work(recipe: Recipe, fraction: float) -> float:
    """Return the share of a training's work that is done, from the fraction of its epochs."""
    if len(recipe.train_sizes) < 2:
        return fraction
    return work(recipe, fraction * recipe.epochs) / work(recipe, recipe.epochs)
