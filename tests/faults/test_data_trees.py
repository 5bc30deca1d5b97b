"""Randomly damaged data trees: a task uses a valid copy, and refuses anything else with one line.

`python tests/faults/test_data_trees.py 500` prints the counts, and each case of damage with its answer.
"""

import contextlib
import os
import random
import shutil
import signal
import struct
import sys
import tarfile
import zlib
from collections import Counter
from pathlib import Path

import pytest
import torch
from PIL import Image

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tasks"))

from small_copies import SmallArchive, write_image_folder

from suite.errors import UsageError
from tasks import cifar
from tasks.cifar10 import CIFAR10

SEED = 23
MANY, SAMPLE = 500, 90
LONGEST_MESSAGE = 2500  # characters
SECONDS = 20  # limit after which a reader counts as hanging

CPU = torch.device("cpu")
ARCHIVE_FILES = ("cifar-10-python.tar.gz",)


def truncate(path, draw):
    os.truncate(path, draw.randrange(path.stat().st_size + 1))


def flip(path, draw):
    content = bytearray(path.read_bytes())
    for _ in range(draw.choice((1, 1, 8, 64))):
        content[draw.randrange(len(content))] = draw.randrange(256)
    path.write_bytes(content)


def flip_header(path, draw):
    content = bytearray(path.read_bytes())
    for _ in range(draw.choice((1, 2, 4))):
        content[draw.randrange(min(256, len(content)))] = draw.randrange(256)
    path.write_bytes(content)


def flip_end(path, draw):
    content = bytearray(path.read_bytes())
    for _ in range(draw.choice((1, 2, 4))):
        content[-1 - draw.randrange(min(700, len(content)))] = draw.randrange(256)
    path.write_bytes(content)


def replace_by(make):
    def replaced(path, draw):
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        make(path, draw)

    replaced.__name__ = make.__name__
    return replaced


def nothing(path, draw):
    pass


def empty(path, draw):
    path.touch()


def text(path, draw):
    path.write_text("<html>Not found</html>")


def noise(path, draw):
    path.write_bytes(draw.randbytes(draw.choice((1, 100, 10_000))))


def folder(path, draw):
    path.mkdir()


def link_loop(path, draw):
    path.symlink_to(path.name)


def dangling_link(path, draw):
    path.symlink_to("absent")


def endless_device(path, draw):
    path.symlink_to("/dev/zero")


def pipe(path, draw):
    os.mkfifo(path)


def sparse(path, draw):
    path.touch()
    os.truncate(path, 1 << 42)


def parent_link(path, draw):
    path.symlink_to("..")


