"""What CIFAR-10 and CIFAR-100 have in common: where they are found, and how they are read."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import torch

from suite.errors import MissingData, UsageError, nearest
from suite.recipe import Recipe
from suite.task import DataCopy, Splits, Task
from tasks.images.decoded import DamagedFile, DecodedImages, load_decoded
from tasks.pipeline import Normalization, make_splits
from tasks.sources.cache import Source, decode_once
from tasks.sources.cifar_archive import PublishedArchive, find_archive
from tasks.sources.download import DownloadFailed, fetch
from tasks.sources.image_folder import ImageFolder

logger = logging.getLogger(__name__)

TRAIN_IMAGES, TEST_IMAGES = 50_000, 10_000
# Of CIFAR-10's training images; SDGP's recipe and PruneTrain's, the latter for CIFAR-100 too.
NORMALIZATION = Normalization(mean=(125.307, 122.961, 113.8575), std=(51.5865, 50.847, 51.255))
NOTES = {
    "original": "{title} as published",
    "png": "{title} from PNG files, which lose nothing if they were made from the published images",
    "jpeg": "{title} re-encoded as JPEG: accuracies are lower than on the published images, and never to be set "
    "beside published ones; methods on this same copy compare",
}


class Cifar(Task):
    """Base class of both: 50,000 training and 10,000 test images of 32x32 pixels.

    Class attributes:
        dataset: torchvision's class, which knows the published archive.
        label_key: of a batch's dictionary in that archive.
        mirrors: addresses of byte-identical copies of the archive.
        classes: their names in the order of the labels; those of the folders of image files.
        models, recipes: by preset.
        without_data: what needs no download, for the message that there is none.
    """

    input_shape = (3, 32, 32)
    dataset: ClassVar[str]
    label_key: ClassVar[str]
    mirrors: ClassVar[tuple[str, ...]] = ()
    classes: ClassVar[tuple[str, ...]]
    models: ClassVar[Mapping[str, str]]
    recipes: ClassVar[Mapping[str, Recipe]]
    without_data: ClassVar[str] = "--task digits"

    def default_model(self, preset: str) -> str:
        self.check_preset(preset)
        return self.models[preset]

    def recipe(self, preset: str) -> Recipe:
        self.check_preset(preset)
        return self.recipes[preset]

    def prepare(self, data_root: Path, preset: str) -> DataCopy:
        """Find the images in the data root, or fetch them, and decode them once.

        Looked for in this order: the published batches, unpacked and then packed; image files as
        `NAME/{train,test}/CLASS/*.{png,jpg,jpeg}`; the published archive at its authors' host and its mirrors.

        Raises:
            MissingData: if they are neither there nor to be fetched.
            UsageError: if what is there cannot be used.
        """
        self.check_preset(preset)
        data_root = data_root.expanduser()
        if data_root.exists() and not data_root.is_dir():
            raise UsageError(f"--data-root {data_root}: is not a folder")
        try:
            source = self._find(data_root) or self._fetch(data_root)
        except OSError as error:  # a folder on the way may not be entered
            raise UsageError(f"{error.filename or data_root}: cannot be read: {error.strerror or error}") from error
        cached = decode_once(self.registered_name, source, data_root)
        note = NOTES[source.kind].format(title=self.title) + self._incomplete(source)
        return DataCopy(source.kind, cached.checksum, str(cached.path), note)

    def load(self, copy: DataCopy, recipe: Recipe, seed: int, device: torch.device) -> Splits:
        """Put the splits on the device.

        Raises:
            MissingData: if the decoded images are gone or no longer those of `copy`.
            UsageError: if the recipe asks for more images than there are.
        """
        data, found = self.decoded(copy)
        if found != copy.checksum:
            raise MissingData(
                f"{copy.path or 'the sample'}: the images have changed since this trial was planned "
                f"(checksum {found[:8]}, not {copy.checksum[:8]}); run the command again"
            )
        return make_splits(data, recipe, seed, device, NORMALIZATION)

    def decoded(self, copy: DataCopy) -> tuple[DecodedImages, str]:
        """The images of a copy, and their checksum.

        Raises:
            MissingData: if the file is gone or damaged.
        """
        try:
            return load_decoded(Path(copy.path))
        except (FileNotFoundError, DamagedFile) as error:
            raise MissingData(f"{copy.path}: the decoded images are gone or damaged; run the command again") from error

    def check_preset(self, preset: str) -> None:
        """See that there is a preset of that name.

        Raises:
            UsageError: with the nearest name.
        """
        if preset not in self.recipes:
            raise UsageError(f"task {self.registered_name} has no preset '{preset}'{nearest(preset, self.recipes)}")

    def _find(self, data_root: Path) -> Source | None:
        archive = find_archive(data_root, self._published())
        if archive is not None:
            return archive
        folder = data_root / self.registered_name
        return ImageFolder(folder, self.classes, side=32) if folder.is_dir() else None

    def _fetch(self, data_root: Path) -> Source:
        published = self._published()
        archive = data_root / published.filename
        logger.info("no %s in %s; fetching the published archive (170 MB)", self.title, data_root)
        try:
            fetch((published.url, *self.mirrors), published.md5, archive)
        except (DownloadFailed, OSError) as error:
            name = self.registered_name
            raise MissingData(
                f"task {name}: {data_root} holds neither {published.folder}, {published.filename} nor {name}/train, "
                f"and it cannot be fetched ({error}); name another folder by --data-root or PDT_DATA, "
                f"or take what needs no download: {self.without_data}"
            ) from error
        found = self._find(data_root)
        assert found is not None, f"{archive} was fetched and is not there"
        return found

    def _published(self) -> PublishedArchive:
        # Here, because listing tasks must not wait for torchvision.
        try:
            import torchvision.datasets as datasets
        except (ImportError, RuntimeError) as error:  # a RuntimeError where its operators do not fit the torch at hand
            raise UsageError(
                f"torchvision cannot be loaded ({error}); install the release that belongs to torch {torch.__version__}"
            ) from error

        return PublishedArchive.of_torchvision(getattr(datasets, self.dataset), self.label_key)

    def _incomplete(self, source: Source) -> str:
        """What a folder with fewer or more images than were published has to say of itself."""
        if not isinstance(source, ImageFolder):
            return ""
        train, test = (len(source.files[split]) for split in ("train", "test"))
        if (train, test) == (TRAIN_IMAGES, TEST_IMAGES):
            return ""
        logger.warning("%s holds %d training and %d test images, not 50,000 and 10,000", source.path, train, test)
        return f"; not the whole of it: {train:,} training and {test:,} test images"
