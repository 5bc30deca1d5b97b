"""Crops of JPEG files by NVIDIA DALI, which decodes, resizes and mirrors on the GPU if the training is there.

The boxes are those of torchvision's cutter. Pixels differ by a few levels, because DALI rounds differently. torchvision
cuts files that are not ordinary JPEG files, so that colour modes are converted in the same way.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from suite.errors import UsageError
from tasks.images.cutting import Cuts, TorchvisionCutter
from tasks.images.decoding import BadImage, jpeg_content, shown
from tasks.images.stored import ImageSource


class ImageFiles(ImageSource, Protocol):
    """Images of one split, each in its own file."""

    def path(self, index: int) -> Path:
        """Return the file of an image."""


def check_dali() -> None:
    """Check that DALI is installed.

    Raises:
        UsageError: DALI is not installed.
    """
    if importlib.util.find_spec("nvidia") is None or importlib.util.find_spec("nvidia.dali") is None:
        raise UsageError(
            "decoder=dali: NVIDIA DALI is not installed; install it with pip install -e '.[dali13]' (CUDA 13) "
            "or '.[dali12]' (CUDA 12)"
        )


class DaliCutter:
    """Cuts and resizes JPEG files by DALI; implements `tasks.images.cutting.Cutter`."""

    def __init__(self, files: ImageFiles, size: int, device: torch.device) -> None:
        """Set where images are read and decoded.

        Args:
            files: Images at the sizes of their files.
            size: Height and width of the windows.
            device: Device of the pixels. On the CPU, DALI decodes there.
        """
        self._files, self._size, self._device = files, size, device
        self._other_files = TorchvisionCutter(files, size)
        self._pipeline: Any = None

    def __call__(self, images: NDArray[np.int64], cuts: Cuts, pool: Executor) -> Tensor:
        """Cut the images; see `Cutter`. The pixels are on the device."""
        contents = list(pool.map(self._content, images.tolist()))
        by_dali = np.array([content is not None for content in contents], dtype=bool)
        pixels = torch.empty(len(images), self._size, self._size, 3, dtype=torch.uint8, device=self._device)
        if len(places := np.flatnonzero(by_dali)):
            pixels[places] = self._cut(images[places], [contents[place] for place in places], cuts.of(places))
        if len(places := np.flatnonzero(~by_dali)):
            pixels[places] = self._other_files(images[places], cuts.of(places), pool).to(self._device)
        return pixels

    def _content(self, image: int) -> NDArray[np.uint8] | None:
        """Return the content of an ordinary JPEG file; `None` for other files, and for those that cannot be read."""
        try:
            return jpeg_content(self._files.path(image))
        except (BadImage, OSError):
            return None  # torchvision's cutter reports the reason

    def _cut(self, images: NDArray[np.int64], contents: Sequence[Any], cuts: Cuts) -> Tensor:
        """Return the windows of JPEG files.

        Raises:
            UsageError: A file cannot be decoded.
        """
        try:
            return self._run(contents, cuts)
        except RuntimeError as error:
            self._pipeline = None  # DALI does not continue after an error
            if len(images) == 1:
                self._files.read(int(images[0]))  # a damaged file gives the same message as without DALI
                raise UsageError(
                    f"{shown(self._files.path(int(images[0])))}: DALI cannot decode this file, but torchvision can; "
                    "use decoder=torchvision"
                ) from error
            # DALI does not report which file failed.
            for place in range(len(images)):
                first = np.array([place])
                self._cut(images[first], [contents[place]], cuts.of(first))
            raise

    def _run(self, contents: Sequence[Any], cuts: Cuts) -> Tensor:
        from nvidia.dali.plugin.pytorch import feed_ndarray  # an optional package

        if self._pipeline is None or self._pipeline.max_batch_size < len(contents):
            self._pipeline = _build(self._size, len(contents), self._device)
        boxes = cuts.boxes.astype(np.int32)
        (windows,) = self._pipeline.run(
            content=list(contents),
            start=np.ascontiguousarray(boxes[:, :2]),
            shape=np.ascontiguousarray(boxes[:, 2:]),
            resized=cuts.resized.astype(np.float32),
            window=cuts.windows.astype(np.int32),
            mirrored=cuts.mirrored.astype(np.int32),
        )
        # The copy waits for DALI's stream, because DALI's next run uses its memory again.
        pixels = torch.empty(len(contents), self._size, self._size, 3, dtype=torch.uint8, device=self._device)
        feed_ndarray(windows.as_tensor(), pixels)
        return pixels


def _build(size: int, batch_size: int, device: torch.device) -> Any:
    """Return a pipeline of DALI with the inputs `content`, `start`, `shape`, `resized`, `window` and `mirrored`."""
    from nvidia.dali import Pipeline, fn, types  # an optional package

    on_gpu = device.type == "cuda"
    number = (torch.cuda.current_device() if device.index is None else device.index) if on_gpu else None
    pipeline = Pipeline(batch_size, torch.get_num_threads(), number, prefetch_queue_depth=1)
    with pipeline:
        start, shape, window = (
            fn.external_source(name=name, dtype=types.INT32, ndim=1) for name in ("start", "shape", "window")
        )
        # As without DALI, the orientation in EXIF metadata is not applied, and colours are interpolated as by libjpeg.
        images = fn.decoders.image_slice(
            fn.external_source(name="content", dtype=types.UINT8, ndim=1),
            start=start,
            shape=shape,
            axes=[0, 1],
            device="mixed" if on_gpu else "cpu",
            output_type=types.RGB,
            adjust_orientation=False,
            jpeg_fancy_upsampling=True,
        )
        images = fn.resize(
            images,
            size=fn.external_source(name="resized", dtype=types.FLOAT, ndim=1),
            interp_type=types.INTERP_LINEAR,
            antialias=True,
        )
        images = fn.slice(images, start=window, shape=[size, size], axes=[0, 1])
        mirrored = fn.external_source(name="mirrored", dtype=types.INT32, ndim=0)
        pipeline.set_outputs(fn.flip(images, horizontal=mirrored))
    pipeline.build()
    return pipeline
