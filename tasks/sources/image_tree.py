"""Folders of image files with one subfolder per class, of any image size, as users bring them."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from suite.errors import UsageError, nearest
from tasks.images.decoding import SUFFIXES, shown
from tasks.images.splits import stratified_order

TRAIN = ("train", "training")
TEST = ("test", "testing", "val", "valid", "validation", "eval")
"""Names of splits, in lower case and without endings; of the second, the first with labels is used."""
_ENDING = re.compile(r"[ _-]?(set|split|data|images|imgs)$")
IGNORED = ("__MACOSX",)
"""Folders that are no classes: archives made on a Mac have one. Hidden folders are none either."""
TEST_SHARE = 0.1  # of a folder without splits
FEWEST = 2  # images of a class of such a folder: one for training and one for the test
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

    `train/CLASS/*` with `test/`, `val/`, `valid/` or `validation/` next to it, of which the first with labels is used;
    or `CLASS/*` alone, of which a tenth of each class becomes the test split, always the same one. Case does not count
    in names of splits, and `training`, `train_set` and the like are `train`, too. Images of a class may lie in
    folders inside its own. Hidden files and folders are ignored.

    Args:
        root: Folder.

    Raises:
        UsageError: The layout is another one, there is only one class, a class has too few images in a split, or the
            folder cannot be read.
    """
    try:
        folders = _folders(root)
        if _named(root, folders, TRAIN):
            return _with_splits(root, folders)
        return _without_splits(root, folders)
    except UsageError as error:
        raise UsageError(shown(str(error))) from None  # names of folders are not always text
    except OSError as error:
        raise UsageError(f"{shown(error.filename or root)}: cannot be read: {error.strerror or error}") from error


def _split_of(folder: str) -> str:
    """Return the name of a split without case and endings: `train` of `Train_set`."""
    return _ENDING.sub("", folder.lower())


def _named(root: Path, folders: Sequence[str], names: Sequence[str]) -> list[str]:
    """Return the folders that are splits of these names, in the order of the names.

    Raises:
        UsageError: Two folders have the same one.
    """
    found = []
    for name in names:
        own = [folder for folder in folders if _split_of(folder) == name]
        if len(own) > 1:
            raise UsageError(f"{root}: has both {own[0]}/ and {own[1]}/; rename one of them")
        found += own
    return found


def _with_splits(root: Path, folders: Sequence[str]) -> ImageTree:
    training = _named(root, folders, TRAIN)
    if len(training) > 1:
        raise UsageError(f"{root}: has both {training[0]}/ and {training[1]}/; rename one of them")
    (trained,) = training
    classes = _folders(root / trained)
    if not classes:
        raise UsageError(f"{root / trained}: contains no folder of a class; {LAYOUTS}")
    candidates = _named(root, folders, TEST)
    own = f"use --data-root {root / trained}, of which a tenth becomes the test split, or add val/CLASS/*.jpg"
    if not candidates:
        near = nearest("test", [folder for folder in folders if folder != trained])
        raise UsageError(f"{root}: has {trained}/, but no test/ or val/ with the test images{near}; {own}")
    # Without regard to case, so that a class in other letters is an error below and makes no split unlabelled.
    known = {name.lower() for name in classes}
    labelled = [name for name in candidates if known & {one.lower() for one in _folders(root / name)}]
    if not labelled:
        kinds = _folders(root / candidates[0])
        near = nearest(kinds[0], classes) if kinds else ""
        raise UsageError(
            f"{root / candidates[0] / classes[0]}: no such folder; {candidates[0]}/ has no class of {trained}/, so "
            f"that its images have no labels{near}; {own}"
        )
    chosen = labelled[0]
    for name in _folders(root / chosen):
        if name not in classes:
            raise UsageError(f"{root / chosen / name}: this class has no folder in {trained}/{nearest(name, classes)}")
    others: list[str] = []
    train = _files(root, trained, classes, others)
    test = _files(root, chosen, classes, others)
    if len(classes) < 2:
        raise UsageError(
            f"{root / trained}: contains only the class {classes[0]}/; a network needs at least two classes"
        )
    unused = [name for name in candidates if name != chosen]
    unlabelled = [f"{name}/ has no labels and is not used" for name in unused if name not in labelled]
    split = f"test images from {chosen}/" + "".join(
        f"; {one}" for one in (*unlabelled, ", ".join(f"{name}/" for name in unused if name in labelled)) if one
    )
    split += " not used" if any(name in labelled for name in unused) else ""
    outside = _outside(root, "", trained, chosen)
    return ImageTree(root, tuple(classes), train, test, split, tuple(others), outside)


