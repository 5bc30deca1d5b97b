"""Data trees with something else in the place of a file or folder: a task refuses them with one line."""

import os
import random
import shutil
import signal
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tasks"))

from small_copies import SmallArchive, write_image_folder

from suite.errors import UsageError
from tasks import cifar
from tasks.cifar10 import CIFAR10

LONGEST_MESSAGE = 2500  # characters
SECONDS = 20  # limit after which a reader counts as hanging


WAYS = {
    "text": lambda path: path.write_text("<html>Not found</html>"),
    "noise": lambda path: path.write_bytes(random.Random(0).randbytes(10_000)),
    "empty": Path.touch,
    "folder": Path.mkdir,
    "loop": lambda path: path.symlink_to(path.name),
    "dangling link": lambda path: path.symlink_to("absent"),
    "link to the parent": lambda path: path.symlink_to(".."),
    "endless device": lambda path: path.symlink_to("/dev/zero"),
    "pipe": os.mkfifo,
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A copy of CIFAR-10 in each of its layouts."""
    folder = tmp_path_factory.mktemp("whole")
    archive = SmallArchive(folder / "unpacked")
    (folder / "packed").mkdir()
    archive.packed.rename(folder / "packed" / archive.packed.name)
    write_image_folder(folder / "images" / "cifar10", "png", 2, 1)
    return folder, archive.published


@pytest.fixture
def tree(whole, tmp_path, monkeypatch):
    """Return the answer to a layout that is changed by a function: `used`, or the line that refuses it."""
    folder, published = whole

    def refuse(*arguments):
        raise cifar.DownloadFailed("no network in tests")

    def hang(*_):
        pytest.fail(f"it hangs, more than {SECONDS} s")

    monkeypatch.setattr(CIFAR10, "_published", lambda task: published)
    monkeypatch.setattr(cifar, "fetch", refuse)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))

    def answer(layout, change):
        root = Path(shutil.copytree(folder / layout, tmp_path / "root"))
        change(root)
        task = CIFAR10()
        before = signal.signal(signal.SIGALRM, hang)
        signal.alarm(SECONDS)
        try:
            copy = task.prepare(root, "quick")
            splits = task.load(copy, task.recipe("quick"), 0, torch.device("cpu"))
            next(iter(splits.test.epoch(0, 4)))
        except UsageError as error:
            return " ".join(str(error).split())
        finally:
            signal.alarm(0)
            signal.signal(signal.SIGALRM, before)
        return "used"

    return answer


PLACES = {
    "cifar-10-python.tar.gz": "packed",
    "cifar-10-batches-py/data_batch_2": "unpacked",
    "cifar10/test/cat/0000.png": "images",
    "cifar10/train/cat": "images",
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("way", WAYS)
def test_something_else_in_the_place_of_data_is_refused_in_one_line(tree, place, way):
    def replace(root):
        path = root / place
        shutil.rmtree(path) if path.is_dir() else path.unlink()
        WAYS[way](path)

    said = tree(PLACES[place], replace)
    assert "cifar-10-batches-py" in said if PLACES[place] == "unpacked" else Path(place).name in said
    assert len(said) < LONGEST_MESSAGE
