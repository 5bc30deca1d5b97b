"""Folders of image files with one subfolder per class, of any image size, as users bring them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from suite.errors import UsageError, nearest
from tasks.images.decoding import SUFFIXES, shown
from tasks.images.splits import stratified_order

TRAIN, TEST = "train", ("test", "val", "valid", "validation")
TEST_SHARE = 0.1  # of a folder without splits
SPLIT_SEED = 0
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
        others: Files in the folders of classes that are not images by their names, relative to the folder.
        outside: Images by their names that are next to the folders of splits or classes, relative to the folder.
    """

    root: Path
    classes: tuple[str, ...]
    train: tuple[TreeFile, ...]
    test: tuple[TreeFile, ...]
    split: str
    others: tuple[str, ...]
    outside: tuple[str, ...]

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

    `train/CLASS/*` with `test/`, `val/`, `valid/` or `validation/` next to it, of which the first is used; or
    `CLASS/*` alone, of which a tenth of each class becomes the test split, always the same one. Hidden files and
    folders are ignored.

    Args:
        root: Folder.

    Raises:
        UsageError: The layout is another one, there is only one class, a class has no images in a split, or the folder
            cannot be read.
    """
    try:
        folders = _folders(root)
        if TRAIN in folders:
            return _with_splits(root, folders)
        return _without_splits(root, folders)
    except UsageError as error:
        raise UsageError(shown(str(error))) from None  # names of folders are not always text
    except OSError as error:
        raise UsageError(f"{shown(error.filename or root)}: cannot be read: {error.strerror or error}") from error


def _with_splits(root: Path, folders: Sequence[str]) -> ImageTree:
    chosen = next((name for name in TEST if name in folders), "")
    if not chosen:
        raise UsageError(f"{root}: has train/, but no test/ or val/ with the test images{nearest('test', folders)}")
    classes = _folders(root / TRAIN)
    if not classes:
        raise UsageError(f"{root / TRAIN}: contains no folder of a class; {LAYOUTS}")
    for name in _folders(root / chosen):
        if name not in classes:
            raise UsageError(f"{root / chosen / name}: this class has no folder in train/{nearest(name, classes)}")
    others: list[str] = []
    train = _files(root, TRAIN, classes, others)
    test = _files(root, chosen, classes, others)
    if len(classes) < 2:
        raise UsageError(f"{root / TRAIN}: contains only the class {classes[0]}/; a network needs at least two classes")
    unused = [name for name in TEST if name in folders and name != chosen]
    split = f"test images from {chosen}/" + (f"; {', '.join(f'{name}/' for name in unused)} not used" if unused else "")
    outside = _outside(root, "", TRAIN, chosen)
    return ImageTree(root, tuple(classes), train, test, split, tuple(others), outside)


def _without_splits(root: Path, folders: Sequence[str]) -> ImageTree:
    if len(folders) < 2:
        found = f"only the folder {folders[0]}/" if folders else "no folders"
        raise UsageError(f"{root}: contains {found}; {LAYOUTS}")
    others: list[str] = []
    files = _files(root, "", folders, others)
    labels = np.array([file.label for file in files], dtype=np.int64)
    order = stratified_order(labels, SPLIT_SEED)
    count = max(len(folders), round(TEST_SHARE * len(files)))
    test, train = np.sort(order[:count]), np.sort(order[count:])
    for name, chosen in (("test", test), ("training", train)):
        missing = set(range(len(folders))).difference(labels[chosen].tolist())
        if missing:
            raise UsageError(f"{root / folders[min(missing)]}: has too few images for a {name} split of its own")
    split = f"a fixed tenth of the images, stratified by class, is the test split ({count:,} images)"
    return ImageTree(
        root,
        tuple(folders),
        tuple(files[i] for i in train),
        tuple(files[i] for i in test),
        split,
        tuple(others),
        _outside(root, ""),
    )


def _folders(root: Path) -> list[str]:
    return sorted(entry.name for entry in os.scandir(root) if entry.is_dir() and not entry.name.startswith("."))


def _outside(root: Path, *folders: str) -> tuple[str, ...]:
    """Return the images in some folders that contain folders only, sorted, relative to the root.

    Other files there, such as archives and lists of names, are usual and have no use.
    """
    return tuple(
        os.path.relpath(entry.path, root)
        for folder in folders
        for entry in sorted(os.scandir(root / folder), key=lambda one: one.name)
        if entry.name.lower().endswith(SUFFIXES) and not entry.name.startswith(".") and not entry.is_dir()
    )


def _files(root: Path, split: str, classes: Sequence[str], others: list[str]) -> tuple[TreeFile, ...]:
    found = []
    for label, name in enumerate(classes):
        folder = root / split / name
        if not folder.is_dir():
            raise UsageError(f"{folder}: no such folder; every class of train/ needs one")
        entries = sorted((one for one in os.scandir(folder) if not one.name.startswith(".")), key=lambda one: one.name)
        images = [entry for entry in entries if entry.name.lower().endswith(SUFFIXES)]
        others.extend(
            os.path.relpath(entry.path, root) for entry in entries if not entry.name.lower().endswith(SUFFIXES)
        )
        if not images:
            layouts = "" if split else f"; {root}: {LAYOUTS}"
            raise UsageError(f"{folder}: contains no image; names of images end in {', '.join(SUFFIXES)}{layouts}")
        for entry in images:
            found.append(TreeFile(os.path.relpath(entry.path, root), label, _stamp(entry)))
    return tuple(found)


def _stamp(entry: os.DirEntry[str]) -> tuple[int, int]:
    try:
        status = entry.stat()
    except OSError:
        return -1, -1  # decoding names the file and the reason, or leaves it out
    return status.st_size, status.st_mtime_ns
