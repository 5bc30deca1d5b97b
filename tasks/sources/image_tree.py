"""Folders of image files with one subfolder per class, of any image size, as users bring them."""

from __future__ import annotations

import hashlib
import os
import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from suite.errors import UsageError, nearest
from tasks.images.decoding import SUFFIXES, shown
from tasks.images.splits import stratified_order

TRAIN = ("train", "training")
TEST = ("test", "testing", "val", "valid", "validation", "eval")
"""Names of splits, in lower case and without endings; of the second, the first with labels is used."""
_ENDING = re.compile(r"[ _-]?(set|split|data|images|imgs)$")
_PARTS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")  # of names such as seg_train, train2017 and TestImages
_WRAPPERS = re.compile(r"(data|dataset|images?|imgs?|pictures|photos|classes|split)$", re.IGNORECASE)
IGNORED = ("__MACOSX",)
"""Folders that are no classes: archives made on a Mac have one. Hidden folders are none either."""
TEST_SHARE = 0.1  # of a folder without splits
FEWEST = 2  # images of a class of such a folder: one for training and one for the test
SPLIT_SEED = 0
LINK = "is a link to a folder, and such links are not followed inside of a class; move the folder itself there"
LAYOUTS = "expected train/CLASS/*.jpg with test/ or val/, or CLASS/*.jpg"
CLASS_NOT_SPLIT = "is a class, move the images of all classes out of the folders inside, into CLASS/"
"""What to do with a class that is named like a split: folders inside would be taken for classes."""


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

    `train/CLASS/*` with `test/`, `val/`, `valid/` or `validation/` next to it, of which the first with all classes is
    used; or `CLASS/*` alone, of which a tenth of each class becomes the test split, always the same one. Case does not
    count in names of splits, and `training`, `seg_train`, `train2017` and the like are `train`, too. A split may lie
    in folders that contain nothing else, and images of a class in folders inside its own. Hidden files and folders are
    ignored.

    Args:
        root: Folder.

    Raises:
        UsageError: The layout is another one, there is only one class, a class has too few images in a split, or the
            folder cannot be read.
    """
    try:
        folders = _folders(root)
        training, tests = _splits(root, folders)
        return _with_splits(root, folders, training, tests) if training else _without_splits(root, folders, tests)
    except UsageError as error:
        raise UsageError(shown(str(error))) from None  # names of folders are not always text
    except OSError as error:
        raise UsageError(f"{shown(error.filename or root)}: cannot be read: {error.strerror or error}") from error


def _split_of(folder: str) -> str:
    """Return the name of a split without case and endings: `train` of `Train_set`."""
    return _ENDING.sub("", folder.lower())


class _SplitName(NamedTuple):
    """What the name of a folder says about a split.

    Attributes:
        rank: 0 if the name is that of a split, 1 if that is a word in it (`seg_train`), 2 if it begins or ends the
            name (`mytrain`).
        name: Name of the split.
        rest: What else the name contains, in lower case.
    """

    rank: int
    name: str
    rest: str


def _split_name(folder: str) -> _SplitName | None:
    """Return what a name says about a split; of `train_val`, that it is a training split."""
    lower = folder.lower()
    if _split_of(folder) in (*TRAIN, *TEST):
        return _SplitName(0, _split_of(folder), "")
    words = [word.lower() for word in _PARTS.findall(folder)]
    if found := [name for name in (*TRAIN, *TEST) if name in words]:
        return _SplitName(1, found[0], lower.replace(found[0], "", 1))
    for name in (*TRAIN[::-1], *TEST[::-1]):  # `training` before `train`
        if lower.startswith(name) or lower.endswith(name):
            rest = lower.removeprefix(name) if lower.startswith(name) else lower.removesuffix(name)
            return _SplitName(1, name, "") if rest in TEST else _SplitName(2, name, rest)  # 1 for `trainval`
    return None


def _splits(root: Path, folders: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the folders that are training splits, all of equal rank, and those that may be test splits, best first.

    Words of splits are in names of classes, too (`train`, `train_station`, `valley`). Names that differ in this word
    alone (`mytrain` and `mytest`) are those of splits; other names also depend on what is in the folders.
    """
    names = {folder: name for folder in folders if (name := _split_name(folder))}
    paired = {one.rest for one in names.values() if one.name in TRAIN} & {
        one.rest for one in names.values() if one.name in TEST
    }

    def is_split(folder: str) -> bool:
        rank, _, rest = names[folder]
        if rest in paired:
            return True
        if rank == 0:
            # Folders beside a split may be unreadable (`lost+found`), and are not looked into.
            return not _has_images(root / folder) or not any(
                _has_images(root / one) for one in folders if one not in names
            )
        return rank == 1 and len(_folders(root / _levels(root, folder)[-1])) > 1 and not _has_images(root / folder)

    splits = [folder for folder in names if is_split(folder)]
    training = [one for one in splits if names[one].name in TRAIN]
    training.sort(key=lambda one: (names[one].rank, TRAIN.index(names[one].name)))
    training = [one for one in training if names[one].rank == names[training[0]].rank]
    rest = names[training[0]].rest if training else ""
    tests = [one for one in splits if names[one].name in TEST]
    return training, sorted(
        tests, key=lambda one: (names[one].rest != rest, names[one].rank, TEST.index(names[one].name))
    )


