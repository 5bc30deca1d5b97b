"""Normalisation of stored images; random changes of a batch, as arithmetic on positions.

The changes are mirroring, translation, cutout, and a window of the result.

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
from suite.recipe import Augmentation
from tasks.images.splits import draw_mirrored, epoch_generator

UNCHANGED = Augmentation(flip=False)
"""No random changes."""


class Draws(NamedTuple):
    """Random numbers of an epoch, with one entry per position in the epoch.

    Attributes:
        order: (N,) int64, index of the image at each position.
        mirrored: (N,) bool; `None` without mirroring.
        shift: (N, 2) int64, shift of the window down and right over the padded image, from 0 to 2 * translate; `None`
            without translation.
        corner: (N, 2) int64, row and column of the upper left pixel of the cutout; `None` without cutout.
        window: (N, 2) int64, row and column of the upper left pixel of the window; `None` without window.
    """

    order: Tensor
    mirrored: Tensor | None
    shift: Tensor | None
    corner: Tensor | None
    window: Tensor | None


def draw_epoch(
    seed: int,
    epoch: int,
    num_samples: int,
    height: int,
    width: int,
    augmentation: Augmentation,
    device: torch.device,
    window: int = 0,
) -> Draws:
    """Draw the random numbers of an epoch, which depend only on `seed` and `epoch`.

    The CPU draws them for every device, so that a GPU sees the same batches. Each augmentation has its own generator,
    and so has the window, so that turning one off does not change the others.

    Args:
        seed: Seed of the trial.
        epoch: Number of the epoch.
        num_samples: Number of images.
        height, width: Size of an image.
        augmentation: Random changes.
        device: Device of the random numbers.
        window: Side in pixels of a square at a uniform position of the changed image; 0 for the whole image.
    """
    generator = functools.partial(epoch_generator, seed=seed, epoch=epoch)

    def draw_corners(kind: str, side: int) -> Tensor:
        kind_generator = generator(kind)
        rows = torch.randint(0, height - side + 1, (num_samples,), generator=kind_generator)
        columns = torch.randint(0, width - side + 1, (num_samples,), generator=kind_generator)
        return torch.stack((rows, columns), dim=1).to(device)

    order = torch.randperm(num_samples, generator=generator("order"))
    mirrored = shift = None
    if augmentation.flip:
        mirrored = draw_mirrored(seed, epoch, order, augmentation).to(device)
    if augmentation.translate:
        places = 2 * augmentation.translate + 1
        shift = torch.randint(0, places, (num_samples, 2), generator=generator("translate")).to(device)
    corner = draw_corners("cutout", augmentation.cutout) if augmentation.cutout else None
    corner_of_window = draw_corners("window", window) if window else None
    return Draws(order.to(device), mirrored, shift, corner, corner_of_window)


def source_pixels(
    draws: Draws, first: int, last: int, height: int, width: int, augmentation: Augmentation, window: int = 0
) -> Tensor:
    """Return the source of each pixel of a batch.

    The result equals mirroring, then translating over a border of the padding colour, then cutting out, then taking the
    window. Only the pixels of the window are computed.

    Args:
        draws: Random numbers of the epoch.
        first, last: First position of the batch in the epoch, and the position after its last one.
        height, width: Size of an image.
        augmentation: Random changes.
        window: Side of the window, as for `draw_epoch`.

    Returns:
        (n, H, W) int64, or (n, window, window): positions among the N * H * W pixels of all images. N * H * W is the
        mean colour, and N * H * W + 1 is black.
    """
    images = draws.order[first:last]
    mean_colour = draws.order.numel() * height * width
    border = mean_colour + (augmentation.crop_padding == "black")
    rows = torch.arange(window or height, device=images.device).unsqueeze(0)
    columns = torch.arange(window or width, device=images.device).unsqueeze(0)

    # Go from the output back to the image: first undo the window, then the translation, then the mirroring. Rows and
    # columns stay separate as long as possible, because (n, H) and (n, W) are small. Positions outside the image move
    # behind all images.
    if draws.window is not None:
        rows, columns = rows + draws.window[first:last, :1], columns + draws.window[first:last, 1:]
    window_rows, window_columns = rows, columns
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
    if draws.corner is not None and draws.window is not None:  # the cutout may be outside the window, or in part
        cut_rows = _within(window_rows, draws.corner[first:last, :1], augmentation.cutout)
        cut_columns = _within(window_columns, draws.corner[first:last, 1:], augmentation.cutout)
        positions.masked_fill_(cut_rows.unsqueeze(2) & cut_columns.unsqueeze(1), mean_colour)
    elif draws.corner is not None:  # faster than the mask for a small cutout
        side = torch.arange(augmentation.cutout, device=images.device)
        batch = torch.arange(last - first, device=images.device).view(-1, 1, 1)
        cut_rows, cut_columns = (draws.corner[first:last, axis].view(-1, 1) + side for axis in (0, 1))
        positions[batch, cut_rows.unsqueeze(2), cut_columns.unsqueeze(1)] = mean_colour
    return positions


def _within(places: Tensor, first: Tensor, length: int) -> Tensor:
    return (places >= first) & (places < first + length)


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
