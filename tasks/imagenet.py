"""ImageNet (ILSVRC 2012), from the extracted tree or from the official archives. It is never downloaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from suite.errors import MissingData, UsageError
from suite.recipe import Recipe, Tuning
from suite.registry import register
from suite.task import PaperRecipe
from tasks.image_files import ImageFilesTask
from tasks.imagenette import RECIPES as IMAGENETTE
from tasks.imagenette import SETTINGS as IMAGENETTE_SETTINGS
from tasks.sources.extraction import extract_once
from tasks.sources.image_tree import ImageTree, read_tree

CLASSES = 1000
ARCHIVES = {  # the devkit has the classes of the validation images
    "train": ("ILSVRC2012_img_train.tar",),
    "val": ("ILSVRC2012_devkit_t12.tar.gz", "ILSVRC2012_img_val.tar"),
}

# The launcher of PruneTrain's code: 90 epochs; the learning rate is divided by 10 at epochs 41, 61 and 81 (from 1).
PRUNETRAIN = Recipe(
    epochs=90,
    batch_size=256,
    eval_batch_size=256,
    learning_rate=0.1,
    schedule="step",
    milestones=(40 / 90, 60 / 90, 80 / 90),
    weight_decay=1e-4,
    drop_last=False,
)
# PruneTrain's VGG-16 has half the batch and half the learning rate.
PRUNETRAIN_VGG16 = PRUNETRAIN.changed(batch_size=128, learning_rate=0.05)
# ClickTrain's configuration: 95 epochs, with the schedule 31, 61 and 75. Unlike PruneTrain's, its code counts epochs
# from 0. The learning rate is therefore divided by 10 after so many epochs, as in the recipes for CIFAR.
CLICKTRAIN = Recipe(
    epochs=95,
    batch_size=256,
    eval_batch_size=256,
    learning_rate=0.1,
    schedule="step",
    milestones=(31 / 95, 61 / 95, 75 / 95),
    weight_decay=5e-4,
    drop_last=False,
)
# SDGP's code runs 4 processes with 1024 images each and averages their gradients; batch normalisation has the
# statistics of each process. One process does the same with 4 micro-batches of 1024 images. A batch of 1024 alone would
# take four times as many steps, and batch normalisation would treat an undivided batch of 4096 as a whole. 4 processes
# with `recipe.micro_batches=1` are the original arrangement.
# Training images have 160 pixels until epoch 65, then sizes that grow linearly to 192 at epoch 76 (counted from 0). The
# code rounds them to multiples of 32. Epoch 71 is therefore the first with 192, and no epoch has a size in between.
# An evaluation resizes the central 224/256 of the shorter side to 256 pixels. `eval_resize=293`, that is
# 256 * 256 / 224 rounded, does the same.
SDGP = Recipe(
    epochs=88,
    batch_size=4096,
    micro_batches=4,
    eval_batch_size=256,
    learning_rate=1.0,
    peak_at=2 / 88,
    lr_start=1e-4,
    weight_decay=5e-5,
    decay_norm_and_bias=False,
    label_smoothing=0.1,
    train_sizes=(160, 192),
    size_milestones=(71 / 88,),
    flip_tta=True,
)
# ResNet-50 has half the batch in the same code.
SDGP_RESNET50 = SDGP.changed(batch_size=2048, learning_rate=1.7, weight_decay=1e-4)
# That code exempts parameters whose names contain "bn" from weight decay. No name in torchvision's RegNets does.
SDGP_REGNET = SDGP.changed(decay_norm_and_bias=True)
RECIPES = {
    "smoke": IMAGENETTE["smoke"],
    "quick": SDGP.changed(
        epochs=16,
        batch_size=256,
        micro_batches=1,
        learning_rate=0.25,
        train_sizes=(),
        size_milestones=(),
    ),
    "paper": PRUNETRAIN,
}
AT_224 = {"image_size": 224, "eval_resize": 256}
AT_256 = {"image_size": 256, "eval_resize": 293}
SETTINGS: dict[str, dict[str, Any]] = {
    "smoke": IMAGENETTE_SETTINGS["smoke"],
    "quick": {"image_size": 96, "eval_resize": 110},
    "paper": AT_224,
    **dict.fromkeys(("sdgp", "sdgp_regnet", "sdgp_resnet50"), AT_256),
}


@register("task", "imagenet")
class ImageNet(ImageFilesTask):
    """ImageNet: 1,281,167 training images, 50,000 official validation images, 1,000 classes; never downloaded."""

    title = "ImageNet"
    num_classes = CLASSES
    input_shape = (3, 224, 224)
    source = "O. Russakovsky et al., ImageNet Large Scale Visual Recognition Challenge, IJCV 2015 (image-net.org)"
    models: ClassVar = {"smoke": "resnet18", "quick": "resnet18", "paper": "resnet50"}
    recipes = RECIPES
    settings = SETTINGS
    paper_recipe = "PruneTrain (SC 2019)"
    paper_recipes: ClassVar = {
        "prunetrain": PaperRecipe("PruneTrain (SC 2019)", PRUNETRAIN),
        "prunetrain_vgg16": PaperRecipe("PruneTrain (SC 2019), its VGG-16", PRUNETRAIN_VGG16),
        "clicktrain": PaperRecipe("ClickTrain (ICS 2021)", CLICKTRAIN),
        "sdgp": PaperRecipe("SDGP (ICPR 2022, arXiv 2202.00774), its ResNet-18", SDGP),
        "sdgp_regnet": PaperRecipe("SDGP (ICPR 2022, arXiv 2202.00774), its RegNetX-400MF", SDGP_REGNET),
        "sdgp_resnet50": PaperRecipe("SDGP (ICPR 2022, arXiv 2202.00774), its ResNet-50", SDGP_RESNET50),
    }
    stored_side: ClassVar = {"quick": 128, "paper": 256}
    tuning = (
        Tuning(trials=0, chosen_on="other", source="the recipe of imagenette", presets=("smoke",)),
        Tuning(
            trials=0,
            chosen_on="other",
            source="SDGP's recipe in 16 epochs at one image size, with a learning rate in proportion to the batch of "
            "one of its processes; not compared",
            presets=("quick",),
        ),
        Tuning(trials=0, chosen_on="publication", source="the papers of the recipes", presets=("paper",)),
    )

    def find(self, data_root: Path) -> ImageTree:
        """Find `imagenet/train` and `imagenet/val`, or extract the archives in `imagenet`.

        Raises:
            MissingData: There are neither folders nor archives.
            UsageError: The folders do not have 1,000 classes, or an archive cannot be extracted.
        """
        root = data_root / "imagenet"
        splits = [split for split in ARCHIVES if not (root / split).is_dir()]
        missing = [name for split in splits for name in ARCHIVES[split] if not (root / name).is_file()]
        if missing:
            raise MissingData(
                f"task imagenet: {root} has no folder {' and '.join(splits)}, and lacks {', '.join(missing)}, which "
                "image-net.org provides to registered users; give another folder with --data-root or PDT_DATA, or use "
                "--task imagenette, or --preset smoke"
            )
        for split in splits:
            self._extract(root, split)
        tree = read_tree(root)
        if len(tree.classes) != CLASSES:
            raise UsageError(f"{root}: contains {len(tree.classes):,} classes; ImageNet has {CLASSES:,}")
        return tree

    def _extract(self, root: Path, split: str) -> None:
        """Extract the archive of a split.

        Raises:
            UsageError: The archive cannot be extracted.
        """
        # torchvision takes a second to import. Trials on extracted images do not need it.
        from torchvision.datasets import imagenet as archives

        def unpack(temporary: Path) -> None:
            folder = str(temporary.relative_to(root) / split)
            if split == "train":
                archives.parse_train_archive(root, folder=folder)
            else:
                archives.parse_devkit_archive(root)
                archives.parse_val_archive(root, folder=folder)

        extract_once(root / ARCHIVES[split][-1], root / split, unpack)
