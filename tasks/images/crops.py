"""Random resized crops and mirroring of images of any size, and the central crops of an evaluation.

The crops depend only on the seed, the epoch and the number of the image. torchvision's own functions compute their
pixels on the CPU, for every training device, so that a GPU sees the same batches.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from suite.recipe import Augmentation
from tasks.images.augmentation import Normalization, Normalizer
from tasks.images.splits import EpochBatches, draw_mirrored, epoch_generator
from tasks.images.stored import ImageSource

RATIOS = (3 / 4, 4 / 3)  # smallest and largest aspect ratio of a crop
ATTEMPTS = 10
_DRAWN_AT_ONCE = 1 << 16  # images; a bound on the memory of the random numbers


class Cuts(NamedTuple):
    """How images are cut: a box out of each, resized, a window out of the result, which may be mirrored.

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


def draw_boxes(sizes: Tensor, smallest_area: float, generator: torch.Generator) -> Tensor:
    """Draw the box of a random crop for each image, with the distribution of torchvision's `RandomResizedCrop`.

    Area and aspect ratio are drawn up to ten times, until a box fits into the image. If none fits, the largest central
    box with an allowed aspect ratio is used. All images use the same number of random numbers.

    Args:
        sizes: (N, 2) int64 height and width of each image.
        smallest_area: Smallest share of an image's area; the largest share is 1.
        generator: Source of random numbers.

    Returns:
        (N, 4) int64: first row, first column, height and width of each box.
    """
    count = len(sizes)
    height, width = sizes[:, :1].double(), sizes[:, 1:].double()
    draws = torch.rand(count, 2 * ATTEMPTS + 2, generator=generator, dtype=torch.float64)
    area = height * width * (smallest_area + (1 - smallest_area) * draws[:, :ATTEMPTS])
    low, high = np.log(RATIOS)
    ratio = torch.exp(low + (high - low) * draws[:, ATTEMPTS : 2 * ATTEMPTS])
    box_width, box_height = (area * ratio).sqrt().round(), (area / ratio).sqrt().round()
    fits = (box_width > 0) & (box_width <= width) & (box_height > 0) & (box_height <= height)

    # Take the first attempt that fits.
    first = fits.int().argmax(dim=1, keepdim=True)
    found = fits.any(dim=1, keepdim=True)
    box_height, box_width = box_height.gather(1, first), box_width.gather(1, first)
    # If none fits, cut a too wide or too high image to the nearest allowed aspect ratio.
    own_ratio = width / height
    box_height = torch.where(found, box_height, torch.where(own_ratio < RATIOS[0], (width / RATIOS[0]).round(), height))
    box_width = torch.where(found, box_width, torch.where(own_ratio > RATIOS[1], (height * RATIOS[1]).round(), width))

    spare_rows, spare_columns = height - box_height, width - box_width
    top = torch.where(found, (draws[:, -2:-1] * (spare_rows + 1)).floor(), (spare_rows / 2).floor())
    left = torch.where(found, (draws[:, -1:] * (spare_columns + 1)).floor(), (spare_columns / 2).floor())
    return torch.cat([top, left, box_height, box_width], dim=1).long()


