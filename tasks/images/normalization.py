"""Normalisation of stored images to the inputs of a network."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from suite.errors import UsageError


@dataclass(frozen=True)
class Normalization:
    """Mean and standard deviation of each channel, in the units of stored images: 0 to 255."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    @classmethod
    def of(cls, images: NDArray[np.uint8]) -> Normalization:
        """Return the mean and standard deviation of images (N, H, W, C); 1 replaces a standard deviation of 0."""
        mean = images.mean(axis=(0, 1, 2), dtype=np.float64)
        std = images.std(axis=(0, 1, 2), dtype=np.float64)
        return cls(tuple(map(float, mean)), tuple(float(value) or 1.0 for value in std))

    def with_std(self, std: tuple[float, ...]) -> Normalization:
        """Return the normalisation with other standard deviations, of pixels in [0, 1], if there are any.

        Raises:
            UsageError: Their number is not that of the channels.
        """
        if len(std) not in (0, len(self.std)):
            raise UsageError(f"recipe.pixel_std has {len(std)} values; images have {len(self.std)} channels")
        return Normalization(self.mean, tuple(255 * value for value in std)) if std else self


class Normalizer:
    """Computes (x - mean) / std of images of one size on a device."""

    def __init__(self, normalization: Normalization, height: int, width: int, device: torch.device) -> None:
        self._height, self._width = height, width
        # (x - mean) / std = x * scale + offset, with scale and offset repeated for a whole image: a loop over an
        # innermost dimension of three channels would not be vectorised.
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
