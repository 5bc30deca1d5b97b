"""Small copies of CIFAR-10 in each layout, and a machine without a network."""

from __future__ import annotations

import urllib.error
import urllib.request
from pathlib import Path

import pytest
from PIL import Image
from small_copies import SmallArchive

from tasks.cifar10 import CIFAR10


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests do not write to the user's cache."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every connection fails, as on a machine without a network."""

    def refuse(*_: object, **__: object) -> None:
        raise urllib.error.URLError("no network in tests")

    monkeypatch.setattr(urllib.request, "urlopen", refuse)


@pytest.fixture
def small_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SmallArchive:
    """A small archive, made outside of any data root, that the task takes for the published one."""
    archive = SmallArchive(tmp_path / "made")
    monkeypatch.setattr(CIFAR10, "_published", lambda self: archive.published)
    return archive


@pytest.fixture
def task() -> CIFAR10:
    return CIFAR10()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of two classes with three images in each of two splits, all of which differ."""
    for index, place in enumerate(("train/cat", "train/dog", "val/cat", "val/dog")):
        (tmp_path / place).mkdir(parents=True)
        for number in range(3):
            Image.new("RGB", (40, 40), (number, index, 0)).save(tmp_path / place / f"{number}.png")
    return tmp_path
