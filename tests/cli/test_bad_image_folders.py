"""Image folders by the command line: what cannot be used is one line that names the file, what can be used is said.

`tests/tasks/test_image_files.py` and `tests/tasks/test_hostile_folders.py` test the functions behind it.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from suite.cli import main as cli
from suite.cli import run

Make = Callable[[Path], None]
SPLITS, CLASSES, EACH = ("train", "val"), ("cat", "dog"), 3
OPTIONS = (
    *("--methods", "dense", "--preset", "quick", "--epochs", "1", "--batch-size", "2"),
    *("--device", "cpu", "--dtype", "float32", "--model", "mlp[width=8,depth=1]"),
)


def image(mode: str = "RGB") -> Image.Image:
    noise = np.random.RandomState(0).randint(0, 256, (40, 40, 3)).astype(np.uint8)
    return Image.fromarray(noise).convert(mode)


def encoded(kind: str, mode: str = "RGB", **options: Any) -> bytes:
    buffer = io.BytesIO()
    image(mode).save(buffer, kind, **options)
    return buffer.getvalue()


def base(folder: Path) -> None:
    """Write three images of each class in both splits."""
    for split in SPLITS:
        for name in CLASSES:
            (folder / split / name).mkdir(parents=True)
            for number in range(EACH):
                image().save(folder / split / name / f"{number}.png")


def with_files(files: dict[str | bytes, bytes]) -> Make:
    """Return a function that writes `base` and more files."""

    def make(folder: Path) -> None:
        base(folder)
        for place, content in files.items():
            with open(os.fsencode(folder) + b"/" + os.fsencode(place), "wb") as file:
                file.write(content)

    return make


def with_link(place: str, target: str) -> Make:
    def make(folder: Path) -> None:
        base(folder)
        (folder / place).symlink_to(target)

    return make


def with_folder(place: str) -> Make:
    def make(folder: Path) -> None:
        base(folder)
        (folder / place).mkdir()
        image().save(folder / place / "1.png")

    return make


def only(*paths: str) -> Make:
    """Return a function that writes images at some paths, and empty folders where a path ends in a slash."""

    def make(folder: Path) -> None:
        for path in paths:
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.mkdir() if path.endswith("/") else image().save(target)

    return make


PNG, JPEG = encoded("PNG"), encoded("JPEG", quality=95)
# Where the last line has to name a place in the folder.
REFUSED: dict[str, tuple[Make, str]] = {
    "text": (with_files({"val/dog/text.jpg": b"this is not an image"}), "/val/dog/text.jpg: "),
    "link to a device": (with_link("train/cat/9.png", "/dev/zero"), "/train/cat/9.png: is not a regular file"),
    "one class in splits": (
        only(*(f"{split}/cat/{number}.png" for split in SPLITS for number in range(4))),
        "/train: contains only the class cat/; a network needs at least two classes",
    ),
    "folder next to images": (with_folder("train/cat/more"), "/train/cat/more: is not an image by its name"),
    "link to a folder above": (with_link("train/loop", ".."), "/val/loop: "),
    "loose image": (with_files({"train/a.jpg": JPEG}), "/train/a.jpg: is an image next to"),
}


def words(folder: Path, **parameters: str) -> list[str]:
    """Return a command line; `parameters` are those of the task."""
    typed = ",".join(f"{name}={value}" for name, value in parameters.items())
    task = f"imagefolder[{typed}]" if typed else "imagefolder"
    return [*OPTIONS, "--task", task, "--data-root", str(folder), "--out", str(folder.parent / "out")]


def command(folder: Path, **parameters: str) -> int:
    return cli.main(words(folder, **parameters))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder for images; the home folder is another one."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "pets").mkdir()
    return tmp_path / "pets"


@pytest.fixture
def notes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Collect the note of the data in place of running the trials of a command."""
    found: list[str] = []

    def collect(options: Any, command: Any, **more: Any) -> int:
        found.append(command.trials[0].data_copy["note"])
        return 0

    monkeypatch.setattr(run, "run_prepared", collect)
    return found


@pytest.mark.parametrize(("case", "cache"), [*((case, "on") for case in REFUSED), ("text", "off")])
def test_what_cannot_be_used_is_one_line(
    folder: Path, capfd: pytest.CaptureFixture[str], case: str, cache: str
) -> None:
    make, expected = REFUSED[case]
    make(folder)
    status = command(folder, cache=cache)
    errors = capfd.readouterr().err
    assert status == 2, errors
    assert errors.count("pdt: error:") == 1
    last = errors.splitlines()[-1]
    assert last.startswith(f"pdt: error: {folder}")
    assert expected in last
    assert "Traceback" not in errors
    assert not (folder.parent / "out").exists()


def test_a_cache_that_is_off_cannot_leave_files_out(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    base(folder)
    assert command(folder, cache="off", bad_images="skip") == 2
    assert "bad_images=skip needs cache=on" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (
            with_files({"val/dog/cut.png": PNG[: len(PNG) // 2]}),
            "1 file that cannot be read as an image was left out, the first is val/dog/cut.png",
        ),
        (with_folder("train/cat/more"), "of a class was left out, the first is train/cat/more"),
        (
            with_files({"stray.png": PNG, "train/loose.png": PNG}),
            "2 files that are not images of a class were left out, the first is stray.png",
        ),
    ],
)
def test_a_file_that_is_left_out_is_reported(folder: Path, notes: list[str], make: Make, expected: str) -> None:
    make(folder)
    assert command(folder, bad_images="skip") == 0
    assert expected in notes[0]
    assert notes[0].isprintable()


@pytest.mark.parametrize("cache", ["on", "off"])
def test_an_image_that_is_converted_is_reported(folder: Path, notes: list[str], cache: str) -> None:
    with_files({"train/cat/palette.png": encoded("PNG", "P")})(folder)
    assert command(folder, cache=cache) == 0
    assert "7 training and 6 test images" in notes[0]
    assert "; converted to RGB: 1 from palette;" in notes[0]


UNUSUAL = {
    "train/cat/early.jpg": JPEG[: len(JPEG) // 2]
    + b"\xff\xd9"
    + JPEG[len(JPEG) // 2 + 2 :],  # completed by the library
    "train/cat/.DS_Store": b"x",
    "train/labels.csv": b"x",
    b"train/cat/\xff.png": PNG,
}


@pytest.mark.parametrize("make", [
    with_files(UNUSUAL), only(*(f"{name}/{number}.png" for name in CLASSES for number in "12"), "__MACOSX/cat/"),
])  # fmt: skip
def test_what_is_unusual_and_can_be_used(folder: Path, notes: list[str], make: Make) -> None:
    make(folder)
    assert command(folder) == 0
    assert "left out" not in notes[0]
