"""Decoding of ordinary JPEG files with torchvision, in less time than Pillow takes and to the same pixels.

torchvision and Pillow call the same library. torchvision needs about 60 % of Pillow's processor time for small images.
It holds Python's lock only between files, so threads are enough to use all cores.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

# Baseline and extended sequential, with Huffman coding. torchvision 0.26 smooths an incomplete progressive image
# differently from Pillow.
_FRAMES = (0xC0, 0xC1)
_SCAN = 0xDA
_OTHER_SEGMENTS = (0xC4, 0xDB, 0xDD, 0xFE, *range(0xE0, 0xF0))  # tables, comments and data of applications


class JpegFrame(NamedTuple):
    """Width and height in pixels from the head of a JPEG file."""

    width: int
    height: int


def jpeg_frame(content: memoryview) -> JpegFrame | None:
    """Return the size of a JPEG image of 8 bits and one or three components (grey or colour).

    Returns:
        The size; `None` for any other content: other formats, CMYK, progressive and lossless JPEG, and unusual heads.
    """
    if bytes(content[:2]) != b"\xff\xd8":
        return None
    frame = None
    place = 2
    while place + 10 <= len(content):
        first, marker, length = struct.unpack_from(">BBH", content, place)
        if first != 0xFF:
            return None
        if marker == _SCAN:
            return frame
        if marker in _FRAMES and frame is None:
            bits, height, width, components = struct.unpack_from(">BHHB", content, place + 4)
            if bits != 8 or components not in (1, 3) or not width or not height:
                return None
            frame = JpegFrame(width, height)
        elif marker not in _OTHER_SEGMENTS:
            return None
        place += 2 + length
    return None


def decode_jpeg(content: NDArray[np.uint8]) -> NDArray[np.uint8] | None:
    """Decode the content of a file for which `jpeg_frame` returned a size.

    Args:
        content: (N,) uint8, writable.

    Returns:
        (H, W, 3) uint8, contiguous; `None` if the file is damaged, or torchvision cannot decode JPEG.
    """
    decoder = _torchvision_decoder()
    if decoder is None:
        return None
    try:
        pixels = decoder(torch.from_numpy(content))
    except RuntimeError:
        return None
    return pixels.permute(1, 2, 0).contiguous().numpy()


@cache
def _torchvision_decoder() -> Callable[[Any], Any] | None:
    """Return torchvision's decoder to RGB; `None` for a version without one. Pillow then decodes every file.

    torchvision 0.29 announces that a later version will not have the decoder.
    """
    try:
        # torchvision takes a second to import, and data that is already decoded does not need it.
        from torchvision.io import ImageReadMode, decode_jpeg
    except ImportError:
        return None
    return partial(decode_jpeg, mode=ImageReadMode.RGB)
