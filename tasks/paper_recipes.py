"""Recipes of papers that train on both CIFAR-10 and CIFAR-100, as in their code."""

from __future__ import annotations

from suite.recipe import Recipe
from suite.task import PaperRecipe

EPOCHS = 182  # as in the paper; the launcher in its code ends after 190
# Batch size 128 with the last, smaller batch. The learning rate is divided by 10 at epochs 91 and 136, counted from 1.
# Crops have a black border of 4 pixels. Weight decay applies to normalisation and biases too.
PRUNETRAIN = Recipe(
    epochs=EPOCHS,
    batch_size=128,
    eval_batch_size=100,
    learning_rate=0.1,
    schedule="step",
    milestones=(90 / EPOCHS, 135 / EPOCHS),
    step_factor=0.1,
    momentum=0.9,
    nesterov=False,
    weight_decay=5e-4,
    decay_norm_and_bias=True,
    translate=4,
    crop_padding="black",
    drop_last=False,
)
CLICKTRAIN_EPOCHS = 190
CLICKTRAIN = PRUNETRAIN.changed(epochs=CLICKTRAIN_EPOCHS, milestones=(55 / CLICKTRAIN_EPOCHS, 131 / CLICKTRAIN_EPOCHS))
CLICKTRAIN_RESNET = CLICKTRAIN.changed(milestones=(55 / CLICKTRAIN_EPOCHS, 130 / CLICKTRAIN_EPOCHS))

PAPER_RECIPES = {
    "prunetrain": PaperRecipe("PruneTrain (SC 2019)", PRUNETRAIN),
    "clicktrain": PaperRecipe("ClickTrain (ICS 2021), its VGGs", CLICKTRAIN),
    "clicktrain_resnet": PaperRecipe("ClickTrain (ICS 2021), its ResNets", CLICKTRAIN_RESNET),
}
