"""Phases of a training: sizes of training images that differ from that of an evaluation, and frozen parameters."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from suite.cost.flops import LayerCost, count_layers
from suite.errors import UsageError, nearest
from suite.method import Context
from suite.network.forward_pass import survey
from suite.recipe import Phase, Recipe


class Phases:
    """The phases of a recipe. The context's index spaces begin with the images of the first of them.

    Args:
        model: The model as it was built.
        recipe: The recipe.
        input_shape: (C, H, W) of the images of an evaluation.

    Attributes:
        built: Layers of the model as it was built, by phase, without the phase of an evaluation.

    Raises:
        UsageError: The model has no parameter with a name in `recipe.freeze`.
    """

    def __init__(self, model: nn.Module, recipe: Recipe, input_shape: tuple[int, int, int]) -> None:
        self._channels, self._names = input_shape[0], recipe.freeze
        check_names(self._names, model)
        self.built: dict[Phase, dict[str, LayerCost]] = {}
        for phase in {*recipe.phases()} - {Phase()}:
            side = phase.image_size
            shape = input_shape if side is None else (self._channels, side, side)
            with self._frozen(model, phase.frozen):
                self.built[phase] = count_layers(model, shape)
        self._entered = recipe.train_size_at(0.0)

    def freeze(self, model: nn.Module, frozen: bool) -> None:
        """Freeze the parameters of the recipe, or let them be trained; a method may have removed some."""
        for name, parameter in model.named_parameters():
            if name in self._names:
                parameter.requires_grad_(not frozen)

    def enter(self, phase: Phase, ctx: Context) -> None:
        """Set the sizes of layers in the context's index spaces to those for the training images of a phase.

        Methods read them there, for example to count their own operations.
        """
        size = phase.image_size
        if size is not None and size != self._entered:
            ctx.spaces.replace_sizes(ctx.layers, survey(ctx.model, (self._channels, size, size)).shapes)
            self._entered = size

    @contextmanager
    def _frozen(self, model: nn.Module, frozen: bool) -> Iterator[None]:
        """Freeze the parameters inside."""
        if frozen:
            self.freeze(model, True)
        try:
            yield
        finally:
            if frozen:
                self.freeze(model, False)


def check_names(names: tuple[str, ...], model: nn.Module) -> None:
    """Check that a model has trained parameters with these names, which methods do not prune.

    Raises:
        UsageError: It has none of a name, or the name is that of a layer's weights.
    """
    trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    for name in names:
        if name not in trained:
            raise UsageError(f"recipe.freeze names '{name}', which is no trained parameter{nearest(name, trained)}")
        if trained[name].ndim > 1:
            raise UsageError(f"recipe.freeze names '{name}', the weights of a layer; only others can be frozen")
