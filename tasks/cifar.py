"""Common base of CIFAR-10 and CIFAR-100, which finds and reads the data."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, ClassVar

import torch

from suite.errors import MissingData, UsageError
from suite.recipe import Recipe
from suite.task import DataCopy, Splits, Task
from tasks.images.splits import DecodedImages
from tasks.pipeline import Normalization, check_unchanged, make_splits
from tasks.sources.cache import DamagedFile, Source, decode_once, load_decoded
from tasks.sources.cifar_archive import find_archive
from tasks.sources.download import DownloadFailed, fetch
from tasks.sources.image_folder import ImageFolder

logger = logging.getLogger(__name__)

TRAIN_IMAGES, TEST_IMAGES = 50_000, 10_000
# Statistics of CIFAR-10's training images, in the recipes of SDGP and PruneTrain. PruneTrain uses them for CIFAR-100
# too.
NORMALIZATION = Normalization(mean=(125.307, 122.961, 113.8575), std=(51.5865, 50.847, 51.255))
# A recipe of this suite, as short as training of a small residual network allows
SHORT = Recipe(
    epochs=10,
    batch_size=128,
    learning_rate=0.2,
    peak_at=0.25,
    nesterov=True,
    label_smoothing=0.1,
    translate=2,
)
NOTES = {
    "original": "{title} as published",
    "png": "{title} from PNG files, which are exact if they were made from the published images",
    "jpeg": "{title} re-encoded as JPEG: accuracies are lower than on the published images and must not be compared "
    "with published ones; methods that use the same copy can be compared",
}


class Cifar(Task):
    """Base class of both tasks: 50,000 training and 10,000 test images of 32x32 pixels.

    Class attributes:
        dataset: Name of torchvision's class, which describes the published archive.
        mirrors: URLs of byte-identical copies of the archive, which are tried before that of the authors.
        classes: Names of the classes in the order of the labels; folders of image files have these names.
        without_data: Options that need no download, for the message about missing data.
    """

    input_shape = (3, 32, 32)
    dataset: ClassVar[str]
    mirrors: ClassVar[tuple[str, ...]] = ()
    classes: ClassVar[tuple[str, ...]]
    without_data: ClassVar[str] = "--task digits"

    def prepare(self, data_root: Path, preset: str, recipe: Recipe | None = None) -> DataCopy:
        """Find the images in the data root, or download them, and decode them once.

        The search order is: the published batches, first unpacked, then packed; image files in
        `NAME/{train,test}/CLASS/*.{png,jpg}`; the published archive on its mirrors and its authors' host.

        Raises:
            MissingData: The images are not found and cannot be downloaded.
            UsageError: The files that were found cannot be used.
        """
        try:
            source = self._find(data_root) or self._fetch(data_root)
        except OSError as error:  # no permission for a folder of the path
            raise UsageError(f"{error.filename or data_root}: cannot be read: {error.strerror or error}") from error
        cached = decode_once(self.registered_name, source, data_root)
        note = NOTES[source.kind].format(title=self.title)
        if isinstance(source, ImageFolder):
            train, test = len(source.tree.train), len(source.tree.test)
            if (train, test) != (TRAIN_IMAGES, TEST_IMAGES):
                note += f"; incomplete: {train:,} training and {test:,} test images"
        return DataCopy(source.kind, cached.checksum, str(cached.path), note)

    def load(self, copy: DataCopy, recipe: Recipe, seed: int, device: torch.device) -> Splits:
        """Put the splits on the device.

        Raises:
            MissingData: The decoded images have been deleted or are no longer those of `copy`.
            UsageError: The recipe asks for more images than there are.
        """
        data, checksum = self.decoded(copy)
        check_unchanged(f"{copy.path or 'the sample'}: the images", checksum, copy)
        return make_splits(data, recipe, seed, device, NORMALIZATION)

    def decoded(self, copy: DataCopy) -> tuple[DecodedImages, str]:
        """Return the images of a copy, and their checksum.

        Raises:
            MissingData: The file has been deleted or is damaged.
        """
        try:
            return load_decoded(Path(copy.path))
        except (FileNotFoundError, DamagedFile) as error:
            raise MissingData(
                f"{copy.path}: the decoded images are missing or damaged; run the command again"
            ) from error

    def _find(self, data_root: Path) -> Source | None:
        archive = find_archive(data_root, self._published())
        if archive is not None:
            return archive
        folder = data_root / self.registered_name
        return ImageFolder(folder, self.classes, side=32) if folder.is_dir() else None

    def _fetch(self, data_root: Path) -> Source:
        published = self._published()
        archive: Path = data_root / published.filename
        logger.info("%s is not in %s; downloading the published archive (170 MB)", self.title, data_root)
        try:
            fetch((*self.mirrors, published.url), published.tgz_md5, archive)
        except (DownloadFailed, OSError) as error:
            name = self.registered_name
            raise MissingData(
                f"task {name}: {data_root} contains neither {published.base_folder}, {published.filename} nor "
                f"{name}/train, and the download failed ({error}); give another folder with --data-root or PDT_DATA, "
                f"or use data that needs no download: {self.without_data}"
            ) from error
        source = self._find(data_root)
        assert source is not None, f"{archive} was downloaded, but it does not exist"
        return source

    def _published(self) -> Any:
        """Return torchvision's class, which describes and reads the published archive."""
        # torchvision takes a second to import. Only data that was published as an archive needs it.
        try:
            import torchvision.datasets as datasets
        except (ImportError, RuntimeError) as error:  # RuntimeError: torchvision was built for another version of torch
            raise UsageError(
                f"torchvision cannot be loaded ({error}); install the release for torch {torch.__version__}"
            ) from error

        return getattr(datasets, self.dataset)
