"""Any folder of image files with one subfolder per class; classes and image size are detected."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from suite.errors import MissingData
from suite.recipe import Tuning
from suite.registry import register
from tasks.image_files import ImageFilesTask
from tasks.imagenette import RECIPES as IMAGENETTE
from tasks.imagenette import SETTINGS as IMAGENETTE_SETTINGS
from tasks.images.decoding import BadImage, image_size
from tasks.sources.image_tree import ImageTree, read_tree

RECIPES = {**IMAGENETTE, "quick": IMAGENETTE["quick"].changed(eval_every=1)}
SETTINGS = {preset: {"crop_area": one["crop_area"]} for preset, one in IMAGENETTE_SETTINGS.items()}
LARGEST_SIDE = 224
MULTIPLE = 32  # networks for ImageNet reduce images by this factor
PROBED = 200


@register("task", "imagefolder")
class ImageFolderTask(ImageFilesTask):
    """Your images, --data-root DIR: `DIR/train/CLASS/*.jpg` with `DIR/val/` or `DIR/test/`, or `DIR/CLASS/*.jpg`."""

    title = "Image folder"
    num_classes = 1000  # for a network that is described before the folder is known
    input_shape = (3, LARGEST_SIDE, LARGEST_SIDE)
    detected = "classes and image size (the values above are those of networks that are described without a folder)"
    source = "files of the user"
    models: ClassVar = dict.fromkeys(RECIPES, "resnet18")
    recipes = RECIPES
    settings = SETTINGS
    paper_recipe = "none: SDGP's schedule for ImageNet, at another batch size"
    stored_side: ClassVar = {"quick": 256, "paper": 256}
    caches_in_home: ClassVar = True
    tuning = (
        Tuning(trials=0, chosen_on="other", source="the recipes of imagenette, whose images may differ from yours"),
    )

    def needs_data_root(self, preset: str) -> bool:
        """Return whether the preset needs the user's images; without a folder, `smoke` generates its own."""
        return preset != "smoke"

    def find(self, data_root: Path) -> ImageTree:
        """Use the folder `imagefolder` in the data root if it exists, otherwise the data root itself.

        Raises:
            MissingData: There is no such folder.
            UsageError: The layout of the folder is wrong.
        """
        inside = data_root / self.registered_name
        folder = inside if inside.is_dir() else data_root
        if not folder.is_dir():
            raise MissingData(
                f"task imagefolder: {folder} is not a folder; give that of your images with --data-root DIR, or use "
                "--preset smoke without it, which needs no data"
            )
        return read_tree(folder)

    def detected_side(self, tree: ImageTree) -> int:
        """Return the median length of the shorter sides, rounded down to a multiple of 32, at most 224."""
        sides = []
        for file in tree.files[:: max(1, len(tree.files) // PROBED)]:
            try:
                sides.append(min(image_size(tree.root / file.path)))
            except BadImage:
                continue  # decoding reports the file, with its path
        median = sorted(sides)[len(sides) // 2] if sides else LARGEST_SIDE
        return min(LARGEST_SIDE, max(MULTIPLE, median // MULTIPLE * MULTIPLE))
