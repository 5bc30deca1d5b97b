"""JPEG files that torchvision decodes have the pixels and the errors that Pillow gives."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import tasks.images.decoding as decoding
import tasks.images.jpeg as jpeg
from tasks.images.decoding import BadImage, decode, jpeg_content
from tasks.images.jpeg import decode_jpeg, jpeg_frame

SIDE = 64


def encoded(random: np.random.RandomState, size: tuple[int, int], mode: str = "RGB", **options: object) -> bytes:
    """Return a JPEG file of a smooth random image of a size (width, height)."""
    coarse = random.randint(0, 256, (size[1] // 6 + 1, size[0] // 6 + 1, 3)).astype(np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(coarse).resize(size).convert(mode).save(buffer, "JPEG", **options)  # type: ignore[arg-type]
    return buffer.getvalue()


def outcome(path: Path) -> tuple[object, ...]:
    try:
        pixels, converted = decode(path, SIDE)
    except BadImage as error:
        return (str(error),)
    return pixels.shape, pixels.tobytes(), converted


def with_pillow(path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[object, ...]:
    with monkeypatch.context() as patch:
        patch.setattr(decoding, "_jpeg_pixels", lambda path: None)
        return outcome(path)


@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
@pytest.mark.parametrize("progressive", [False, True])
@pytest.mark.parametrize("quality", [30, 75, 100])
def test_pixels_are_those_of_pillow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, progressive: bool, quality: int
) -> None:
    random = np.random.RandomState(0)
    path = tmp_path / "x.jpg"
    for size in ((1, 1), (23, 17), (200, 64), (90, 131)):
        for subsampling in (0, 1, 2):
            content = encoded(random, size, mode, quality=quality, progressive=progressive, subsampling=subsampling)
            path.write_bytes(content)
            fast = jpeg_frame(memoryview(content))
            assert fast == (None if mode == "CMYK" or progressive else size)
            assert outcome(path) == with_pillow(path, monkeypatch)


def damaged(random: np.random.RandomState, content: bytes) -> Iterator[bytes]:
    """Yield contents that were cut, altered and shortened in the middle."""
    for kept in range(1, len(content), len(content) // 40):
        yield content[:kept]
    for _ in range(80):
        altered = bytearray(content)
        for place in random.randint(0, len(content), 3):
            altered[place] = random.randint(256)
        yield bytes(altered)
    for _ in range(40):
        place = random.randint(2, len(content))
        yield content[:place] + content[place + random.randint(1, 20) :]


@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize("progressive", [False, True])
def test_damaged_files_are_decoded_or_refused_as_by_pillow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, progressive: bool
) -> None:
    random = np.random.RandomState(1)
    path = tmp_path / "x.jpg"
    refused = 0
    for content in damaged(random, encoded(random, (47, 33), mode, quality=60, progressive=progressive)):
        path.write_bytes(content)
        found = outcome(path)
        assert found == with_pillow(path, monkeypatch)
        refused += len(found) == 1
    assert refused >= 40


def test_a_jpeg_file_with_another_suffix_and_another_format_with_that_of_jpeg(tmp_path: Path) -> None:
    content = encoded(np.random.RandomState(0), (20, 10))
    (tmp_path / "a.png").write_bytes(content)
    (tmp_path / "b.jpg").write_bytes(content)
    assert outcome(tmp_path / "a.png") == outcome(tmp_path / "b.jpg")
    Image.new("RGB", (20, 10), "red").save(tmp_path / "c.png")
    (tmp_path / "c.png").rename(tmp_path / "c.jpg")
    assert decode(tmp_path / "c.jpg", SIDE).pixels[0, 0].tolist() == [255, 0, 0]


def test_the_size_is_checked_before_a_pixel_is_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.jpg"
    path.write_bytes(encoded(np.random.RandomState(0), (30, 20)))
    monkeypatch.setattr(decoding, "MAX_PIXELS", 599)
    monkeypatch.setattr(decoding, "decode_jpeg", None)
    with pytest.raises(BadImage, match=r"x\.jpg: has 30x20 pixels; the limit is 599 pixels"):
        decode(path, SIDE)


def test_pillow_decodes_where_torchvision_cannot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.jpg"
    path.write_bytes(encoded(np.random.RandomState(0), (30, 20)))
    content = np.fromfile(path, dtype=np.uint8)
    pixels = decode_jpeg(content)
    assert pixels is not None
    assert pixels.flags.c_contiguous
    monkeypatch.setattr(jpeg, "_torchvision_decoder", lambda: None)
    assert decode_jpeg(content) is None
    np.testing.assert_array_equal(decode(path, SIDE).pixels, pixels)


def test_a_file_is_read_in_parts_where_the_system_returns_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = encoded(np.random.RandomState(0), (40, 30))
    (tmp_path / "x.jpg").write_bytes(content)
    whole, read = outcome(tmp_path / "x.jpg"), os.readv
    monkeypatch.setattr(decoding.os, "readv", lambda file, buffers: read(file, [buffers[0][:100]]))
    found = jpeg_content(tmp_path / "x.jpg")
    assert found is not None
    assert found.tobytes() == content
    assert outcome(tmp_path / "x.jpg") == whole


def test_a_file_that_becomes_shorter_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, sizes = tmp_path / "x.jpg", os.fstat
    path.write_bytes(encoded(np.random.RandomState(0), (40, 30)))

    def then_cut(file: int) -> os.stat_result:
        found = sizes(file)
        os.truncate(path, found.st_size // 2)
        return found

    monkeypatch.setattr(decoding.os, "fstat", then_cut)
    with pytest.raises(BadImage, match=r"x\.jpg: became shorter while it was read"):
        decode(path, SIDE)
