"""Imagenette, ten classes of ImageNet that are easy to tell apart: the published archive, or smaller copies."""

from __future__ import annotations

import logging
import tarfile
from pathlib import Path
from typing import ClassVar

from suite.errors import MissingData, UsageError
from suite.recipe import Recipe, Tuning
from suite.registry import register
from tasks.image_files import ImageFilesTask
from tasks.sources.download import DownloadFailed, fetch
from tasks.sources.extraction import extract_once
from tasks.sources.image_tree import ImageTree, read_tree

logger = logging.getLogger(__name__)

# The published archives by the folder that they contain, with their MD5. Address and MD5s are those of torchvision's
# `Imagenette`. The first archive, whose images have a shorter side of 160 pixels, is downloaded.
URL = "https://s3.amazonaws.com/fast-ai-imageclas/imagenette2-160.tgz"
ARCHIVES = {
    "imagenette2-160": "e793b78cc4c9e9a4ccc0c1155377a412",
    "imagenette2-320": "3df6f0d01a2c9592104656642f5e78a3",
    "imagenette2": "fe2fc210e6bb7c5664d602c3cd71e612",
}
FOLDERS = (*ARCHIVES, "imagenette")
CLASSES = 10

QUICK = Recipe(
    epochs=26,
    batch_size=64,
    eval_batch_size=128,
    learning_rate=0.1,
    peak_at=0.25,
    nesterov=True,
    weight_decay=5e-4,
    label_smoothing=0.1,
    eval_every=5,
    flip_tta=True,
)
RECIPES = {
    "smoke": Recipe(epochs=3, batch_size=50, learning_rate=0.02, peak_at=0.3, nesterov=True),
    "quick": QUICK,
    # No paper trains on these images alone: SDGP's ImageNet schedule in 88 epochs.
    "paper": Recipe(
        epochs=88,
        batch_size=128,
        eval_batch_size=128,
        learning_rate=0.125,
        peak_at=2 / 88,
        weight_decay=5e-5,
        decay_norm_and_bias=False,
        label_smoothing=0.1,
        flip_tta=True,
    ),
}
SETTINGS = {
    "smoke": {"crop_area": 0.5},
    "quick": {"image_size": 96, "eval_resize": 108, "crop_area": 0.35},
    "paper": {"image_size": 160, "crop_area": 0.25},
}


@register("task", "imagenette")
class Imagenette(ImageFilesTask):
    """Imagenette: 9,469 training and 3,925 test images in 10 classes of ImageNet."""

    title = "Imagenette"
    num_classes = CLASSES
    input_shape = (3, 64, 64)
    source = "J. Howard, Imagenette, 2019 (github.com/fastai/imagenette), from ImageNet (Russakovsky et al., IJCV 2015)"
    models: ClassVar = dict.fromkeys(RECIPES, "resnet18")
    recipes = RECIPES
    settings = SETTINGS
    paper_recipe = "none: SDGP's schedule for ImageNet, at another batch size"
    stored_side: ClassVar = {"quick": 128, "paper": 224}
    tuning = (
        Tuning(
            trials=None,
            chosen_on="other",
            source="so that a trial of the generated images takes seconds; not compared with others",
            presets=("smoke",),
        ),
        Tuning(
            trials=None,
            chosen_on="validation images",
            source="the number of epochs only: dense training for 8 epochs reached 77.8 % of 1,000 validation images",
            presets=("quick",),
        ),
        Tuning(trials=0, chosen_on="other", source="SDGP's schedule for ImageNet; not compared", presets=("paper",)),
    )

    def find(self, data_root: Path) -> ImageTree:
        """Find a folder of Imagenette in the data root, or a published archive, or download the smallest archive.

        Raises:
            MissingData: There is neither, and the download failed.
            UsageError: The folder is not Imagenette, or the archive cannot be extracted.
        """
        name = next((name for name in FOLDERS if (data_root / name).is_dir()), "")
        if not name:
            name = next((name for name in ARCHIVES if (data_root / f"{name}.tgz").is_file()), FOLDERS[0])
            archive = data_root / f"{name}.tgz"
            if not archive.is_file():
                self._download(archive)
            self._extract(archive, data_root / name)
        tree = read_tree(data_root / name)
        if len(tree.classes) != CLASSES:
            raise UsageError(f"{tree.root}: contains {len(tree.classes)} classes; Imagenette has {CLASSES}")
        return tree

    def _download(self, archive: Path) -> None:
        """Download the smallest archive.

        Raises:
            MissingData: The download failed.
        """
        logger.info("Imagenette is not in %s; downloading the published archive (99 MB)", archive.parent)
        try:
            fetch((URL,), ARCHIVES[archive.stem], archive)
        except (DownloadFailed, OSError) as error:
            archives = ", ".join(f"{one}.tgz" for one in ARCHIVES)
            raise MissingData(
                f"task imagenette: {archive.parent} contains none of {', '.join(FOLDERS)} and none of {archives}, and "
                f"the download failed ({error}); give another folder with --data-root or PDT_DATA, or use data that "
                "needs no download: --preset smoke"
            ) from error

    def _extract(self, archive: Path, folder: Path) -> None:
        """Verify an archive and extract it.

        Raises:
            UsageError: It is not the published archive, or cannot be extracted.
        """

        def unpack(temporary: Path) -> None:
            # torchvision takes a second to import. Trials on extracted images do not need it.
            from torchvision.datasets.utils import check_integrity

            if not check_integrity(archive, ARCHIVES[folder.name]):
                raise UsageError(
                    f"{archive}: is not the published archive, or incomplete (its MD5 is not {ARCHIVES[folder.name]}); "
                    "remove it, or extract it yourself"
                )
            with tarfile.open(archive, "r:gz") as packed:
                packed.extractall(temporary, filter="data")

        extract_once(archive, folder, unpack)
