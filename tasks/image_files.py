"""Base class of tasks of image files of any size: random resized crops from a cache of decoded images."""

from __future__ import annotations

import hashlib
import itertools
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import torch
from annotated_types import Interval

from suite.errors import MissingData, UsageError
from suite.files import default_data_root, read_path
from suite.recipe import Recipe
from suite.task import DataCopy, Inputs, Splits, Task
from tasks.images.augmentation import Normalization
from tasks.images.crops import CropBatches
from tasks.images.decoding import MAX_PIXELS, SUFFIXES, shown
from tasks.images.splits import check_train_sizes, choose_splits
from tasks.images.stored import DamagedCache, ImageSource, MemoryImages, StoredImages
from tasks.pipeline import check_unchanged
from tasks.sources.cache import cache_folder
from tasks.sources.generated_shapes import NOTE, SHAPES, SIDE, TEST_IMAGES, TRAIN_IMAGES, generated_shapes
from tasks.sources.image_cache import FileImages, store
from tasks.sources.image_tree import ImageTree, TreeFile, read_tree

log = logging.getLogger(__name__)

# Mean and standard deviation of ImageNet's training images, as in torchvision's reference recipes.
IMAGENET = Normalization(mean=(123.675, 116.28, 103.53), std=(58.395, 57.12, 57.375))
SAMPLE = "sample"  # kind of the copy in which `smoke` has some of the user's images
PLAIN_ONLY = {"translate": 0, "cutout": 0, "crop_padding": "mean", "shrink_by": "crop"}
"""Fields of the recipe that apply only to images of one size, with the values that turn them off."""


