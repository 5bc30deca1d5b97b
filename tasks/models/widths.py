"""Checks that the models share: channel counts of scaled networks, and sizes and channels of images."""

from __future__ import annotations


def scaled(channels: int, width: float, narrowest: int) -> int:
    """Return `channels` times `width`.

    Args:
        channels: Number of channels at width 1.
        width: Factor.
        narrowest: Smallest channel count of the network at width 1; multiples of its inverse give integers everywhere.

    Raises:
        ValueError: If the product is not a positive integer.
    """
    found = channels * width
    if not (found >= 1 and float(found).is_integer()):
        raise ValueError(f"width {width} turns {channels} channels into {found}; use a multiple of 1/{narrowest}")
    return int(found)


def check_side(input_shape: tuple[int, int, int], smallest: int) -> None:
    """Check the size of images.

    Args:
        input_shape: Shape (C, H, W) of an image.
        smallest: Smallest height and width for which every layer has an output.

    Raises:
        ValueError: If an image is smaller.
    """
    if min(input_shape[1:]) < smallest:
        height, width = input_shape[1:]
        raise ValueError(f"images are {height}x{width}; the smallest are {smallest}x{smallest}")


def check_channels(input_shape: tuple[int, int, int]) -> None:
    """Check that images have the three channels of torchvision's networks.

    Args:
        input_shape: Shape (C, H, W) of an image.

    Raises:
        ValueError: If an image has another number of channels.
    """
    if input_shape[0] != 3:
        raise ValueError(f"images have {input_shape[0]} channels; the model needs 3")
