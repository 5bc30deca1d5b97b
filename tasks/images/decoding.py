"""Decoding of image files of any size and colour mode to RGB pixels."""

from __future__ import annotations

import os
import stat
import struct
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp")
FORMATS = ("JPEG", "PNG", "WEBP", "BMP")
MAX_BYTES = 1 << 28  # size of a file
MAX_PIXELS = 1 << 27  # pixels of an image: 11,585 x 11,585
MAX_RATIO = 200  # ratio of the sides of an image, because an evaluation resizes the shorter side to a fixed length
_SIXTEEN_BITS = ("I", "I;16", "I;16B", "I;16L", "I;16N")
CONVERSIONS = (
    *("", "palette", "black-and-white", "16-bit grey", "CMYK", "transparency", "another colour space"),
    "16-bit colour",
)
"""Formats that an image may have been converted from. RGB and grey images have the first. Caches store positions."""
# Exceptions of Pillow for damaged files, which depend on the format and the place of the damage.
_ERRORS = (OSError, SyntaxError, ValueError, zlib.error, struct.error, Image.DecompressionBombError)


def shown(path: str | Path) -> str:
    """Return a path as one line of text, with escapes for bytes that are not UTF-8 and for control characters."""
    text = os.fsencode(path).decode(errors="backslashreplace")
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


class BadImage(Exception):
    """A file is not an image that can be used. The message names the file."""


class Decoded(NamedTuple):
    """An image.

    Attributes:
        pixels: (H, W, 3) uint8.
        converted: One of `CONVERSIONS`.
    """

    pixels: NDArray[np.uint8]
    converted: str


def image_size(path: str | Path) -> tuple[int, int]:
    """Return width and height from the head of a file, without decoding the image.

    Raises:
        BadImage: The file cannot be read, or is no image of a supported format and size.
    """
    try:
        with Image.open(_regular(path), formats=FORMATS) as image:
            return _checked_size(path, image.size)
    except _ERRORS as error:
        raise BadImage(f"{shown(path)}: cannot be read as an image: {_reason(error)}") from error


def decode(path: str | Path, shorter_side: int) -> Decoded:
    """Decode an image, and reduce it if its shorter side is longer than `shorter_side` pixels.

    As with torchvision's `ImageFolder`, the image becomes RGB without its transparency, and the orientation in EXIF
    metadata is not applied. Grey values of 16 bits are scaled to 8 bits; Pillow would clip them. Of colours of 16 bits,
    Pillow keeps the higher 8 bits.

    Args:
        path: File.
        shorter_side: Largest length of the shorter side. The aspect ratio is kept, as by torchvision's `Resize`.

    Raises:
        BadImage: The file cannot be read, or is no image of a supported format and size.
    """
    try:
        with Image.open(_regular(path), formats=FORMATS) as image:
            _checked_size(path, image.size)
            converted = _conversion(image)
            pixels = _rgb(image)
    except _ERRORS as error:
        raise BadImage(f"{shown(path)}: cannot be read as an image: {_reason(error)}") from error
    height, width, _ = pixels.shape
    reduced = reduced_size(height, width, shorter_side)
    if reduced != (height, width):
        pixels = np.asarray(Image.fromarray(pixels).resize(reduced[::-1], Image.Resampling.BILINEAR))
    return Decoded(pixels, converted)


def reduced_size(height: int, width: int, shorter_side: int) -> tuple[int, int]:
    """Return height and width of an image that `decode` reduces, as torchvision's `Resize` computes them."""
    short, long = min(height, width), max(height, width)
    if short <= shorter_side:
        return height, width
    longer = int(shorter_side * long / short)
    return (shorter_side, longer) if height <= width else (longer, shorter_side)


def _rgb(image: Any) -> NDArray[np.uint8]:
    if image.mode in _SIXTEEN_BITS:
        wide = np.asarray(image).astype(np.int64).clip(0, 65535)
        grey = ((wide * 255 + 32767) // 65535).astype(np.uint8)
        return np.repeat(grey[:, :, None], 3, axis=2)
    return np.asarray(image.convert("RGB"))


def _conversion(image: Any) -> str:
    """Return what a Pillow image will be converted from, before it is decoded."""
    mode = image.mode
    if mode in _SIXTEEN_BITS:
        return "16-bit grey"
    if mode == "RGB" and any("RGB;16" in str(tile[3]) for tile in image.tile):
        return "16-bit colour"  # Pillow reduces it to RGB when it decodes the file
    names = {"RGB": "", "L": "", "P": "palette", "1": "black-and-white", "CMYK": "CMYK"}
    return names.get(mode, "transparency" if mode in ("RGBA", "LA", "PA", "RGBa", "La") else "another colour space")


def _regular(path: str | Path) -> str | Path:
    """Refuse pipes and devices, from which a read may never return, and files that are empty or too large."""
    found = Path(path).stat()
    if not stat.S_ISREG(found.st_mode):
        raise BadImage(f"{shown(path)}: is not a regular file")
    if not found.st_size:
        raise BadImage(f"{shown(path)}: is empty")
    if found.st_size > MAX_BYTES:
        raise BadImage(f"{shown(path)}: is larger than {MAX_BYTES:,} bytes, the limit for an image")
    return path


def _checked_size(path: str | Path, size: tuple[int, int]) -> tuple[int, int]:
    """Check the size before a pixel is decoded."""
    if size[0] * size[1] > MAX_PIXELS:
        raise BadImage(f"{shown(path)}: has {size[0]:,}x{size[1]:,} pixels; the limit is {MAX_PIXELS:,} pixels")
    if max(size) > MAX_RATIO * min(size):
        raise BadImage(f"{shown(path)}: has {size[0]:,}x{size[1]:,} pixels; the limit of the ratio is {MAX_RATIO}")
    return size


def _reason(error: BaseException) -> str:
    """Return one line without the path, which is already in the message."""
    if isinstance(error, UnidentifiedImageError):
        return f"its content is not {', '.join(FORMATS[:-1])} or {FORMATS[-1]}"
    return (isinstance(error, OSError) and error.strerror) or " ".join(str(error).split())