class ImageFilesTask(Task):
    """Base class of tasks of image files.

    A subclass defines `find`, `stored_side` and the class attributes of `suite.task.Task`. Preset `smoke` needs no
    data, because it generates its images.

    Args:
        image_size: Height and width in pixels of the images that the network receives; `none` for the size that follows
            from the files, or for that of the task.
        eval_resize: Length to which the shorter side of a test image is resized before its centre is cut out; `none`
            for 8/7 of the image size, rounded, as 256 for 224.
        crop_area: Smallest share of an image's area in a random crop.
        cache: Whether image files are decoded once, `on`, or in every epoch, `off`.
        bad_images: Treatment of files that are not images: `refuse` ends the command, `skip` leaves them out.

    Class attributes:
        stored_side: Length in pixels to which the shorter side of a larger image is reduced in the cache, by preset.
        caches_in_home: Whether decoded images are stored in the user's cache folder and not in the data root.
    """

    caches_in_home: ClassVar[bool] = False

    stored_side: ClassVar[Mapping[str, int]] = {}

    def __init__(
        self,
        *,
        image_size: Annotated[int, Interval(ge=8, le=4096)] | None = None,
        eval_resize: Annotated[int, Interval(ge=8, le=4096)] | None = None,
        crop_area: Annotated[float, Interval(gt=0, le=1)] = 0.08,
        cache: Literal["on", "off"] = "on",
        bad_images: Literal["refuse", "skip"] = "refuse",
    ) -> None:
        self.image_size, self.eval_resize, self.crop_area = image_size, eval_resize, crop_area
        self.cache, self.bad_images = cache, bad_images

    def find(self, data_root: Path) -> ImageTree:
        """Find the folder of images.

        Raises:
            suite.errors.MissingData: There is no folder; one line that tells where it was searched.
            UsageError: Its layout is wrong.
        """
        raise self._undefined("find()")

    def inputs(self, recipe: Recipe, copy: DataCopy | None = None) -> Inputs:
        """Return the image size that was set, otherwise that of the data or of the task, and the classes found."""
        found, classes = (copy.image_size, copy.num_classes) if copy is not None else (0, 0)
        side = self.image_size or found or self.input_shape[1]
        return Inputs((3, side, side), classes or self.num_classes)

    def prepare(self, data_root: Path, preset: str, recipe: Recipe | None = None) -> DataCopy:
        """Find the images, and decode them once: into the cache, or only to check every file if there is no cache.

        Raises:
            MissingData: There are no images.
            UsageError: The folder or a file in it cannot be used.
        """
        smoke = preset == "smoke"
        default = data_root.expanduser() == read_path(default_data_root(), "PDT_DATA")  # data sets of other tasks
        if smoke and (default or not self.needs_data_root("quick")):
            data = generated_shapes()
            return DataCopy("generated", data.checksum(), note=NOTE, num_classes=len(SHAPES), image_size=SIDE)
        tree = self.find(data_root.expanduser())
        if not str(tree.root.resolve()).isprintable():  # records and reports are UTF-8
            raise UsageError(f"{shown(tree.root.resolve())}: the name of this folder is not readable text; rename it")
        if self.cache == "off" and self.bad_images == "skip":
            raise UsageError("bad_images=skip needs cache=on, which stores what is left out")
        if self.bad_images == "refuse":
            self._refuse_others(tree)
        tree = sample_of(tree) if smoke else tree
        place = hashlib.sha256(str(tree.root.resolve()).encode()).hexdigest()[:8]
        side = 2 * SIDE if smoke else self.stored_side[preset]
        detected = min(self.detected_side(tree), SIDE if smoke else MAX_PIXELS) if self.image_size is None else 0
        folder = cache_folder(data_root.expanduser(), self.caches_in_home)
        path = folder / f"{self.registered_name}-{SAMPLE if smoke else side}-{place}"
        try:
            if self.cache == "off" and not smoke:
                meta = store(tree, folder / f"{self.registered_name}-checked-{place}", MAX_PIXELS, False, keep=False)
                kind, checksum, path = "files", _digest(tree, side), tree.root
            else:
                meta = store(tree, path, side, self.bad_images == "skip")
                kind, checksum = SAMPLE if smoke else "decoded", meta["checksum"]
        except OSError as error:
            raise UsageError(f"{error.filename or path}: cannot be written: {error.strerror or error}") from error
        if meta["shared"]:
            log.warning("%s: %s; the test accuracy is too high by them", shown(tree.root), _shared(meta["shared"]))
        return DataCopy(kind, checksum, str(path), self._note(tree, meta), len(tree.classes), detected)

    def _refuse_others(self, tree: ImageTree) -> None:
        """Check that the folder contains only images, and only in the folders of classes.

        Raises:
            UsageError: There are other files.
        """
        if tree.others:
            first, count = tree.others[0], len(tree.others)
            image = first.lower().endswith(SUFFIXES)
            fault = "is an image next to the folders of classes" if image else "is not an image by its name"
            more = f" (the first of {count:,} such files)" if count > 1 else ""
            raise UsageError(
                f"{shown(tree.root / first)}: {fault}{more}; move or remove it, or leave out such files with --task "
                f"{self.registered_name}[bad_images=skip]"
            )

    def _note(self, tree: ImageTree, meta: Mapping[str, Any]) -> str:
        """Return one line that tells which images are used, and what was converted and left out."""
        skipped = set(meta["skipped"])
        train, test = (sum(file.path not in skipped for file in files) for files in (tree.train, tree.test))
        return f"{self.title}: {train:,} training and {test:,} test images; {tree.split}{_remarks(tree, meta)}"

    def detected_side(self, tree: ImageTree) -> int:
        """Return the side of the network's images that follows from the files; 0 for the side in `input_shape`."""
        return 0

    def load(self, copy: DataCopy, recipe: Recipe, seed: int, device: torch.device) -> Splits:
        """Open the images and select the splits.

        Raises:
            MissingData: The images are no longer those of `copy`.
            UsageError: The recipe asks for more images than there are, or for what image files do not offer.
        """
        if changed := sorted(PLAIN_ONLY.items() - recipe.fields().items()):
            raise UsageError(f"recipe.{changed[0][0]} applies to tasks of images of one size, not to this task")
        sources = self._sources(copy)
        size = self.inputs(recipe, copy).shape[1]
        resize = self.eval_resize or round(size * 8 / 7)
        if resize < size:
            raise UsageError(
                f"eval_resize is {resize}, smaller than the image size of {size}; eval_resize=none resizes to 8/7 of it"
            )
        check_train_sizes(recipe, size)
        chosen = choose_splits(sources["train"].labels, sources["test"].labels, recipe)

        def split(name: str, images: Any, training: bool, size: int = size) -> CropBatches:
            return CropBatches(
                sources[name],
                images,
                size=size,
                eval_resize=resize,
                crop_area=self.crop_area,
                augmentation=recipe.augmentation,
                normalization=IMAGENET.with_std(recipe.augmentation.pixel_std),
                device=device,
                training=training,
                seed=seed,
                # The sample of a small folder may be smaller than a batch.
                drop_last=recipe.drop_last and not (copy.kind == SAMPLE and len(images) < recipe.batch_size),
            )

        return Splits(
            train=split("train", chosen.train, True),
            test=split("test", chosen.test, False),
            validation=split("train", chosen.validation, False) if len(chosen.validation) else None,
            train_by_size={side: split("train", chosen.train, True, side) for side in recipe.growing.train_sizes},
        )

    def _sources(self, copy: DataCopy) -> dict[str, ImageSource]:
        again = "; run the command again"
        if copy.kind == "generated":
            data = generated_shapes()
            check_unchanged("the generated images", data.checksum(), copy)
            return {
                "train": MemoryImages(data.train_images, data.train_labels),
                "test": MemoryImages(data.test_images, data.test_labels),
            }
        try:
            if copy.kind == "files":
                tree = read_tree(Path(copy.path))
                sides = [side for side in set(self.stored_side.values()) if _digest(tree, side) == copy.checksum]
                if not sides:
                    raise MissingData(f"{copy.path}: the files have changed since this trial was planned{again}")
                return {name: FileImages(tree, name, sides[0]) for name in ("train", "test")}
            return {name: StoredImages(Path(copy.path), name, copy.checksum) for name in ("train", "test")}
        except DamagedCache as error:
            raise MissingData(f"{error}{again}") from error