def _levels(root: Path, folder: str) -> list[str]:
    """Return a folder and those inside it that are the only thing in the one above and contain folders only."""
    levels = [folder]
    while len(inside := _folders(root / levels[-1])) == 1 and not _has_images(root / levels[-1]):
        below = f"{levels[-1]}/{inside[0]}"
        if _has_images(root / below) or not _folders(root / below):
            break
        levels.append(below)
    return levels


def _trained(root: Path, folder: str, tests: Sequence[str]) -> str:
    """Return the folder that contains the classes of a training split: the split or one inside it.

    A single folder that a test split has, too, is a class, unless its name says that it only contains the others.
    """
    (only, *others), levels = [*_folders(root / folder), ""], _levels(root, folder)
    wraps = _WRAPPERS.search(only) or _split_name(only)
    shared = not any(others) and any(only in _folders(root / name) for name in tests)
    return folder if shared and not wraps else levels[-1]


def _with_splits(root: Path, folders: Sequence[str], training: Sequence[str], candidates: Sequence[str]) -> ImageTree:
    if len(training) > 1:
        raise UsageError(f"{root}: has both {training[0]}/ and {training[1]}/; rename one of them")
    trained = _trained(root, training[0], candidates)
    classes = _folders(root / trained)
    if not classes:
        raise UsageError(f"{root / trained}: contains no folder of a class; {LAYOUTS}; if {trained}/ {CLASS_NOT_SPLIT}")
    own = f"use --data-root {root / trained}, of which a tenth becomes the test split, or add val/CLASS/*.jpg"
    if not candidates:
        near = nearest("test", [folder for folder in folders if folder != training[0]])
        raise UsageError(
            f"{root}: has {training[0]}/, but no test/ or val/ with the test images{near}; {own}; if "
            f"{training[0]}/ {CLASS_NOT_SPLIT}"
        )
    # Without regard to case, so that a class in other letters is an error below and makes no split unlabelled.
    known = {_same(name).lower() for name in classes}
    labelled = {
        name: level
        for name in candidates
        for level in reversed(_levels(root, name))
        if known & {_same(one).lower() for one in _folders(root / level)}
    }
    if not labelled:
        kinds = _folders(root / _levels(root, candidates[0])[-1])
        near = nearest(kinds[0], classes) if kinds else ""
        raise UsageError(
            f"{root / candidates[0] / classes[0]}: no such folder; {candidates[0]}/ has no class of {trained}/, so "
            f"that its images have no labels{near}; {own}"
        )
    lacking = {name: _lacking(root / level, classes) for name, level in labelled.items()}
    best = next((name for name in labelled if not lacking[name]), next(iter(labelled)))
    for name in labelled:
        if name != best and lacking[name] == lacking[best] and _same_split(name, best):
            first, second = sorted((name, best))
            raise UsageError(f"{root}: has both {first}/ and {second}/; rename one of them")
    chosen = labelled[best]
    written = {_same(name) for name in classes}
    for name in _folders(root / chosen):
        if _same(name) not in written:
            near = nearest(name, classes)
            raise UsageError(f"{root / chosen / name}: this class has no folder in {trained}/{near}")
    others: list[str] = []
    train = _files(root, trained, classes, others)
    test = _files(root, chosen, classes, others)
    if len(classes) < 2:
        raise UsageError(
            f"{root / trained}: contains only the class {classes[0]}/; a network needs at least two classes"
        )
    split = f"test images from {chosen}/"
    unused = [name for name in candidates if name != best]
    for name in unused:
        if name not in labelled:
            split += f"; {name}/ has no labels and is not used"
        elif lacking[name] and not lacking[best]:
            split += f"; {name}/ has no images of the class {lacking[name][0]} and is not used"
    if complete := [name for name in unused if name in labelled and (not lacking[name] or lacking[best])]:
        split += f"; {', '.join(f'{name}/' for name in complete)} not used"
    for name in folders:  # others are none of a data set's by their names
        if name != training[0] and (said := _split_name(name)) and said.rank < 2 and said.name in TRAIN:
            split += f"; {name}/ is not used"
    split += _of_inner_folders([(trained, train), (chosen, test)])
    outside = _outside(root, "", trained, chosen)
    return ImageTree(root, tuple(classes), train, test, split, tuple(others), outside)


def _same_split(one: str, other: str) -> bool:
    """Return whether two names of folders say the same about a split."""
    first, second = _split_name(one), _split_name(other)
    return first is not None and second is not None and first[:2] == second[:2]


