"""Image folders that cannot be used, by the command line: exit status 2 and one line that names the file.

Every command runs in this process and ends before the first trial. `tests/tasks/test_hostile_folders.py` tests the
functions behind it.
"""

from __future__ import annotations

import io
import os
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from toy_suite import pdt

from suite.cli import main as cli
from suite.cli import run

Make = Callable[[Path], None]
SPLITS, CLASSES, EACH = ("train", "val"), ("cat", "dog"), 3
OPTIONS = (
    *("--methods", "dense", "--preset", "quick", "--epochs", "1", "--batch-size", "2"),
    *("--device", "cpu", "--dtype", "float32", "--model", "mlp[width=8,depth=1]"),
)


def image(mode: str = "RGB", size: tuple[int, int] = (40, 40)) -> Image.Image:
    noise = np.random.RandomState(0).randint(0, 256, (size[1], size[0], 3)).astype(np.uint8)
    return Image.fromarray(noise).convert(mode)


def encoded(kind: str, mode: str = "RGB", size: tuple[int, int] = (40, 40), **options: Any) -> bytes:
    buffer = io.BytesIO()
    image(mode, size).save(buffer, kind, **options)
    return buffer.getvalue()


def deep(channels: int) -> bytes:
    """Return a PNG file of 16 bits, grey or in colour, which Pillow cannot write in colour."""
    values = np.random.RandomState(0).randint(0, 65536, (40, 40 * channels)).astype(">u2")
    rows = b"".join(b"\0" + row.tobytes() for row in values)
    head = struct.pack(">IIBBBBB", 40, 40, 16, 0 if channels == 1 else 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def promising(width: int, height: int) -> bytes:
    """Return a PNG file whose head promises a size, and that contains hardly any pixels."""
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    pixels = chunk(b"IDAT", zlib.compress(bytes(1000)))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + pixels + chunk(b"IEND", b"")


def flipped(content: bytes, place: int) -> bytes:
    return content[:place] + bytes([content[place] ^ 0xFF]) + content[place + 1 :]


PNG, JPEG = encoded("PNG"), encoded("JPEG", quality=95)
CONTENTS = {
    "empty.jpg": b"",
    "text.jpg": b"this is not an image",
    "html.png": b"<html><body>404</body></html>",
    "svg.png": b'<svg xmlns="http://www.w3.org/2000/svg"/>',
    "pdf.jpg": b"%PDF-1.4\n",
    "eps.png": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 1 1\n",
    "gif.jpg": encoded("GIF", "P"),
    "tiff.png": encoded("TIFF"),
    "ico.png": encoded("ICO"),
    "zeros.webp": bytes(500),
    "head.jpg": b"\xff\xd8\xff\xe0",
    "head.bmp": b"BM" + bytes(20),
    "head.webp": b"RIFF\x00\x00\x00\x00WEBPVP8 ",
    "huge.png": promising(60_000, 60_000),
    "too_large.png": promising(12_000, 12_000),
    "too_narrow.png": promising(1, 100_000),
    "no_width.png": promising(0, 5),
    "few_pixels.png": promising(400, 400),
    "checksum.png": flipped(PNG, 60),
    **{
        f"{part:g}.{suffix}": content[: int(part * len(content))]
        for suffix, content in (("jpg", JPEG), ("png", PNG), ("webp", encoded("WEBP")), ("bmp", encoded("BMP")))
        for part in (0.1, 0.5, 0.95)
    },
}
OTHER_NAMES = ("README.txt", "Thumbs.db", "photo.heic", "moving.gif", "scan.tif", "noextension")


def base(folder: Path) -> None:
    """Write three images of each class in both splits."""
    for split in SPLITS:
        for name in CLASSES:
            (folder / split / name).mkdir(parents=True)
            for number in range(EACH):
                image().save(folder / split / name / f"{number}.png")


def with_file(place: str | bytes, content: bytes) -> Make:
    """Return a function that writes `base` and one more file."""

    def make(folder: Path) -> None:
        base(folder)
        path = os.fsencode(folder) + b"/" + os.fsencode(place)
        os.makedirs(os.path.dirname(path), exist_ok=True)  # noqa: PTH103, PTH120  names that are bytes
        with open(path, "wb") as file:
            file.write(content)

    return make


def with_link(place: str, target: str) -> Make:
    def make(folder: Path) -> None:
        base(folder)
        (folder / place).symlink_to(target)

    return make


def with_pipe(folder: Path) -> None:
    base(folder)
    os.mkfifo(folder / "train/cat/pipe.png")


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


SPECIAL: dict[str, tuple[Make, str]] = {
    "link to nothing": (with_link("train/cat/9.png", "nowhere.png"), "train/cat/9.png: cannot be read"),
    "link to itself": (with_link("train/cat/9.png", "9.png"), "train/cat/9.png: cannot be read"),
    "link to a device": (with_link("train/cat/9.png", "/dev/zero"), "train/cat/9.png: is not a regular file"),
    "pipe": (with_pipe, "train/cat/pipe.png: is not a regular file"),
    "folder named as an image": (with_folder("train/cat/9.png"), "train/cat/9.png: is not a regular file"),
    "file of 8 GiB": (with_sparse_file, "train/cat/sparse.png: is larger than"),
    "long image": (with_file("val/dog/long.png", encoded("PNG", "L", (40, 8_001))), "val/dog/long.png: has 40x8,001"),
    "name with a new line": (with_file("train/cat/a\nb.png", b"x"), r"train/cat/a\nb.png: cannot be read"),
    "name of other bytes": (with_file(b"train/cat/\xff.png", b"x"), r"train/cat/\xff.png: cannot be read"),
}
# Where the last line has to name a place in the folder.
LAYOUTS: dict[str, tuple[Make, str]] = {
    "nothing": (only(), ": contains no folders"),
    "images only": (only("1.png", "2.png"), ": contains no folders"),
    "one class": (only("cat/1.png"), ": contains only the folder cat/"),
    "one class in splits": (
        only(*(f"{split}/cat/{number}.png" for split in SPLITS for number in range(4))),
        "/train: contains only the class cat/; a network needs at least two classes",
    ),
    "one folder deeper": (only("a/train/cat/1.png", "a/val/cat/1.png"), ": contains only the folder a/"),
    "few images": (only("cat/1.png", "dog/1.png"), "/cat: has too few images"),
    "no test split": (only("train/cat/1.png", "train/dog/1.png"), ": contains only the folder train/"),
    "misspelt test split": (only("train/cat/1.png", "tests/cat/1.png"), "; rename tests to test"),
    "only a test split": (only("val/cat/1.png", "val/dog/1.png"), ": contains only the folder val/"),
    "splits of other names": (
        only(*(f"{split}/{name}/1.png" for split in ("seg_train", "seg_test") for name in CLASSES)),
        "; rename seg_test to test and seg_train to train",
    ),
    "splits in classes": (
        only(*(f"{name}/{split}/1.png" for name in CLASSES for split in SPLITS)),
        ": contains cat/, dog/ and cat/ has no image",
    ),
    "splits in classes in a split": (
        only(
            *(f"train/{name}/{split}/1.png" for name in CLASSES for split in SPLITS), "val/cat/1.png", "val/dog/1.png"
        ),
        "/train/cat: contains no image, and folders inside are not searched",
    ),
    "test split without labels": (
        only("train/cat/1.png", "train/dog/1.png", "test/unknown/1.png"),
        "/test/unknown: this class has no folder in train/",
    ),
    "empty class": (
        only("train/cat/1.png", "train/dog/", "val/cat/1.png", "val/dog/1.png"),
        "/train/dog: contains no image",
    ),
    "empty class in the test split": (
        only("train/cat/1.png", "train/dog/1.png", "val/cat/1.png", "val/dog/"),
        "/val/dog: contains no image",
    ),
    "empty class without splits": (only("cat/1.png", "cat/2.png", "dog/"), "and dog/ has no image"),
    "class without test images": (only("train/cat/1.png", "train/dog/1.png", "val/cat/1.png"), "/val/dog: no such"),
    "class without training images": (
        only("train/cat/1.png", "train/dog/1.png", "val/cat/1.png", "val/dog/1.png", "val/cats/1.png"),
        "/val/cats: this class has no folder in train/; did you mean 'cat'",
    ),
    "images in the splits": (only("train/1.png", "val/1.png"), "/train: contains no folder of a class"),
    "images in the test split": (only("train/cat/1.png", "train/dog/1.png", "val/1.png"), "/val/cat: no such folder"),
    "folders of two data sets": (only(*(f"{one}/{name}/1.png" for one in "ab" for name in CLASSES)), "and a/ has no"),
    "folder next to images": (with_folder("train/cat/more"), "/train/cat/more: is not an image by its name"),
    "link to a folder above": (with_link("train/loop", ".."), "/val/loop: "),
    "loose image": (with_file("stray.png", PNG), "/stray.png: is an image next to the folders"),
    "loose image in the training split": (with_file("train/loose.jpg", JPEG), "/train/loose.jpg: is an image next to"),
    "loose image in the test split": (with_file("val/loose.PNG", PNG), "/val/loose.PNG: is an image next to"),
    "empty class whose name is not text": (
        lambda folder: (base(folder), os.mkdir(os.fsencode(folder) + b"/train/\xff"))[0],  # noqa: PTH102
        r"/val/\xff: no such folder",
    ),
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


def assert_refused(status: int, capfd: pytest.CaptureFixture[str], folder: Path, expected: str) -> None:
    """Check exit status and message of a command that ended before its first trial."""
    errors = capfd.readouterr().err
    assert status == 2, errors
    assert errors.count("pdt: error:") == 1
    last = errors.splitlines()[-1]
    assert last.startswith(f"pdt: error: {folder}")
    assert expected in last
    assert "Traceback" not in errors
    assert not (folder.parent / "out").exists()


@pytest.mark.parametrize("cache", ["on", "off"])
@pytest.mark.parametrize("name", CONTENTS)
def test_a_file_that_is_not_an_image(folder: Path, capfd: pytest.CaptureFixture[str], name: str, cache: str) -> None:
    with_file(f"val/dog/{name}", CONTENTS[name])(folder)
    status = command(folder, cache=cache)
    assert_refused(status, capfd, folder, f"/val/dog/{name}: ")


@pytest.mark.parametrize("cache", ["on", "off"])
@pytest.mark.parametrize("case", SPECIAL)
def test_a_file_that_must_not_be_read(folder: Path, capfd: pytest.CaptureFixture[str], case: str, cache: str) -> None:
    make, expected = SPECIAL[case]
    make(folder)
    assert_refused(command(folder, cache=cache), capfd, folder, expected)


@pytest.mark.parametrize("name", OTHER_NAMES)
def test_a_file_of_another_name(folder: Path, capfd: pytest.CaptureFixture[str], name: str) -> None:
    with_file(f"train/cat/{name}", PNG)(folder)
    assert_refused(command(folder), capfd, folder, f"/train/cat/{name}: is not an image by its name; move or remove it")


@pytest.mark.parametrize("case", LAYOUTS)
def test_a_wrong_layout(folder: Path, capfd: pytest.CaptureFixture[str], case: str) -> None:
    make, expected = LAYOUTS[case]
    make(folder)
    assert_refused(command(folder), capfd, folder, expected)
    assert not [*Path.home().rglob(".pdt-cache")]


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


SKIPPED: dict[str, tuple[Make, str]] = {
    "damaged": (
        with_file("val/dog/cut.png", PNG[:400]),
        "1 file that cannot be read as an image was left out, the first is val/dog/cut.png",
    ),
    "other content": (with_file("train/cat/page.jpg", CONTENTS["html.png"]), "the first is train/cat/page.jpg"),
    "huge": (with_file("train/cat/huge.png", CONTENTS["huge.png"]), "the first is train/cat/huge.png"),
    "other name": (
        with_file("train/cat/README.txt", b"x"),
        "1 file that is not an image of a class was left out, the first is train/cat/README.txt",
    ),
    "folder": (with_folder("train/cat/more"), "of a class was left out, the first is train/cat/more"),
    "loose": (
        with_file("stray.png", PNG),
        "1 file that is not an image of a class was left out, the first is stray.png",
    ),
    "loose in a split": (with_file("train/loose.png", PNG), "was left out, the first is train/loose.png"),
    **{case: (SPECIAL[case][0], "1 file that cannot be read as an image was left out") for case in SPECIAL},
}


@pytest.mark.parametrize("case", SKIPPED)
def test_a_file_that_is_left_out_is_reported(folder: Path, notes: list[str], case: str) -> None:
    make, expected = SKIPPED[case]
    make(folder)
    assert command(folder, bad_images="skip") == 0
    assert expected in notes[0]
    assert notes[0].isprintable()


def test_a_class_that_loses_all_its_files_is_refused(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    base(folder)
    for number in range(EACH):
        (folder / f"val/dog/{number}.png").write_bytes(b"no image")
    status = command(folder, bad_images="skip")
    assert_refused(status, capfd, folder, ": no file of class 'dog' in the test split is an image")


CONVERTED = {
    "palette": ("palette.png", encoded("PNG", "P")),
    "CMYK": ("cmyk.jpg", encoded("JPEG", "CMYK")),
    "transparency": ("alpha.png", encoded("PNG", "RGBA")),
    "black-and-white": ("bits.png", encoded("PNG", "1")),
    "16-bit grey": ("deep.png", deep(1)),
    "16-bit colour": ("deep.png", deep(3)),
    "": ("grey.jpg", encoded("JPEG", "L")),
}


@pytest.mark.parametrize("cache", ["on", "off"])
@pytest.mark.parametrize("conversion", CONVERTED)
def test_an_image_that_is_converted_is_reported(folder: Path, notes: list[str], conversion: str, cache: str) -> None:
    name, content = CONVERTED[conversion]
    with_file(f"train/cat/{name}", content)(folder)
    assert command(folder, cache=cache) == 0
    assert "7 training and 6 test images" in notes[0]
    assert f"; converted to RGB: 1 from {conversion};" in notes[0] if conversion else "converted" not in notes[0]


USABLE: dict[str, Make] = {
    "file that ends early, which the library completes": with_file(
        "train/cat/early.jpg", JPEG[: len(JPEG) // 2] + b"\xff\xd9" + JPEG[len(JPEG) // 2 + 2 :]
    ),
    "hidden files": with_file("train/cat/.DS_Store", b"x"),
    "lists next to the folders": with_file("train/labels.csv", b"x"),
    "name that is not text": with_file(b"train/cat/\xff.png", PNG),
    "capital letters": only(*(f"{split}/{name}/1.png" for split in ("Train", "Val") for name in CLASSES)),
    "test split without labels": only(*(f"{split}/{name}/1.png" for split in SPLITS for name in CLASSES), "test/1.png"),
    "archive of a Mac": only(*(f"{name}/{number}.png" for name in CLASSES for number in "12"), "__MACOSX/cat/"),
}


@pytest.mark.parametrize("case", USABLE)
def test_what_is_unusual_and_can_be_used(folder: Path, notes: list[str], case: str) -> None:
    USABLE[case](folder)
    assert command(folder) == 0
    assert "left out" not in notes[0]


def test_a_process_ends_with_one_line_too(folder: Path) -> None:
    with_file(b"train/cat/\xff.png", b"x")(folder)
    answer = pdt(*words(folder))
    assert answer.returncode == 2
    assert answer.stderr.splitlines()[-1].startswith(f"pdt: error: {folder}/train/cat/\\xff.png: cannot be read")
    assert "Traceback" not in answer.stderr
