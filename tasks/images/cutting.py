"""The pixels of crops: cut a box out of each image, resize it, cut a window out of the result, and mirror it.

`tasks.images.crops` draws the boxes. torchvision (here) or DALI (`tasks.images.dali`) can compute the same cuts.
"""

from __future__ import annotations

from concurrent.futures import Executor
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tasks.images.stored import ImageSource


class Cuts(NamedTuple):
    """How images are cut.

    Attributes:
        boxes: (N, 4) int64 first row, first column, height and width of the box in the image.
        resized: (N, 2) int64 height and width to which the box is resized.
        windows: (N, 2) int64 first row and column of the window in the resized box.
        mirrored: (N,) bool, whether the window is mirrored.
    """

    boxes: NDArray[np.int64]
    resized: NDArray[np.int64]
    windows: NDArray[np.int64]
    mirrored: NDArray[np.bool_]

    def of(self, places: NDArray[np.int64]) -> Cuts:
        """Return the cuts at some places of the arrays."""
        return Cuts(self.boxes[places], self.resized[places], self.windows[places], self.mirrored[places])


class Cutter(Protocol):
    """Computes the pixels of cuts."""

    def __call__(self, images: NDArray[np.int64], cuts: Cuts, pool: Executor) -> Tensor:
        """Cut the images.

        Args:
            images: (N,) numbers of the images in their source.
            cuts: The cut of each image.
            pool: As many threads as torch uses.

        Returns:
            (N, size, size, 3) uint8.

        Raises:
            suite.errors.UsageError: An image cannot be read.
        """


class TorchvisionCutter:
    """Cuts and resizes with torchvision's own functions on the CPU; implements `Cutter`."""

    def __init__(self, source: ImageSource, size: int) -> None:
        """Set where images are read.

        Args:
            source: Images.
            size: Height and width of the windows.
        """
        self._source, self._size = source, size

    def __call__(self, images: NDArray[np.int64], cuts: Cuts, pool: Executor) -> Tensor:
        """Cut the images; see `Cutter`."""
        pixels = torch.empty(len(images), self._size, self._size, 3, dtype=torch.uint8)
        threads = torch.get_num_threads()

        def fill(first: int) -> None:
            for place in range(first, len(images), threads):
                pixels[place] = self._cut(int(images[place]), cuts, place).permute(1, 2, 0)

        list(pool.map(fill, range(threads)))
        return pixels

    def _cut(self, image: int, cuts: Cuts, place: int) -> Tensor:
        """Return one window, (3, size, size) uint8."""
        top, left, height, width = cuts.boxes[place].tolist()
        row, column = cuts.windows[place].tolist()
        box = self._source.read(image)[top : top + height, left : left + width]
        window = _resize(box, cuts.resized[place].tolist())[:, row : row + self._size, column : column + self._size]
        return window.flip(2) if cuts.mirrored[place] else window


def _resize(pixels: NDArray[np.uint8], size: list[int]) -> Tensor:
    """Resize an image (H, W, 3) bilinearly with antialiasing.

    Returns:
        (3, height, width) uint8, channels-last in memory, as torch's kernel for bytes computes it.
    """
    # torchvision takes a second to import. Tasks that cut nothing import this module too.
    from torchvision.transforms.v2 import InterpolationMode, functional

    # The copy is contiguous and can be written to. Only a contiguous image gives a channels-last result.
    image = torch.from_numpy(pixels.copy()).permute(2, 0, 1)
    return functional.resize_image(image, size, interpolation=InterpolationMode.BILINEAR, antialias=True)