def _same(name: str) -> str:
    """Return a name in one Unicode form; the systems that write names differ in it."""
    return unicodedata.normalize("NFC", name)


def _lacking(folder: Path, classes: Sequence[str]) -> list[str]:
    """Return the classes of which a split has no images."""
    present = {_same(name) for name in _folders(folder) if _holds_images(folder / name)}
    return [name for name in classes if _same(name) not in present]


def _of_inner_folders(splits: Sequence[tuple[str, Sequence[TreeFile]]]) -> str:
    """Return what the note says about images in folders inside of those of classes; empty if there are none."""
    inner = []
    for split, files in splits:
        levels = len(Path(split).parts) + 1
        inner += [parts[:levels] for file in files if len(parts := Path(file.path).parts) > levels + 1]
    if not inner:
        return ""
    images = "1 image is" if len(inner) == 1 else f"{len(inner):,} images are"
    return f"; {images} from folders inside of classes, the first of {shown('/'.join(inner[0]))}/"


def _without_splits(root: Path, folders: Sequence[str], tests: Sequence[str]) -> ImageTree:
    if len(folders) < 2:
        found = f"only the folder {folders[0]}/" if folders else "no folders"
        inside = folders and _splits(root / folders[0], _folders(root / folders[0]))[0]
        hint = f"use --data-root {root / folders[0]}" if inside else LAYOUTS
        raise UsageError(f"{root}: contains {found}; {hint}")
    for name in tests:
        if _folders(root / name):
            raise UsageError(
                f"{root / name}: is a split by its name, but there is no train/ beside it; {LAYOUTS}; if {name}/ "
                f"{CLASS_NOT_SPLIT}"
            )
    for name in folders:
        _refuse_unclear(root, name, folders)
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
    split += _of_inner_folders([("", files)])
    return ImageTree(
        root,
        tuple(folders),
        tuple(file for index, file in enumerate(files) if index not in chosen),
        tuple(file for index, file in enumerate(files) if index in chosen),
        split,
        tuple(others),
        _outside(root, ""),
    )


def _refuse_unclear(root: Path, name: str, classes: Sequence[str]) -> None:
    """Refuse a folder without images that contains several folders with images, at any depth.

    Nothing says whether these are parts of a class, or classes of a folder that is none.

    Raises:
        UsageError: It is such a folder.
    """
    folder = root / name
    while len(parts := _parts(folder)) == 1:
        folder = folder / parts[0]
    if not parts:
        return
    remedy = (
        f"if they are classes, use --data-root {folder}, or move them into {root}; if they are parts of one, move "
        f"their images into {folder}"
    )
    for part in parts:
        if also := next((one for one in classes if one != name and part in _parts(root / one)), None):
            raise UsageError(
                f"{folder}: contains no image but the folder {part}/, as does {also}/, so that both may be splits and "
                f"not classes; {LAYOUTS}; {remedy}"
            )
    more = ", ..." if len(parts) > 3 else ""
    raise UsageError(
        f"{folder}: contains no image but the folders {', '.join(f'{part}/' for part in parts[:3])}{more}, which may "
        f"be classes or parts of a class; {remedy}"
    )


def _parts(folder: Path) -> list[str]:
    """Return the folders with images in a folder that has none itself; empty if it has. Links are not followed."""
    if _has_images(folder):
        return []
    return [name for name in _folders(folder) if not (folder / name).is_symlink() and _holds_images(folder / name)]


def _has_images(folder: Path) -> bool:
    """Return whether a folder contains an image by its name, not counting those in folders inside."""
    return any(name.lower().endswith(SUFFIXES) and not name.startswith(".") for name in os.listdir(folder))  # noqa: PTH208


def _holds_images(folder: Path) -> bool:
    """Return whether a folder or one inside contains an image by its name. Links inside are not followed."""
    return _has_images(folder) or any(
        _holds_images(folder / name) for name in _folders(folder) if not (folder / name).is_symlink()
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
    spelt: dict[str, str] = {}
    for name in _folders(root / split):
        if (other := spelt.setdefault(_same(name), name)) != name:
            raise UsageError(
                f"{root / split / other}: there are two folders of this name, written in different Unicode forms; "
                "move the images into one of them"
            )
    for label, name in enumerate(classes):
        folder = root / split / spelt.get(_same(name), name)
        if not folder.is_dir():
            raise UsageError(f"{folder}: no such folder; every class of the training split needs one")
        before, first = len(found), len(others)
        for entry in _entries(folder):
            path = os.path.relpath(entry.path, root)
            if entry.name.lower().endswith(SUFFIXES):
                found.append(TreeFile(path, label, _stamp(entry)))
            else:
                others.append(path)
        if len(found) == before:
            layouts = "" if split else f"; {root}: {LAYOUTS}"
            for path in others[first:]:
                if (root / path).is_dir():
                    raise UsageError(f"{root / path}: {LINK}")
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
