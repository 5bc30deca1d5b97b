"""Images of one size in the layout `FOLDER/{train,test}/CLASS/*`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from suite.errors import UsageError
from tasks.images.decoding import MAX_PIXELS, BadImage, decode, shown
from tasks.images.splits import DecodedImages
from tasks.sources.image_cache import in_threads
from tasks.sources.image_tree import read_tree
from tasks.sources.progress import progress


class ImageFolder:
    """A data set as a folder of image files; a `tasks.sources.cache.Source`.

    Attributes:
        kind: `jpeg` if any image is a JPEG file, otherwise `png`.
        path: Folder with the subfolders `train` and `test`.
        tree: Its image files.
    """

    def __init__(self, path: Path, classes: tuple[str, ...], side: int) -> None:
        """List the folder.

        Args:
            path: Folder with the subfolders `train` and `test`.
            classes: Names of the classes' folders, sorted.
            side: Height and width of every image in pixels.

        Raises:
            UsageError: The layout or the classes are others.
        """
        self.path, self._side, self.tree = path, side, read_tree(path)
        if wrong := sorted({*classes}.symmetric_difference(self.tree.classes)):
            fault = "is not one of" if wrong[0] in self.tree.classes else "is missing in"
            raise UsageError(f"{path}: '{shown(wrong[0])}' {fault} the classes {', '.join(classes)}")
        jpeg = any(file.path.lower().endswith((".jpg", ".jpeg")) for file in self.tree.files)
        self.kind = "jpeg" if jpeg else "png"

    def fingerprint(self) -> str:
        """Return a hash of every file's name, size and modification time."""
        return self.tree.fingerprint()

    def decode(self) -> DecodedImages:
        """Decode all images.

        Raises:
            UsageError: A file is not an image, or the image has another size.
        """
        every = self.tree.files
        images = np.empty((len(every), self._side, self._side, 3), dtype=np.uint8)
        with progress(f"decoding {len(every):,} images of {self.path}", len(every)) as advance:
            for number, pixels in enumerate(in_threads(self._pixels, self.tree.root, every)):
                images[number] = pixels
                advance(1)
        labels = np.array([file.label for file in every], dtype=np.int64)
        cut = len(self.tree.train)
        return DecodedImages(images[:cut], labels[:cut], images[cut:], labels[cut:])

    def _pixels(self, path: Path) -> NDArray[np.uint8]:
        try:
            pixels = decode(path, MAX_PIXELS).pixels
        except BadImage as error:
            raise UsageError(str(error)) from error
        if pixels.shape[:2] != (self._side, self._side):
            height, width, _ = pixels.shape
            raise UsageError(f"{path}: the image is {width}x{height}, not {self._side}x{self._side}")
        return pixels
