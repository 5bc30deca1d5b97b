"""Image folders by the command line: what cannot be used is one line that names the file, what can be used is said.

`tests/tasks/test_image_files.py` and `tests/tasks/test_hostile_folders.py` test the functions behind it.
"""

from __future__ import annotations

import io
import json
import os
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from trials_here import run_here

from suite.cli import main as cli
from suite.cli import run
from suite.trials.engines.local import LocalEngine

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


def chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def promising(width: int, height: int) -> bytes:
    """Return a PNG file whose head promises a size, and that contains hardly any pixels."""
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    pixels = chunk(b"IDAT", zlib.compress(bytes(1000)))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + pixels + chunk(b"IEND", b"")


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


def with_sparse_file(folder: Path) -> None:
    base(folder)
    (folder / "train/cat/sparse.png").touch()
    os.truncate(folder / "train/cat/sparse.png", 1 << 33)


def only(*paths: str) -> Make:
    """Return a function that writes images at some paths, and empty folders where a path ends in a slash."""

    def make(folder: Path) -> None:
        for path in paths:
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.mkdir() if path.endswith("/") else image().save(target)

    return make


PNG, JPEG = encoded("PNG"), encoded("JPEG", quality=95)
CONTENTS = {
    "text.jpg": b"this is not an image",
    "cut.png": PNG[: len(PNG) // 2],
    "gif.jpg": encoded("GIF", "P"),
    "huge.png": promising(60_000, 60_000),
    "too_large.png": promising(12_000, 12_000),
    "too_narrow.png": promising(1, 100_000),
    "no_width.png": promising(0, 5),
    "few_pixels.png": promising(400, 400),
    "checksum.png": PNG[:60] + bytes([PNG[60] ^ 0xFF]) + PNG[61:],
}
# Where the last line has to name a place in the folder.
REFUSED: dict[str, tuple[Make, str]] = {
    **{name: (with_files({f"val/dog/{name}": CONTENTS[name]}), f"/val/dog/{name}: ") for name in CONTENTS},
    "link to a device": (with_link("train/cat/9.png", "/dev/zero"), "/train/cat/9.png: is not a regular file"),
    "folder named as an image": (with_folder("train/cat/9.png"), "/train/cat/9.png: is not a regular file"),
    "file of 8 GiB": (with_sparse_file, "/train/cat/sparse.png: is larger than"),
    "name of other bytes": (with_files({b"train/cat/\xff.png": b"x"}), r"/train/cat/\xff.png: cannot be read"),
    "other name": (with_files({"train/cat/noextension": PNG}), "/train/cat/noextension: is not an image by its name"),
    "one class in splits": (
        only(*(f"{split}/cat/{number}.png" for split in SPLITS for number in range(4))),
        "/train: contains only the class cat/; a network needs at least two classes",
    ),
    "empty class without splits": (only("cat/1.png", "cat/2.png", "dog/"), "and dog/ has no image"),
    "images in the test split": (only("train/cat/1.png", "train/dog/1.png", "val/1.png"), "/val/cat: no such folder"),
    "folder next to images": (with_folder("train/cat/more"), "/train/cat/more: is not an image by its name"),
    "link to a folder above": (with_link("train/loop", ".."), "/val/loop: "),
    "loose image in the training split": (with_files({"train/a.jpg": JPEG}), "/train/a.jpg: is an image next to"),
    "loose image in the test split": (with_files({"val/a.PNG": PNG}), "/val/a.PNG: is an image next to"),
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

    def collect(options: Any, suite: Any, trials: Any, folder: Path, **more: Any) -> int:
        found.append(trials[0].data_copy["note"])
        return 0

    monkeypatch.setattr(run, "run_trials", collect)
    return found


@pytest.mark.parametrize(("case", "cache"), [*((case, "on") for case in REFUSED), ("text.jpg", "off")])
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


def test_a_data_root_that_is_no_folder(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for place, text in (("absent", "there is no such folder"), ("file", "is a file")):
        (folder / "file").touch()
        assert command(folder / place) == 2
        errors = capfd.readouterr().err
        assert errors.startswith("pdt: error: ")
        assert errors.count("\n") == 1
        assert f"{folder / place}" in errors
        assert text in errors


def test_a_cache_that_is_off_cannot_leave_files_out(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    base(folder)
    assert command(folder, cache="off", bad_images="skip") == 2
    assert "bad_images=skip needs cache=on" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (
            with_files({"val/dog/cut.png": CONTENTS["cut.png"]}),
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


def test_few_steps_and_an_accuracy_of_chance_are_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    """The images are so few that nothing can be learned from them."""
    monkeypatch.setattr(LocalEngine, "run", run_here)
    monkeypatch.setattr("reports.content.build.tradeoff_figures", lambda rows, slug, curve: ([], []))
    monkeypatch.setattr("reports.content.build.curve_figures", lambda rows, slug: ([], []))
    for place, count in {"train/cat": 5, "train/dog": 3, "val/cat": 2, "val/dog": 3}.items():
        (folder / place).mkdir(parents=True)
        for number in range(count):
            image().save(folder / place / f"{number}.png")  # the same image in both classes
    with caplog.at_level("WARNING"):
        assert command(folder) == 0
    (said,) = (one for one in caplog.messages if "steps per epoch" in one)
    assert said.startswith("imagefolder: 8 training images in batches of 2 make 4 steps per epoch and 4 in a trial, ")
    out = folder.parent / "out"
    (record,) = (json.loads(path.read_text()) for path in (out / "trials").glob("*/trial.json"))
    sizes = {"classes": 2, "train_images": 8, "test_images": 5, "largest_test_class": 3}
    assert record["provenance"]["data"] == sizes
    assert "**Caution:** Dense training has not learned the task" in (out / "report.md").read_text()
