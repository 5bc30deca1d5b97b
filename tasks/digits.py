"""scikit-learn's handwritten digits: a task that needs no download and trains in seconds on a CPU."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from suite.errors import MissingData, UsageError, nearest
from suite.recipe import Recipe
from suite.registry import register
from suite.task import DataCopy, Splits, Task
from tasks.images.decoded import DecodedImages
from tasks.images.splits import stratified_order
from tasks.pipeline import Normalization, make_splits

TEST_IMAGES = 360
SPLIT_SEED = 0
# scikit-learn's pixels count strokes, 0 .. 16; the suite's images are 0 .. 255.
LARGEST_COUNT = 16
# Of all images, to one decimal.
NORMALIZATION = Normalization(mean=(77.8,), std=(95.9,))

# Digits are never mirrored: a mirrored 2 is no 2.
QUICK = Recipe(
    epochs=10,
    batch_size=64,
    learning_rate=0.1,
    peak_at=0.25,
    nesterov=True,
    label_smoothing=0.1,
    flip=False,
    translate=1,
)
RECIPES = {
    "smoke": Recipe(**{**vars(QUICK), "epochs": 4}),
    "quick": QUICK,
    # No paper trains on these images: the quick recipe, longer.
    "paper": Recipe(**{**vars(QUICK), "epochs": 40}),
}


@register("task", "digits")
class Digits(Task):
    """Handwritten digits: 1,437 training and 360 test images of 16x16 pixels in 10 classes; part of scikit-learn."""

    title = "Digits"
    num_classes = 10
    input_shape = (1, 16, 16)
    source = "E. Alpaydin, C. Kaynak, Optical Recognition of Handwritten Digits, UCI 1998; scikit-learn's load_digits"
    paper_recipe = "none: the quick recipe, longer"

    def default_model(self, preset: str) -> str:
        """ResNet-9 with an eighth of its channels."""
        _check_preset(preset)
        return "resnet9[width=0.125]"

    def recipe(self, preset: str) -> Recipe:
        """The recipes differ only in their length."""
        _check_preset(preset)
        return RECIPES[preset]

    def prepare(self, data_root: Path, preset: str) -> DataCopy:
        """Nothing is fetched or kept: the images are part of scikit-learn.

        Raises:
            MissingData: if scikit-learn is not installed.
        """
        _check_preset(preset)
        note = "scikit-learn's digits, each pixel doubled; the split is this suite's own"
        return DataCopy("original", load_digits().checksum(), note=note)

    def load(self, copy: DataCopy, recipe: Recipe, seed: int, device: torch.device) -> Splits:
        """Put the splits on the device.

        Raises:
            MissingData: if scikit-learn's images are no longer those of `copy`.
            UsageError: if the recipe asks for more images than there are.
        """
        data = load_digits()
        found = data.checksum()
        if found != copy.checksum:
            raise MissingData(
                f"task digits: scikit-learn's images have changed since this trial was planned "
                f"(checksum {found[:8]}, not {copy.checksum[:8]}); run the command again"
            )
        return make_splits(data, recipe, seed, device, NORMALIZATION)


def load_digits() -> DecodedImages:
    """The images, each pixel doubled to 16x16, in a fixed split stratified by class.

    Raises:
        MissingData: if scikit-learn is not installed.
    """
    try:
        from sklearn import datasets
    except ModuleNotFoundError as error:
        raise MissingData("task digits needs scikit-learn: pip install scikit-learn") from error

    counts, labels = datasets.load_digits(return_X_y=True)
    small = np.rint(counts.reshape(-1, 8, 8) * (255 / LARGEST_COUNT)).astype(np.uint8)
    images = small.repeat(2, axis=1).repeat(2, axis=2)[..., np.newaxis]
    labels = labels.astype(np.int64)
    order = stratified_order(labels, SPLIT_SEED)
    test, train = np.sort(order[:TEST_IMAGES]), np.sort(order[TEST_IMAGES:])
    return DecodedImages(images[train], labels[train], images[test], labels[test])


def _check_preset(preset: str) -> None:
    if preset not in RECIPES:
        raise UsageError(f"task digits has no preset '{preset}'{nearest(preset, RECIPES)}")
