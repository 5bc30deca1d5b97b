"""Folders of image files with one subfolder per class, of any image size, as users bring them."""

from __future__ import annotations

import hashlib
import os
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from suite.errors import UsageError, nearest
from tasks.images.decoding import SUFFIXES, shown
from tasks.images.splits import stratified_order

TRAIN, TESTS = "train", ("test", "val")
"""Names of splits, in any case. Of the second, the first that has the classes of the training split is used."""
IGNORED = ("__MACOSX",)
"""Folders that are no classes: archives made on a Mac have one. Hidden folders are none either."""
TEST_SHARE = 0.1  # of a folder without splits
FEWEST = 2  # images of a class of such a folder: one for training and one for the test
SPLIT_SEED = 0
SHOWN = 5  # folders that a message names
TOO_FEW = "a network needs at least two classes, because with one, accuracy is always 100 % and comparing means nothing"
LAYOUTS = "expected train/CLASS/*.jpg with test/ or val/, or CLASS/*.jpg"


@dataclass(frozen=True, slots=True)
class TreeFile:
    """An image file.

    Attributes:
        path: Path relative to the folder.
        label: Class.
        stamp: Size in bytes, and modification time in nanoseconds; (-1, -1) for a link to nothing.
    """

    path: str
    label: int
    stamp: tuple[int, int]


@dataclass(frozen=True)
class ImageTree:
    """The image files of a folder.

    Attributes:
        root: Folder.
        classes: Names of the classes, sorted; labels are positions in this list.
        train, test: Files, sorted by class and then by name.
        split: How the splits were found, for the note of the data copy.
        others: What is neither an image of a class nor a folder of classes, relative to the folder: files in the
            folders of classes that are not images by their names, and images next to the folders.
    """

    root: Path
    classes: tuple[str, ...]
    train: tuple[TreeFile, ...]
    test: tuple[TreeFile, ...]
    split: str
    others: tuple[str, ...]

    @property
    def files(self) -> tuple[TreeFile, ...]:
        """All image files: those of the training split, then those of the test split."""
        return (*self.train, *self.test)

    def fingerprint(self) -> str:
        """Return a hash of every file's split, name, size and modification time."""
        digest = hashlib.sha256("\0".join(self.classes).encode(errors="surrogateescape"))
        for split, files in (("train", self.train), ("test", self.test)):
            for file in files:
                digest.update(b"%s %s %d %d\n" % (split.encode(), os.fsencode(file.path), *file.stamp))
        return digest.hexdigest()


def read_tree(root: Path) -> ImageTree:
    """List a folder in one of the supported layouts.

    `train/CLASS/*` with `test/` or `val/` next to it, of which the first with the same classes is used; or `CLASS/*`
    alone, of which a tenth of each class becomes the test split, always the same one. Hidden files and folders are
    ignored.

    Args:
        root: Folder.

    Raises:
        UsageError: The layout is another one, there is only one class, a class has too few images in a split, or the
            folder cannot be read.
    """
    try:
        folders = _folders(root)
        named = {name.lower(): name for name in folders}
        tests = [named[name] for name in TESTS if name in named]
        if TRAIN in named and tests:
            return _with_splits(root, named[TRAIN], tests, folders)
        return _without_splits(root, folders)
    except UsageError as error:
        raise UsageError(shown(str(error))) from None  # names of folders are not always text
    except OSError as error:
        raise UsageError(f"{shown(error.filename or root)}: cannot be read: {error.strerror or error}") from error


def _with_splits(root: Path, training: str, tests: Sequence[str], folders: Sequence[str]) -> ImageTree:
    classes = _classes(root / training)
    if len(classes) < 2:
        found = f"only the class {next(iter(classes.values()))}/" if classes else "no folder of a class"
        raise UsageError(f"{root / training}: contains {found}; {TOO_FEW}; {LAYOUTS}")
    by_split = {name: _classes(root / name) for name in tests}
    chosen = next((name for name in tests if by_split[name].keys() == classes.keys()), tests[0])
    for name, folder in by_split[chosen].items():
        if name not in classes:
            near = nearest(folder, classes.values())
            raise UsageError(f"{root / chosen / folder}: this class has no folder in {training}/{near}")
    for name, folder in classes.items():
        if name not in by_split[chosen]:
            raise UsageError(
                f"{root / chosen / folder}: no such folder; every class of {training}/ needs one; {LAYOUTS}; or use "
                f"--data-root {root / training}, of which a fixed tenth is the test split"
            )
    others = [path for place in ("", training, chosen) for path in _loose_images(root, place)]
    train = _files(root, [f"{training}/{folder}" for folder in classes.values()], others)
    test = _files(root, [f"{chosen}/{by_split[chosen][name]}" for name in classes], others)
    split = f"test images from {chosen}/"
    like_splits = [name for name in folders if any(split in name.lower() for split in (TRAIN, *TESTS))]
    unused = [f"{name}/" for name in like_splits if name not in (training, chosen)]
    if unused:
        split += f"; {', '.join(unused)} not used"
    return ImageTree(root, tuple(classes.values()), train, test, split, tuple(others))


