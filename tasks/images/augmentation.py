"""Random mirroring, translation and cutout of a whole batch, as arithmetic on the positions of its pixels.

An augmented batch is one gather: for each output pixel the position is computed from which it is taken, and pixels
outside the image or under the cutout are taken from two extra pixels, of the mean colour and black. No image is padded
or copied first.
"""

from __future__ import annotations

import hashlib
from typing import NamedTuple

import torch
from torch import Tensor


class Augmentation(NamedTuple):
    """What may be done to a training image.

    Attributes:
        flip: mirror with probability 1/2.
        translate: largest shift in pixels, up, down, left and right, uniform.
        cutout: side in pixels of a square at a uniform place inside the image, which gets the mean colour; 0: none.
        crop_padding: colour of what a translation leaves empty, `mean` or `black`.
    """

    flip: bool = False
    translate: int = 0
    cutout: int = 0
    crop_padding: str = "mean"


class Draws(NamedTuple):
    """An epoch's random numbers, one entry for each position in the epoch.

    Attributes:
        order: (N,) int64, which image comes at each position.
        mirrored: (N,) bool, or `None` without mirroring.
        shift: (N, 2) int64, by how much the window moves down and right over the padded image: 0 .. 2 * translate.
        corner: (N, 2) int64, row and column of the cutout's upper left pixel.
    """

    order: Tensor
    mirrored: Tensor | None
    shift: Tensor | None
    corner: Tensor | None


def draw_epoch(
    seed: int, epoch: int, num_samples: int, height: int, width: int, augmentation: Augmentation, device: torch.device
) -> Draws:
    """Draw an epoch's numbers from `seed` and `epoch` alone.

    They are drawn on the CPU whatever the device, so that a GPU sees the same batches. Each kind has a generator of its
    own, so that switching one augmentation off leaves the others as they were.
    """

    def generator(kind: str) -> torch.Generator:
        digest = hashlib.blake2b(f"{kind} {seed} {epoch}".encode(), digest_size=8).digest()
        return torch.Generator().manual_seed(int.from_bytes(digest, "little") >> 1)

    order = torch.randperm(num_samples, generator=generator("order")).to(device)
    mirrored = shift = corner = None
    if augmentation.flip:
        mirrored = torch.randint(0, 2, (num_samples,), generator=generator("flip")).bool().to(device)
    if augmentation.translate:
        places = 2 * augmentation.translate + 1
        shift = torch.randint(0, places, (num_samples, 2), generator=generator("translate")).to(device)
    if augmentation.cutout:
        cutout_generator = generator("cutout")
        rows = torch.randint(0, height - augmentation.cutout + 1, (num_samples,), generator=cutout_generator)
        columns = torch.randint(0, width - augmentation.cutout + 1, (num_samples,), generator=cutout_generator)
        corner = torch.stack((rows, columns), dim=1).to(device)
    return Draws(order, mirrored, shift, corner)


def source_pixels(draws: Draws, first: int, last: int, height: int, width: int, augmentation: Augmentation) -> Tensor:
    """Where each pixel of the batch at positions `first .. last - 1` comes from.

    The result is that of mirroring, then translating over a border of the padding's colour, then cutting out, in this
    order.

    Returns:
        (n, H, W) int64 positions among the N * H * W pixels of all images; N * H * W itself is the mean colour, and the
        position behind it is black.
    """
    images = draws.order[first:last]
    mean_colour = draws.order.numel() * height * width
    border = mean_colour + (augmentation.crop_padding == "black")
    rows = torch.arange(height, device=images.device).view(1, height)
    columns = torch.arange(width, device=images.device).view(1, width)

    # From the output back to the image: the translation is undone first, then the mirroring. Rows and columns stay
    # apart as long as they can, since (n, H) and (n, W) are small; whatever lies outside is put behind all images.
    rows_outside = columns_outside = None
    if draws.shift is not None:
        shift = draws.shift[first:last] - augmentation.translate
        rows, columns = rows + shift[:, :1], columns + shift[:, 1:]
        rows_outside, columns_outside = (rows < 0) | (rows >= height), (columns < 0) | (columns >= width)
    if draws.mirrored is not None:
        columns = torch.where(draws.mirrored[first:last].view(-1, 1), width - 1 - columns, columns)
    row_starts = (images.view(-1, 1) * height + rows) * width
    if rows_outside is not None and columns_outside is not None:
        row_starts, columns = row_starts.masked_fill(rows_outside, border), columns.masked_fill(columns_outside, border)

    positions = row_starts.unsqueeze(2) + columns.unsqueeze(1)
    if draws.shift is not None:
        positions.clamp_(max=border)
    if draws.corner is not None:
        side = torch.arange(augmentation.cutout, device=images.device)
        batch = torch.arange(last - first, device=images.device).view(-1, 1, 1)
        cut_rows, cut_columns = (draws.corner[first:last, axis].view(-1, 1) + side for axis in (0, 1))
        positions[batch, cut_rows.unsqueeze(2), cut_columns.unsqueeze(1)] = mean_colour
    return positions