def _without_splits(root: Path, folders: Sequence[str]) -> ImageTree:
    if len(folders) < 2:
        found = f"only the folder {folders[0]}/" if folders else "no folders"
        inside = folders and _named(root / folders[0], _folders(root / folders[0]), TRAIN)
        hint = f"use --data-root {root / folders[0]}" if inside else LAYOUTS
        raise UsageError(f"{root}: contains {found}; {hint}")
    for name in folders:
        if _split_of(name) in (*TRAIN, *TEST) and _folders(root / name):
            raise UsageError(f"{root / name}: is a split by its name, but there is no train/ beside it; {LAYOUTS}")
    _refuse_hidden_splits(root, folders)
    others: list[str] = []
    files = _files(root, "", folders, others)
    labels = np.array([file.label for file in files], dtype=np.int64)
    counts = np.bincount(labels, minlength=len(folders))
    if counts.min() < FEWEST:
        raise UsageError(
            f"{root / folders[int(counts.argmin())]}: has too few images: {counts.min()}, and a class needs at least "
            f"{FEWEST}, one of them for the test split"
        )
    order = stratified_order(labels, SPLIT_SEED)
    chosen = {*order[: max(len(folders), round(TEST_SHARE * len(files)))].tolist()}
    # The first images of small classes may come later in the order.
    missing = {*range(len(folders))} - {*labels[[*chosen]].tolist()}
    for index in order.tolist():
        if int(labels[index]) in missing:
            missing.remove(int(labels[index]))
            chosen.add(index)
    split = f"a fixed tenth of the images, stratified by class, is the test split ({len(chosen):,} images)"
    return ImageTree(
        root,
        tuple(folders),
        tuple(file for index, file in enumerate(files) if index not in chosen),
        tuple(file for index, file in enumerate(files) if index in chosen),
        split,
        tuple(others),
        _outside(root, ""),
    )


def _refuse_hidden_splits(root: Path, folders: Sequence[str]) -> None:
    """Refuse folders without images of which two have a folder of the same name: they are splits, and not classes.

    Raises:
        UsageError: There are such folders.
    """
    above: dict[str, str] = {}
    for name in folders:
        if any(entry.name.lower().endswith(SUFFIXES) for entry in os.scandir(root / name)):
            continue
        for inside in _folders(root / name):
            if (other := above.setdefault(inside, name)) != name:
                raise UsageError(
                    f"{root / other}: contains no image but the folder {inside}/, as does {name}/, so that both may be "
                    f"splits and not classes; {LAYOUTS}"
                )


def _folders(root: Path) -> list[str]:
    """Return the folders in a folder, sorted, without hidden ones and those of archives."""
    return sorted(
        entry.name
        for entry in os.scandir(root)
        if entry.is_dir() and not entry.name.startswith(".") and entry.name not in IGNORED
    )


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
    found: list[TreeFile] = []
    for label, name in enumerate(classes):
        folder = root / split / name
        if not folder.is_dir():
            raise UsageError(f"{folder}: no such folder; every class of the training split needs one")
        before = len(found)
        for entry in _entries(folder):
            path = os.path.relpath(entry.path, root)
            if entry.name.lower().endswith(SUFFIXES):
                found.append(TreeFile(path, label, _stamp(entry)))
            else:
                others.append(path)
        if len(found) == before:
            layouts = "" if split else f"; {root}: {LAYOUTS}"
            raise UsageError(
                f"{folder}: contains no image, and a class needs at least {1 if split else FEWEST}; names of images "
                f"end in {', '.join(SUFFIXES)}{layouts}"
            )
    return tuple(found)


def _entries(folder: Path) -> Iterator[os.DirEntry[str]]:
    """Iterate over the entries of a class, sorted; if it has no images but folders, over the entries of these.

    Raises:
        UsageError: A folder inside is a split by its name, so that the classes are above the splits.
    """
    entries = sorted((one for one in os.scandir(folder) if not one.name.startswith(".")), key=lambda one: one.name)
    if any(one.name.lower().endswith(SUFFIXES) for one in entries):
        yield from entries
        return
    for one in entries:
        # Links to folders are not followed, since they may lead to a folder above.
        if not one.is_dir(follow_symlinks=False):
            yield one
        elif _split_of(one.name) in (*TRAIN, *TEST):
            raise UsageError(f"{folder}: contains {one.name}/, which is a split by its name; {LAYOUTS}")
        elif one.name not in IGNORED:
            yield from _entries(Path(one.path))


def _stamp(entry: os.DirEntry[str]) -> tuple[int, int]:
    try:
        status = entry.stat()
    except OSError:
        return -1, -1  # decoding names the file and the reason, or leaves it out
    return status.st_size, status.st_mtime_ns