def _without_splits(root: Path, folders: Sequence[str]) -> ImageTree:
    classes = [*_classes(root).values()]
    if len(classes) < 2 or not all(map(_has_images, (root / name for name in classes))):
        raise UsageError(f"{root}: {_found(root, folders)}")
    others = [*_loose_images(root, "")]
    files = _files(root, classes, others)
    labels = np.array([file.label for file in files], dtype=np.int64)
    counts = np.bincount(labels, minlength=len(classes))
    if counts.min() < FEWEST:
        raise UsageError(
            f"{root / classes[int(counts.argmin())]}: has too few images: {counts.min()}, and a class needs at least "
            f"{FEWEST}, one of them for the test split"
        )
    order = stratified_order(labels, SPLIT_SEED)
    chosen = {*order[: max(len(classes), round(TEST_SHARE * len(files)))].tolist()}
    # The first images of small classes may come later in the order.
    missing = {*range(len(classes))} - {*labels[[*chosen]].tolist()}
    for index in order.tolist():
        if int(labels[index]) in missing:
            missing.remove(int(labels[index]))
            chosen.add(index)
    return ImageTree(
        root,
        tuple(classes),
        tuple(file for index, file in enumerate(files) if index not in chosen),
        tuple(file for index, file in enumerate(files) if index in chosen),
        f"a fixed tenth of the images, stratified by class, is the test split ({len(chosen):,} images)",
        tuple(others),
    )


def _found(root: Path, folders: Sequence[str]) -> str:
    """Return what a folder of another layout contains, what is expected, and the nearest change that helps."""
    if not folders:
        return f"contains no folders; {LAYOUTS}; move each image into a folder named after its class"
    listed = ", ".join(f"{name}/" for name in folders[:SHOWN]) + (", ..." if len(folders) > SHOWN else "")
    empty = [name for name in folders if not _has_images(root / name)]
    splits = {name: split for name in empty for split in (TRAIN, *TESTS) if split in name.lower() != split}
    hint = ""
    if splits:
        hint = f"; rename {' and '.join(f'{name} to {split}' for name, split in splits.items())}"
    elif len(folders) == 1 and _folders(root / folders[0]):
        hint = f"; use --data-root {root / folders[0]}"
    elif empty and _folders(root / empty[0]):
        hint = f"; if {empty[0]}/ is a class, move its images into it, since folders inside are not searched"
    only = f"contains only the folder {listed}" if len(folders) == 1 else f"contains {listed}"
    fault = f" and {empty[0]}/ has no image" if empty else f"; {TOO_FEW}" if len(folders) == 1 else ""
    return f"{only}{fault}; {LAYOUTS}{hint}"


def _folders(root: Path) -> list[str]:
    """Return the folders in a folder, sorted, without hidden ones and those of archives."""
    return sorted(
        entry.name
        for entry in os.scandir(root)
        if entry.is_dir() and not entry.name.startswith(".") and entry.name not in IGNORED
    )


def _classes(root: Path) -> dict[str, str]:
    """Return the folders in a folder by their names in one Unicode form; the systems that write names differ in it.

    Raises:
        UsageError: Two names differ only in their form.
    """
    folders = _folders(root)
    classes = {unicodedata.normalize("NFC", name): name for name in folders}
    if len(classes) < len(folders):
        raise UsageError(f"{root}: has two folders of one name, in different Unicode forms; move the images into one")
    return classes


def _is_image(entry: os.DirEntry[str]) -> bool:
    return entry.name.lower().endswith(SUFFIXES) and not entry.name.startswith(".")


def _has_images(folder: Path) -> bool:
    """Return whether a folder contains an image by its name, not counting those in folders inside."""
    return any(map(_is_image, os.scandir(folder)))


def _loose_images(root: Path, folder: str) -> Iterator[str]:
    """Return the images in a folder that contains folders only, sorted, relative to the root.

    Other files there, such as archives and lists of names, are usual and have no use.
    """
    for entry in sorted(os.scandir(root / folder), key=lambda one: one.name):
        if _is_image(entry) and not entry.is_dir():
            yield os.path.relpath(entry.path, root)


def _files(root: Path, folders: Sequence[str], others: list[str]) -> tuple[TreeFile, ...]:
    """Return the images of the folders of classes, in the order of the labels, and append other files to `others`.

    Raises:
        UsageError: A class has no image.
    """
    found: list[TreeFile] = []
    for label, folder in enumerate(folders):
        before = len(found)
        for entry in sorted(os.scandir(root / folder), key=lambda one: one.name):
            path = os.path.relpath(entry.path, root)
            if _is_image(entry):
                found.append(TreeFile(path, label, _stamp(entry)))
            elif not entry.name.startswith("."):
                others.append(path)
        if len(found) == before:
            raise UsageError(
                f"{root / folder}: contains no image, and folders inside are not searched; names of images end in "
                f"{', '.join(SUFFIXES)}"
            )
    return tuple(found)


def _stamp(entry: os.DirEntry[str]) -> tuple[int, int]:
    try:
        status = entry.stat()
    except OSError:
        return -1, -1  # decoding names the file and the reason, or leaves it out
    return status.st_size, status.st_mtime_ns
