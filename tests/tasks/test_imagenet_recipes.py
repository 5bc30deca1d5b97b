"""The recipes of task `imagenet` are those of the papers' code: one table of what decides a training."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import pytest

from suite.recipe import Recipe
from tasks.imagenet import ImageNet


@dataclass(frozen=True)
class Row:
    """Values of a published recipe.

    Attributes:
        epochs, batch, rate, decay, smoothing: Epochs, images per step, highest learning rate, weight decay, smoothing.
        parts: Parts of a batch that batch normalisation sees.
        decays_all: Whether weight decay applies to normalisation and biases, too.
        falls: Epochs, counted from 0, that begin with a learning rate of a tenth of that before.
        sizes: Pixels of training images, by the first epoch with them.
        evaluated: Pixels of test images, and of their shorter side before their centre is cut out.
    """

    epochs: int
    batch: int
    rate: float
    decay: float
    smoothing: float
    parts: int
    decays_all: bool
    falls: tuple[int, ...]
    sizes: dict[int, int]
    evaluated: tuple[int, int]


GROWING = {0: 160, 71: 192}
PUBLISHED = {
    # PruneTrain's code counts epochs from 1 and names 41, 61 and 81.
    "prunetrain": Row(90, 256, 0.1, 1e-4, 0.0, 1, True, (40, 60, 80), {0: 224}, (224, 256)),
    "prunetrain_vgg16": Row(90, 128, 0.05, 1e-4, 0.0, 1, True, (40, 60, 80), {0: 224}, (224, 256)),
    # ClickTrain's code counts epochs from 0.
    "clicktrain": Row(95, 256, 0.1, 5e-4, 0.0, 1, True, (31, 61, 75), {0: 224}, (224, 256)),
    # SDGP's code has 4 processes; it grows from epoch 65 to 76, rounded to multiples of 32.
    "sdgp": Row(88, 4 * 1024, 1.0, 5e-5, 0.1, 4, False, (), GROWING, (256, 293)),
    "sdgp_regnet": Row(88, 4 * 1024, 1.0, 5e-5, 0.1, 4, True, (), GROWING, (256, 293)),
    "sdgp_resnet50": Row(88, 4 * 512, 1.7, 1e-4, 0.1, 4, False, (), GROWING, (256, 293)),
}


def recipes() -> dict[str, Recipe]:
    return {name: one.recipe for name, one in ImageNet.paper_recipes.items()}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_recipe_is_the_published_one(name: str) -> None:
    recipe, row, settings = recipes()[name], PUBLISHED[name], ImageNet.defaults("paper", name)
    assert (recipe.epochs, recipe.batch_size, recipe.learning_rate) == (row.epochs, row.batch, row.rate)
    assert (recipe.weight_decay, recipe.decay_norm_and_bias) == (row.decay, row.decays_all)
    assert (recipe.label_smoothing, recipe.micro_batches) == (row.smoothing, row.parts)
    assert (recipe.optimizer, recipe.momentum, recipe.nesterov) == ("sgd", 0.9, False)
    assert (settings["image_size"], settings["eval_resize"]) == row.evaluated


def test_the_preset_of_a_publication_is_that_of_prunetrain() -> None:
    assert ImageNet.recipes["paper"] == recipes()["prunetrain"]
    assert ImageNet.defaults("paper") == ImageNet.defaults("paper", "prunetrain")


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_learning_rate_falls_at_the_published_epochs(name: str) -> None:
    recipe, row = recipes()[name], PUBLISHED[name]
    rates = [recipe.learning_rate_at(epoch / recipe.epochs) for epoch in range(recipe.epochs)]
    if row.falls:
        assert rates[0] == recipe.learning_rate
        assert {epoch for epoch, (one, other) in enumerate(pairwise(rates), 1) if one != other} == {*row.falls}
        assert rates[-1] == pytest.approx(recipe.learning_rate / 10 ** len(row.falls))
    else:
        # numpy.interp over the epochs 0, 2 and 88 from a ten-thousandth of the rate to the rate and to 0.
        expected = {0: 1e-4, 1: 0.50005, 2: 1.0, 45: 0.5, 87: 1 / 86}
        for epoch, share in expected.items():
            assert rates[epoch] == pytest.approx(share * recipe.learning_rate)


@pytest.mark.parametrize("name", PUBLISHED)
def test_every_epoch_has_images_of_the_published_size(name: str) -> None:
    recipe, row = recipes()[name], PUBLISHED[name]
    evaluated = ImageNet.defaults("paper", name)["image_size"]
    sizes = [recipe.growing.size_at(epoch / recipe.epochs) or evaluated for epoch in range(row.epochs)]
    expected = [row.sizes[max(first for first in row.sizes if first <= epoch)] for epoch in range(row.epochs)]
    assert sizes == expected