def sample_of(tree: ImageTree) -> ImageTree:
    """Return a folder with at most as many images of each class as `smoke` generates, and at least one of each."""

    def some(files: Sequence[TreeFile], most: int) -> tuple[TreeFile, ...]:
        by_class = [[*group] for _, group in itertools.groupby(files, lambda file: file.label)]
        each = max(1, most // len(by_class))
        return tuple(file for one in by_class for file in one[:: -(-len(one) // each)])

    split = f"a sample of the folder for preset smoke, whose accuracies say nothing about methods; {tree.split}"
    return replace(tree, train=some(tree.train, TRAIN_IMAGES), test=some(tree.test, TEST_IMAGES), split=split)


def _digest(tree: ImageTree, side: int) -> str:
    return hashlib.sha256(f"files {side} {tree.fingerprint()}".encode()).hexdigest()


def _remarks(tree: ImageTree, meta: Mapping[str, Any]) -> str:
    """Return the text on converted and left out files for the note of the data copy; empty if there are none."""
    converted = [f"{count:,} from {name}" for name, count in meta["converted"].items()]
    remarks = [f"converted to RGB: {', '.join(converted)}"] if converted else []
    if meta["shared"]:
        remarks.append(_shared(meta["shared"]))
    for files, singular, several in (
        (meta["skipped"], "file that cannot be read as an image", "files that cannot be read as images"),
        (tree.others, "file that is not an image of a class", "files that are not images of a class"),
    ):
        if files:
            kind = f"{singular} was" if len(files) == 1 else f"{several} were"
            remarks.append(f"{len(files):,} {kind} left out, the first is {shown(files[0])}")
    return "".join(f"; {remark}" for remark in remarks)


def _shared(pairs: Sequence[tuple[str, str]]) -> str:
    """Return what is said about images that are in both splits, at least one."""
    count, (test, train) = len(pairs), pairs[0]
    which = "1 test image is" if count == 1 else f"{count:,} test images are"
    return f"{which} in the training split too, the first is {shown(test)} ({shown(train)})"
