"""The sample of CIFAR-10 in the package: concatenated JPEG files; `tasks/data/cifar10_sample.md` says what is in it."""

from __future__ import annotations

import functools
import io
from pathlib import Path

import numpy as np
from PIL import Image

from tasks.images.splits import DecodedImages

FILE = Path(__file__).parents[1] / "data" / "cifar10_sample.npz"


@functools.cache
def decoded_sample() -> DecodedImages:
    """Return the decoded images, in about half a second; each process decodes them once."""
    with np.load(FILE, allow_pickle=False) as file:
        jpeg, lengths, labels, cut = file["jpeg"], file["lengths"], file["labels"].astype(np.int64), file["num_train"]
    ends = np.cumsum(lengths.astype(np.int64))
    images = np.empty((len(lengths), 32, 32, 3), dtype=np.uint8)
    for position, content in enumerate(np.split(jpeg, ends[:-1])):
        with Image.open(io.BytesIO(content.tobytes())) as image:
            images[position] = np.asarray(image.convert("RGB"))
    return DecodedImages(images[:cut], labels[:cut], images[cut:], labels[cut:])
