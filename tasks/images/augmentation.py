"""Normalisation of stored images; random mirroring, translation and cutout of a batch, as arithmetic on positions.

An augmented batch is one gather operation. It takes each output pixel from the position of its source pixel. Two extra
source pixels, of the mean colour and black, stand for pixels outside the image or under the cutout. Images are neither
padded nor copied first.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from suite.errors import UsageError
from tasks.images.splits import draw_mirrored, epoch_generator


class Augmentation(NamedTuple):
    """Random changes of a training image.

    Attributes:
        flip: Whether images are mirrored with probability 1/2.
        alternating_flip: Whether each image is mirrored in every other epoch instead.
        translate: Largest shift in pixels in each direction. Shifts are uniform.
        cutout: Side in pixels of a square inside the image, at a uniform position, that gets the mean colour; 0 for
            none.
        crop_padding: Colour of pixels that a translation leaves empty: `mean`, `black`, or `reflect`, the image
            mirrored at its border.
    """

    flip: bool = False
    translate: int = 0
    cutout: int = 0
    crop_padding: str = "mean"
    alternating_flip: bool = False


class Draws(NamedTuple):
    """Random numbers of an epoch, with one entry per position in the epoch.

    Attributes:
        order: (N,) int64, index of the image at each position.
        mirrored: (N,) bool; `None` without mirroring.
        shift: (N, 2) int64, shift of the window down and right over the padded image, from 0 to 2 * translate; `None`
            without translation.
        corner: (N, 2) int64, row and column of the upper left pixel of the cutout; `None` without cutout.
    """

    order: Tensor
    mirrored: Tensor | None
    shift: Tensor | None
    corner: Tensor | None


def draw_epoch(
    seed: int, epoch: int, num_samples: int, height: int, width: int, augmentation: Augmentation, device: torch.device
) -> Draws:
    """Draw the random numbers of an epoch, which depend only on `seed` and `epoch`.

    The CPU draws them for every device, so that a GPU sees the same batches. Each augmentation has its own generator,
    so that turning one off does not change the others.
    """
    generator = functools.partial(epoch_generator, seed=seed, epoch=epoch)
    order = torch.randperm(num_samples, generator=generator("order"))
    mirrored = shift = corner = None
    if augmentation.flip:
        mirrored = draw_mirrored(seed, epoch, order, augmentation.alternating_flip).to(device)
    if augmentation.translate:
        places = 2 * augmentation.translate + 1
        shift = torch.randint(0, places, (num_samples, 2), generator=generator("translate")).to(device)
    if augmentation.cutout:
        cutout_generator = generator("cutout")
        rows = torch.randint(0, height - augmentation.cutout + 1, (num_samples,), generator=cutout_generator)
        columns = torch.randint(0, width - augmentation.cutout + 1, (num_samples,), generator=cutout_generator)
        corner = torch.stack((rows, columns), dim=1).to(device)
    return Draws(order.to(device), mirrored, shift, corner)


def source_pixels(draws: Draws, first: int, last: int, height: int, width: int, augmentation: Augmentation) -> Tensor:
    """Return the source of each pixel of a batch.

    The result equals mirroring, then translating over a border of the padding colour, then cutting out.

    Args:
        draws: Random numbers of the epoch.
        first, last: First position of the batch in the epoch, and the position after its last one.
        height, width: Size of an image.
        augmentation: Random changes.

    Returns:
        (n, H, W) int64 positions among the N * H * W pixels of all images. N * H * W is the mean colour, and N * H * W
        + 1 is black.
    """
    images = draws.order[first:last]
    mean_colour = draws.order.numel() * height * width
    border = mean_colour + (augmentation.crop_padding == "black")
    rows = torch.arange(height, device=images.device).view(1, height)
    columns = torch.arange(width, device=images.device).view(1, width)

    # Go from the output back to the image: first undo the translation, then the mirroring. Rows and columns stay
    # separate as long as possible, because (n, H) and (n, W) are small. Positions outside the image move behind all
    # images.
    rows_outside = columns_outside = None
    if draws.shift is not None:
        shift = draws.shift[first:last] - augmentation.translate
        rows, columns = rows + shift[:, :1], columns + shift[:, 1:]
        if augmentation.crop_padding == "reflect":
            rows, columns = _reflected(rows, height), _reflected(columns, width)
        else:
            rows_outside, columns_outside = (rows < 0) | (rows >= height), (columns < 0) | (columns >= width)
    if draws.mirrored is not None:
        columns = torch.where(draws.mirrored[first:last].view(-1, 1), width - 1 - columns, columns)
    row_starts = (images.view(-1, 1) * height + rows) * width
    if rows_outside is not None and columns_outside is not None:
        row_starts, columns = row_starts.masked_fill(rows_outside, border), columns.masked_fill(columns_outside, border)

    positions = row_starts.unsqueeze(2) + columns.unsqueeze(1)
    if rows_outside is not None:
        positions.clamp_(max=border)
    if draws.corner is not None:
        side = torch.arange(augmentation.cutout, device=images.device)
        batch = torch.arange(last - first, device=images.device).view(-1, 1, 1)
        cut_rows, cut_columns = (draws.corner[first:last, axis].view(-1, 1) + side for axis in (0, 1))
        positions[batch, cut_rows.unsqueeze(2), cut_columns.unsqueeze(1)] = mean_colour
    return positions


def _reflected(places: Tensor, size: int) -> Tensor:
    """Return the positions that reflection at the border of an image gives, as in `torch.nn.functional.pad`."""
    places = places.abs()
    return torch.minimum(places, 2 * (size - 1) - places)


@dataclass(frozen=True)
class Normalization:
    """Mean and standard deviation of each channel, in the units of stored images: 0 to 255."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    @classmethod
    def of(cls, images: NDArray[np.uint8]) -> Normalization:
        """Return the mean and standard deviation of images (N, H, W, C). 1 replaces a standard deviation of 0."""
        mean = images.mean(axis=(0, 1, 2), dtype=np.float64)
        std = images.std(axis=(0, 1, 2), dtype=np.float64)
        return cls(tuple(map(float, mean)), tuple(float(value) or 1.0 for value in std))

    def with_std(self, std: tuple[float, ...]) -> Normalization:
        """Return the normalisation with other standard deviations, of pixels in [0, 1]; unchanged if `std` is empty.

        Raises:
            UsageError: The number of standard deviations differs from that of the channels.
        """
        if len(std) not in (0, len(self.std)):
            raise UsageError(f"recipe.pixel_std has {len(std)} values; images have {len(self.std)} channels")
        return Normalization(self.mean, tuple(255 * value for value in std)) if std else self


class Normalizer:
    """Computes (x - mean) / std of images of one size on a device."""

    def __init__(self, normalization: Normalization, height: int, width: int, device: torch.device) -> None:
        self._height, self._width = height, width
        # (x - mean) / std = x * scale + offset. Both are repeated for a whole image, because a loop over an innermost
        # dimension of three channels would not be vectorised.
        mean = torch.tensor(normalization.mean, dtype=torch.float64)
        scale = 1 / torch.tensor(normalization.std, dtype=torch.float64)
        repeats = height * width
        self._scale = scale.float().repeat(repeats).to(device)
        self._offset = (-mean * scale).float().repeat(repeats).to(device)

    def __call__(self, pixels: Tensor) -> Tensor:
        """Normalise images.

        Args:
            pixels: Pixels of whole images, with C as the last dimension, uint8.

        Returns:
            (N, C, H, W) float32, channels-last.
        """
        rows = pixels.reshape(-1, self._scale.numel()).float().mul_(self._scale).add_(self._offset)
        return rows.view(-1, self._height, self._width, pixels.shape[-1]).permute(0, 3, 1, 2)
