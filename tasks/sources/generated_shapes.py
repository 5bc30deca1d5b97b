"""Images of shapes, generated from fixed seeds, for smoke tests of tasks whose data is not part of the package."""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

from tasks.images.splits import DecodedImages

SIDE = 64
TRAIN_IMAGES, TEST_IMAGES = 400, 100
NOTE = (
    "generated images of ten shapes, not the data of this task: they show that everything runs; accuracies on them say "
    "nothing about methods"
)


def _disc(x: NDArray[np.float64], y: NDArray[np.float64]) -> NDArray[np.bool_]:
    return x**2 + y**2 < 0.5


# Each shape is a region of the square from -1 to 1.
SHAPES = {
    "disc": _disc,
    "ring": lambda x, y: (x**2 + y**2 < 0.6) & (x**2 + y**2 > 0.25),
    "square": lambda x, y: np.maximum(abs(x), abs(y)) < 0.6,
    "frame": lambda x, y: (np.maximum(abs(x), abs(y)) < 0.7) & (np.maximum(abs(x), abs(y)) > 0.4),
    "cross": lambda x, y: (np.minimum(abs(x), abs(y)) < 0.2) & (np.maximum(abs(x), abs(y)) < 0.8),
    "diamond": lambda x, y: abs(x) + abs(y) < 0.8,
    "triangle": lambda x, y: (y < 0.6) & (2 * abs(x) < y + 0.8),
    "bar": lambda x, y: (abs(y) < 0.25) & (abs(x) < 0.9),
    "half": lambda x, y: _disc(x, y) & (x > 0),
    "rings": lambda x, y: np.cos(10 * np.sqrt(x**2 + y**2)) > 0.3,
}


@cache
def generated_shapes() -> DecodedImages:
    """Return ten balanced classes of shapes of `SIDE` pixels, with random place, size, angle, colours and noise."""
    train, test = _draw(TRAIN_IMAGES, seed=0), _draw(TEST_IMAGES, seed=1)
    return DecodedImages(*train, *test)


def _draw(count: int, seed: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    # The stream of RandomState never changes; that of default_rng may.
    random = np.random.RandomState(seed)
    labels = (np.arange(count) % len(SHAPES)).astype(np.int64)
    regions = list(SHAPES.values())
    rows, columns = np.mgrid[-1 : 1 : SIDE * 1j, -1 : 1 : SIDE * 1j]
    images = np.empty((count, SIDE, SIDE, 3), dtype=np.uint8)
    for image, label in zip(images, labels, strict=True):
        angle, scale = random.uniform(-0.4, 0.4), random.uniform(0.6, 1.0)
        x, y = columns - random.uniform(-0.3, 0.3), rows - random.uniform(-0.3, 0.3)
        turned = (np.cos(angle) * x + np.sin(angle) * y) / scale, (np.cos(angle) * y - np.sin(angle) * x) / scale
        colours = random.uniform(0, 255, (2, 3))
        colours[1] = (colours[0] + random.uniform(90, 165, 3)) % 256
        painted = np.where(regions[label](*turned)[..., np.newaxis], colours[0], colours[1])
        image[:] = (painted + random.normal(0, 15, painted.shape)).clip(0, 255)
    return images, labels
