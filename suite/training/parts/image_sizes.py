"""Sizes of training images that differ from that of an evaluation, and may change between epochs."""

from __future__ import annotations

from torch import nn

from suite.cost.flops import LayerCost, count_layers
from suite.method import Context
from suite.network.forward_pass import survey
from suite.recipe import Recipe


class ImageSizes:
    """The sizes of a recipe's training images. The context's index spaces begin with the first of them.

    Args:
        model: The model as it was built.
        recipe: The recipe.
        input_shape: (C, H, W) of the images of an evaluation.

    Attributes:
        dense: Layers of the model as it was built, by side of the images in pixels; empty without `train_sizes`.
    """

    def __init__(self, model: nn.Module, recipe: Recipe, input_shape: tuple[int, int, int]) -> None:
        self._channels = input_shape[0]
        self.dense: dict[int | None, dict[str, LayerCost]] = {
            size: count_layers(model, (self._channels, size, size)) for size in recipe.train_sizes
        }
        self._entered = recipe.train_size_at(0.0)

    def enter(self, size: int | None, ctx: Context) -> None:
        """Set the sizes of layers in the context's index spaces to those for training images of a size.

        Methods read them there, for example to count their own operations.
        """
        if size is not None and size != self._entered:
            ctx.spaces.replace_sizes(ctx.layers, survey(ctx.model, (self._channels, size, size)).shapes)
            self._entered = size