class CropBatches(EpochBatches):
    """One split of images of any size; implements `suite.task.Batches`.

    A training image is a random crop, resized and mirrored at random. The shorter side of a test image is resized to a
    fixed length, and the image's centre is cut out. Both are resized bilinearly with antialiasing.

    Attributes:
        num_samples: Number of images in the split.
        labels: (N,) int64.
    """

    def __init__(
        self,
        source: ImageSource,
        chosen: NDArray[np.int64],
        *,
        size: int,
        eval_resize: int,
        crop_area: float,
        augmentation: Augmentation,
        normalization: Normalization,
        device: torch.device,
        training: bool,
        seed: int,
        drop_last: bool,
    ) -> None:
        """Select the images of the split.

        Args:
            source: Images.
            chosen: Numbers of the images of this split.
            size: Height and width of the images that are yielded.
            eval_resize: Length of the shorter side of a test image before its centre is cut out.
            crop_area: Smallest share of an image's area in a training crop.
            augmentation: Whether and how training images are mirrored. Other changes are those of the crop.
            normalization: Normalisation, applied last.
            device: Device of the batches.
            training: Whether epochs are shuffled and augmented.
            seed: Seed of the trial.
            drop_last: Whether a training split drops a last batch that is smaller than the others.
        """
        super().__init__(len(chosen), training, drop_last)
        self._source, self._chosen = source, chosen
        self._sizes = torch.from_numpy(source.sizes[chosen])
        self.labels = torch.from_numpy(source.labels[chosen])
        self._size, self._eval_resize, self._crop_area, self._augmentation = size, eval_resize, crop_area, augmentation
        self._seed, self._device = seed, device
        self._normalized = Normalizer(normalization, size, size, device)

    def _training_epoch(self, epoch: int, spans: Sequence[range]) -> Iterator[tuple[Tensor, Tensor]]:
        generator = functools.partial(epoch_generator, seed=self._seed, epoch=epoch)
        order = torch.randperm(self.num_samples, generator=generator("order")).numpy()
        crops = generator("crop")
        boxes = [draw_boxes(some, self._crop_area, crops).numpy() for some in self._sizes.split(_DRAWN_AT_ONCE)]
        mirrored = draw_mirrored(self._seed, epoch, torch.arange(self.num_samples), self._augmentation).numpy()
        resized, windows = (np.broadcast_to(np.int64(value), (self.num_samples, 2)) for value in (self._size, 0))
        cuts = Cuts(np.concatenate(boxes), resized, windows, mirrored)
        return self._batches([order[span.start : span.stop] for span in spans], cuts)

    def _ordered(self, spans: Sequence[range]) -> Iterator[tuple[Tensor, Tensor]]:
        return self._batches([np.arange(span.start, span.stop) for span in spans], self._central_cuts())

    def _unaugmented(self, images: Tensor) -> Tensor:
        ((found, _),) = self._batches([images.numpy()], self._central_cuts())
        return found

    def _central_cuts(self) -> Cuts:
        """Return the cuts of torchvision's `Resize` and `CenterCrop`."""
        sizes = self._sizes.numpy()
        short = sizes.min(axis=1, keepdims=True)
        # The division has to come last, as in torchvision, so that the integer part is the same.
        resized = np.where(sizes == short, self._eval_resize, (self._eval_resize * sizes / short).astype(np.int64))
        windows = np.rint((resized - self._size) / 2).astype(np.int64)
        boxes = np.concatenate([np.zeros_like(sizes), sizes], axis=1)
        return Cuts(boxes, resized, windows, np.zeros(len(sizes), dtype=bool))

    def _batches(self, batches: Sequence[NDArray[np.int64]], cuts: Cuts) -> Iterator[tuple[Tensor, Tensor]]:
        """Compute the images of each batch, given by their numbers, with as many threads as torch uses.

        On a GPU, the next batch is computed during the step of the current one.
        """

        threads = torch.get_num_threads()

        def gather(images: NDArray[np.int64], pool: ThreadPoolExecutor) -> Tensor:
            pixels = torch.empty(len(images), self._size, self._size, 3, dtype=torch.uint8)

            def fill(first: int) -> None:
                for place in range(first, len(images), threads):
                    pixels[place] = self._cut(int(images[place]), cuts).permute(1, 2, 0)

            list(pool.map(fill, range(threads)))
            return pixels

        with ThreadPoolExecutor(threads) as pool, ThreadPoolExecutor(1) as ahead:
            following: Future[Tensor] | None = None
            for number, images in enumerate(batches):
                pixels = gather(images, pool) if following is None else following.result()
                following = None
                if self._device.type != "cpu" and number + 1 < len(batches):
                    following = ahead.submit(gather, batches[number + 1], pool)
                yield self._normalized(pixels.to(self._device)), self.labels[torch.from_numpy(images)].to(self._device)

    def _cut(self, image: int, cuts: Cuts) -> Tensor:
        """Return the window of an image of the split, (3, size, size) uint8."""
        top, left, height, width = cuts.boxes[image].tolist()
        row, column = cuts.windows[image].tolist()
        box = self._source.read(int(self._chosen[image]))[top : top + height, left : left + width]
        window = _resize(box, cuts.resized[image].tolist())[:, row : row + self._size, column : column + self._size]
        return window.flip(2) if cuts.mirrored[image] else window


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
