"""Extraction of archives: Imagenette's three, damaged ones, and processes at the same time."""

from __future__ import annotations

import hashlib
import io
import tarfile
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from PIL import Image

import tasks.imagenette as imagenette
import tasks.sources.extraction as extraction
from suite.errors import MissingData, UsageError
from tasks.imagenette import ARCHIVES, Imagenette
from tasks.sources.extraction import LOCK, extract_once


def packed(name: str, **more: bytes) -> bytes:
    """Return an archive in the layout of Imagenette, with two images of each class and further files."""
    files = {}
    for split in ("train", "val"):
        for number in range(10):
            image = io.BytesIO()
            Image.effect_noise((40, 40), 50).save(image, "JPEG")
            files[f"{name}/{split}/n0{number}/{split}.JPEG"] = image.getvalue()
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for path, content in (files | more).items():
            member = tarfile.TarInfo(path)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def write_archive(folder: Path, name: str, content: bytes, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write an archive whose MD5 is taken for the published one."""
    path = folder / f"{name}.tgz"
    path.write_bytes(content)
    monkeypatch.setitem(ARCHIVES, name, hashlib.md5(content).hexdigest())
    return path


def left(folder: Path) -> list[str]:
    """Return the names of hidden files and folders, without the lock."""
    return [path.name for path in folder.iterdir() if path.name.startswith(".") and path.name != LOCK]


@pytest.mark.parametrize("name", ARCHIVES)
def test_each_published_archive_is_extracted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    write_archive(tmp_path, name, packed(name), monkeypatch)
    monkeypatch.setattr(imagenette, "fetch", None)
    tree = Imagenette().find(tmp_path)
    assert (tree.root, len(tree.train), len(tree.test)) == (tmp_path / name, 10, 10)
    assert left(tmp_path) == []
    (tmp_path / f"{name}.tgz").unlink()
    assert Imagenette().find(tmp_path) == tree


def test_the_archive_of_160_pixels_is_downloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def fetch(urls: tuple[str, ...], md5: str, destination: Path) -> None:
        calls.append((urls, md5))
        write_archive(destination.parent, destination.stem, packed("imagenette2-160"), monkeypatch)

    monkeypatch.setattr(imagenette, "fetch", fetch)
    expected = ("https://s3.amazonaws.com/fast-ai-imageclas/imagenette2-160.tgz",), ARCHIVES["imagenette2-160"]
    assert Imagenette().find(tmp_path).root == tmp_path / "imagenette2-160"
    assert calls == [expected]


def test_without_a_network_every_possible_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(MissingData, match=r"none of imagenette2-160\.tgz, imagenette2-320\.tgz, imagenette2\.tgz, and"):
        Imagenette().find(tmp_path)
    assert not list(tmp_path.glob("*.tgz"))


def test_an_archive_that_is_not_the_published_one_is_refused(tmp_path: Path) -> None:
    (tmp_path / "imagenette2-320.tgz").write_bytes(packed("imagenette2-320"))
    with pytest.raises(
        UsageError, match=r"imagenette2-320\.tgz: is not the published archive, or incomplete \(its MD5 "
    ):
        Imagenette().find(tmp_path)
    assert left(tmp_path) == []


WHOLE = packed("imagenette2")
DAMAGED = {
    "empty": (b"", "cannot be extracted: empty file"),
    "text": (b"<html>404</html>", "cannot be extracted: not a gzip file"),
    **{f"{part:g} of it": (WHOLE[: int(part * len(WHOLE))], "cannot be extracted: ") for part in (0.01, 0.5, 0.9)},
    "changed": (WHOLE[:200] + b"\xff" * 1000 + WHOLE[1200:], "cannot be extracted: "),
    "path outside": (packed("imagenette2", **{"../outside.txt": b"x"}), "outside the destination"),
    "absolute link": (b"", "outside the destination"),
    "another folder": (packed("imagenette"), "contains no folder imagenette2/"),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_a_damaged_archive_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    content, expected = DAMAGED[case]
    if case == "absolute link":
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
            member = tarfile.TarInfo("imagenette2")
            member.type, member.linkname = tarfile.SYMTYPE, "../.."
            archive.addfile(member)
        content = buffer.getvalue()
    root = tmp_path / "data"
    root.mkdir()
    write_archive(root, "imagenette2", content, monkeypatch)
    with pytest.raises(UsageError, match=r"imagenette2\.tgz: ") as error:
        Imagenette().find(root)
    assert expected in str(error.value)
    assert str(error.value).isprintable()
    assert sorted(path.name for path in root.iterdir()) == [LOCK, "imagenette2.tgz"]
    assert not (tmp_path / "outside.txt").exists()


def test_a_second_process_waits_and_uses_the_result(tmp_path: Path) -> None:
    archive = tmp_path / "pets.tgz"
    archive.write_bytes(b"x")
    begun, may_end = threading.Event(), threading.Event()

    def slow(temporary: Path) -> None:
        (temporary / "pets").mkdir()
        begun.set()
        assert may_end.wait(60)
        assert (temporary / "pets").is_dir()  # the second one has not removed it

    def never(temporary: Path) -> None:
        raise AssertionError("it is extracted twice")

    threads = [
        threading.Thread(target=extract_once, args=(archive, tmp_path / "pets", unpack)) for unpack in (slow, never)
    ]
    threads[0].start()
    assert begun.wait(60)
    threads[1].start()
    threads[1].join(0.3)
    assert threads[1].is_alive()
    may_end.set()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert (tmp_path / "pets").is_dir()
    assert left(tmp_path) == []


def test_abandoned_folders_are_removed_before_the_space_is_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_archive(tmp_path, "imagenette2", WHOLE, monkeypatch)
    (tmp_path / ".imagenette2.part").mkdir()

    def disk_usage(path: Path) -> SimpleNamespace:
        return SimpleNamespace(free=len(WHOLE) - bool(left(tmp_path)))

    monkeypatch.setattr(extraction.shutil, "disk_usage", disk_usage)
    assert len(Imagenette().find(tmp_path).train) == 10


def test_a_disk_that_is_too_small_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_archive(tmp_path, "imagenette2", WHOLE, monkeypatch)
    monkeypatch.setattr(extraction.shutil, "disk_usage", lambda path: SimpleNamespace(free=len(WHOLE) - 1))
    with pytest.raises(UsageError, match=r"the content of imagenette2\.tgz takes about .* GB; make room"):
        Imagenette().find(tmp_path)
    assert left(tmp_path) == []
