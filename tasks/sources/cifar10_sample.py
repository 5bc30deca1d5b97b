"""The sample of CIFAR-10 in the package: concatenated JPEG files.

`tasks/data/cifar10_sample.md` describes its origin.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.resources
import io
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from suite.errors import MissingData
from tasks.images.decoded import DecodedImages

NAME = "cifar10_sample.npz"
# Checksum of the JPEG files and labels, as printed by the tool that creates the sample
SHA256 = "d872802330930d630bb8bebb9a6ddff412c3518279f8e7f14f2e9ca5c88c6856"


class SampleFile:
    """The verified arrays of the sample file.

    Attributes:
        jpeg: (B,) uint8, bytes of all JPEG files, training images first.
        lengths: (N,) int64, number of bytes of each file.
        labels: (N,) int64.
        num_train: Number of training images among the N images.
    """

    def __init__(self, content: bytes | None = None) -> None:
        """Read the sample.

        Args:
            content: Content of a sample file; `None` for the one in the package.

        Raises:
            MissingData: The checksum is wrong.
        """
        if content is None:
            content = importlib.resources.files("tasks").joinpath("data", NAME).read_bytes()
        try:
            with np.load(io.BytesIO(content), allow_pickle=False) as file:
                self.jpeg: NDArray[np.uint8] = file["jpeg"]
                self.lengths: NDArray[np.int64] = file["lengths"].astype(np.int64)
                self.labels: NDArray[np.int64] = file["labels"].astype(np.int64)
                self.num_train = int(file["num_train"])
        except Exception as error:  # zipfile, zlib and numpy raise different exceptions for damaged files
            raise MissingData(f"tasks/data/{NAME}: {type(error).__name__}: {error}") from error
        if sample_checksum(self.jpeg, self.lengths, self.labels, self.num_train) != SHA256:
            raise MissingData(f"tasks/data/{NAME}: the file has changed; install the package again")

    def decode(self) -> DecodedImages:
        """Decode all images, in about half a second."""
        ends = np.cumsum(self.lengths)
        images = np.empty((len(self.lengths), 32, 32, 3), dtype=np.uint8)
        for position, (end, length) in enumerate(zip(ends, self.lengths, strict=True)):
            with Image.open(io.BytesIO(self.jpeg[end - length : end].tobytes())) as image:
                images[position] = np.asarray(image.convert("RGB"))
        cut = self.num_train
        return DecodedImages(images[:cut], self.labels[:cut], images[cut:], self.labels[cut:])


@functools.cache
def decoded_sample() -> DecodedImages:
    """Return the decoded sample of the package; each process decodes it once."""
    return SampleFile().decode()


def sample_checksum(jpeg: NDArray[np.uint8], lengths: NDArray[Any], labels: NDArray[Any], num_train: int) -> str:
    """Return the SHA-256, in hex, of JPEG bytes, lengths, labels (little-endian int64) and `num_train` (decimal).

    It covers the files and not their pixels, because another version of the decoder may round pixels differently.
    """
    digest = hashlib.sha256(np.ascontiguousarray(jpeg).data)
    for array in (lengths, labels):
        digest.update(np.ascontiguousarray(array, dtype="<i8").data)
    digest.update(str(num_train).encode())
    return digest.hexdigest()