def bomb(path, draw):
    """Return a PNG whose header claims 60,000 x 60,000 pixels."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    rows = chunk(b"IDAT", zlib.compress(bytes(1000)))
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + rows + chunk(b"IEND", b""))


def other_size(path, draw):
    Image.new("RGB", (draw.choice((1, 31, 33, 1000)), 32)).save(path, "PNG")


def other_mode(path, draw):
    mode = draw.choice(("1", "L", "LA", "P", "RGBA", "I;16"))
    Image.new(mode, (32, 32)).save(path, "PNG")


def other_format(path, draw):
    Image.new("L", (32, 32)).save(path, draw.choice(("GIF", "BMP", "TIFF", "PPM", "ICO", "WEBP")))


def tar_of_others(path, draw):
    with tarfile.open(path, draw.choice(("w:gz", "w"))) as archive:
        for name in draw.choice((("a",), ("cifar-10-batches-py/data_batch_1",), ("../x", "/etc/x"))):
            member = tarfile.TarInfo(name)
            member.type = draw.choice(
                (tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE)
            )
            member.linkname = draw.choice((name, "absent", "/dev/zero"))
            archive.addfile(member)


OF_FILES = [truncate, flip, flip_header, flip_end] + [
    replace_by(make)
    for make in (nothing, empty, text, noise, folder, link_loop, dangling_link, endless_device, pipe, sparse)
]
OF_IMAGES = [*OF_FILES, *(replace_by(make) for make in (bomb, other_size, other_mode, other_format, parent_link))]
OF_ARCHIVES = [*OF_FILES, replace_by(tar_of_others)]
OF_FOLDERS = [replace_by(make) for make in (nothing, folder, empty, link_loop, dangling_link, pipe, parent_link)]


def more_names(path, draw):
    """Add names to a folder that do not belong there."""
    names = ("\udcff\udcfe.png", "x.png", "new folder", ".hidden", "n" * 255, "x.PNG", "a\nb.jpg")
    place = path / draw.choice(names)  # the first is not UTF-8
    if draw.random() < 0.5:
        place.mkdir()
    else:
        place.write_bytes(draw.randbytes(10))


class Trees:
    """Creates data roots with a copy of CIFAR-10 in one of its layouts, damaged in one or two places."""

    def __init__(self, folder, patch):
        self.folder, self.number = folder, 0
        self.archive = SmallArchive(folder / "made")
        write_image_folder(folder / "images" / "png", "png", 2, 1)
        write_image_folder(folder / "images" / "jpeg", "jpg", 2, 1)
        patch.setattr(CIFAR10, "_published", lambda task: self.archive.published)
        patch.setattr(cifar, "fetch", _refuse)
        patch.setenv("HOME", str(folder / "home"))

    def make(self, draw):
        """Return a damaged data root and a description of the damage."""
        self.number += 1
        root = self.folder / f"root{self.number}"
        root.mkdir()
        layout = draw.choice(("packed", "unpacked", "png", "jpeg"))
        if layout == "packed":
            shutil.copy(self.archive.packed, root)
            where, ways = [root / self.archive.packed.name], OF_ARCHIVES
        elif layout == "unpacked":
            shutil.copytree(self.archive.unpacked, root / self.archive.unpacked.name)
            where, ways = [*(root / self.archive.unpacked.name).iterdir()], OF_FILES
        else:
            shutil.copytree(self.folder / "images" / layout, root / "cifar10")
            where, ways = [path for path in root.rglob("*") if path.is_file()], OF_IMAGES
        done = [layout]
        for _ in range(draw.choice((1, 1, 2))):
            kind = draw.random()
            folders = [path for path in root.rglob("*") if path.is_dir() and not path.is_symlink()]
            if kind < 0.75 or not folders:
                path, way = draw.choice(sorted(where)), draw.choice(ways)
            elif kind < 0.9:
                path, way = draw.choice(sorted(folders)), draw.choice(OF_FOLDERS)
            else:
                path, way = draw.choice([root, *sorted(folders)]), more_names
            if os.path.lexists(path) and (path.is_file() or path.is_dir()) and not path.is_symlink():
                # An empty file has no byte to change, nor has the folder that took a file's place.
                with contextlib.suppress(FileExistsError, IsADirectoryError, ValueError):
                    way(path, draw)
                    done.append(f"{way.__name__} {path.relative_to(root)}")
        return root, "; ".join(done)

    def answer(self, root):
        """Return `used`, or the line that refuses the tree."""
        with _limited(SECONDS):
            try:
                task = CIFAR10()
                copy = task.prepare(root, "quick")
                splits = task.load(copy, task.recipe("quick"), 0, CPU)
                next(iter(splits.test.epoch(0, 4)))
            except UsageError as error:
                said = " ".join(str(error).split())
            else:
                said = "used"
        assert len(said) < LONGEST_MESSAGE
        return said


def _refuse(*arguments):
    raise cifar.DownloadFailed("no network in tests")


@contextlib.contextmanager
def _limited(seconds):
    def stop(*_):
        raise TimeoutError(f"it hangs, more than {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def check(trees, count, seed):
    draw, wrong = random.Random(seed), []
    for _ in range(count):
        root, done = trees.make(draw)
        try:
            trees.answer(root)
        except Exception as error:
            wrong.append(f"{done}: {type(error).__name__}: {error}")
        shutil.rmtree(root, ignore_errors=True)
    assert not wrong, f"{len(wrong)} of {count} data trees:\n" + "\n".join(wrong)


@pytest.fixture
def trees(tmp_path, monkeypatch):
    return Trees(tmp_path, monkeypatch)


def test_a_sample_of_damaged_data_trees_is_used_or_refused_in_one_line(trees):
    check(trees, SAMPLE, SEED)


@pytest.mark.slow
def test_hundreds_of_damaged_data_trees_are_used_or_refused_in_one_line(trees):
    check(trees, MANY, SEED + 1)


@pytest.mark.parametrize("way", [replace_by(bomb), replace_by(pipe), replace_by(endless_device), replace_by(sparse)])
def test_an_image_that_never_ends_or_says_it_is_huge_is_refused(trees, way):
    root = trees.folder / "root"
    shutil.copytree(trees.folder / "images" / "png", root / "cifar10")
    way(next((root / "cifar10" / "test" / "cat").iterdir()), random.Random(0))
    assert "cifar10/test/cat/0000.png: " in trees.answer(root)


if __name__ == "__main__":
    import logging
    import tempfile

    logging.disable(logging.WARNING)
    count = int(sys.argv[1]) if len(sys.argv) > 1 else MANY
    draw = random.Random(int(sys.argv[2]) if len(sys.argv) > 2 else SEED)
    with tempfile.TemporaryDirectory() as folder_name, pytest.MonkeyPatch.context() as patch:
        made, counts = Trees(Path(folder_name), patch), Counter()
        for _ in range(count):
            root, done = made.make(draw)
            try:
                with open(os.devnull, "w") as quiet, contextlib.redirect_stderr(quiet):
                    said = made.answer(root)
                counts["used" if said == "used" else "refused"] += 1
            except Exception as error:
                said = f"TRACEBACK {type(error).__name__}: {error}"
                counts["traceback"] += 1
            shutil.rmtree(root, ignore_errors=True)
            print(f"{done}\n    {said[:220]}", flush=True)
        print(f"{count} data trees; {dict(counts)}")
