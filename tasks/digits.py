"""Handwritten digits: a task that needs no download and trains in seconds on a CPU."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np

from suite.recipe import Recipe, Tuning
from suite.registry import register
from tasks.images.splits import DecodedImages, stratified_order
from tasks.pipeline import ImageTask, Normalization

TEST_IMAGES = 360
SPLIT_SEED = 0
MAX_COUNT = 16  # pixels count strokes, 0 to 16
FILE = Path(__file__).parent / "data" / "digits.csv.gz"

# Digits are never mirrored, because a mirrored 2 is not a 2.
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
    # So short that dense training still errs on 2 to 5 % of the images.
    "smoke": QUICK.changed(epochs=2.1),
    "quick": QUICK,
    # No paper trains on these images, so this is the quick recipe with more epochs.
    "paper": QUICK.changed(epochs=40),
}


@register("task", "digits")
class Digits(ImageTask):
    """Handwritten digits: 1,437 training and 360 test images of 16x16 pixels in 10 classes; part of this package."""

    title = "Digits"
    num_classes = 10
    input_shape = (1, 16, 16)
    source = "E. Alpaydin, C. Kaynak, Optical Recognition of Handwritten Digits, UCI 1998; scikit-learn's load_digits"
    note = "scikit-learn's digits, each pixel doubled; the split is this suite's own"
    normalization = Normalization(mean=(77.8,), std=(95.9,))  # statistics of all images, rounded to one decimal
    models = dict.fromkeys(RECIPES, "resnet9[width=0.125]")
    recipes = RECIPES
    paper_recipe = "none: the quick recipe, longer"
    tuning = (Tuning(trials=None, chosen_on="other", source="so that a trial takes seconds; not compared with others"),)

    def read_images(self, data_root: Path) -> DecodedImages:
        """Read the images, which are part of this package; `data_root` is not used."""
        return load_digits()


def load_digits() -> DecodedImages:
    """Return the images, with each pixel doubled to 16x16, in a fixed split stratified by class."""
    with gzip.open(FILE, "rt") as file:
        table = np.loadtxt(file, delimiter=",")

    counts, labels = table[:, :-1], table[:, -1].astype(np.int64)
    small = np.rint(counts.reshape(-1, 8, 8) * (255 / MAX_COUNT)).astype(np.uint8)
    images = small.repeat(2, axis=1).repeat(2, axis=2)[..., np.newaxis]
    order = stratified_order(labels, SPLIT_SEED)
    test, train = np.sort(order[:TEST_IMAGES]), np.sort(order[TEST_IMAGES:])
    return DecodedImages(images[train], labels[train], images[test], labels[test])
