"""Fetching the archive: from the first host that gives it, whole, or not at all."""

from __future__ import annotations

import io
import os
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from suite.errors import MissingData
from tasks.cifar10 import CIFAR10, MIRRORS
from tasks.sources import download


class Response(io.BytesIO):
    """What `urlopen` returns."""

    def __init__(self, content: bytes, break_after: int | None = None) -> None:
        super().__init__(content)
        self.headers = {"Content-Length": str(len(content))}
        self._break_after = break_after

    def read1(self, size: int | None = -1) -> bytes:
        if self._break_after is not None and self.tell() >= self._break_after:
            raise ConnectionResetError(104, "Connection reset by peer")
        return super().read1(min(size or 1, 1024))


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, Any]], list[str]]:
    """Answer each address as a table says: by a response, by an exception, or, where it is not listed, not at all."""

    def install(answers: dict[str, Any]) -> list[str]:
        asked: list[str] = []

        def urlopen(url: str, **_: Any) -> Any:
            asked.append(url)
            answer = answers.get(url, urllib.error.URLError("Name or service not known"))
            answer = answer() if callable(answer) else answer
            if isinstance(answer, Exception):
                raise answer
            return answer

        monkeypatch.setattr(urllib.request, "urlopen", urlopen)
        return asked

    return install


def files_below(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_without_network_one_line_names_folder_options_and_what_needs_no_download(
    task: CIFAR10, tmp_path: Path
) -> None:
    root = tmp_path / "root"
    with pytest.raises(MissingData) as raised:
        task.prepare(root, "quick")
    line = str(raised.value)
    assert "\n" not in line
    for part in (str(root), "--data-root", "PDT_DATA", "--preset smoke", "--task digits", "no network in tests"):
        assert part in line
    assert list(tmp_path.iterdir()) == []


def test_the_archive_is_fetched_from_a_mirror_and_kept(
    task: CIFAR10, small_archive: Any, tmp_path: Path, serve: Any
) -> None:
    url, root = MIRRORS[0], tmp_path / "root"
    asked = serve({url: Response(small_archive.packed.read_bytes())})
    copy = task.prepare(root, "quick")
    assert copy.kind == "original"
    assert asked == [url]
    assert task.prepare(root, "quick") == copy
    assert asked == [url]
    assert files_below(root) == [f".pdt-cache/{Path(copy.path).name}", "cifar-10-python.tar.gz"]


def test_the_authors_are_asked_when_no_mirror_answers(
    task: CIFAR10, small_archive: Any, tmp_path: Path, serve: Any
) -> None:
    asked = serve({small_archive.published.url: Response(small_archive.packed.read_bytes())})
    assert task.prepare(tmp_path / "root", "quick").kind == "original"
    assert asked == [*MIRRORS, small_archive.published.url]


def test_another_file_is_refused_and_the_next_host_asked(
    task: CIFAR10, small_archive: Any, tmp_path: Path, serve: Any
) -> None:
    content = small_archive.packed.read_bytes()
    serve({MIRRORS[0]: Response(b"<html>moved</html>"), MIRRORS[1]: Response(content)})
    task.prepare(tmp_path / "root", "quick")
    assert (tmp_path / "root" / "cifar-10-python.tar.gz").read_bytes() == content


@pytest.mark.parametrize("fault", ["reset", "cut"])
def test_nothing_is_left_of_a_transfer_that_breaks_off(
    task: CIFAR10, small_archive: Any, tmp_path: Path, serve: Any, fault: str
) -> None:
    content = small_archive.packed.read_bytes()
    answer = Response(content, break_after=2048) if fault == "reset" else Response(content[:4000])
    serve({small_archive.published.url: answer})
    with pytest.raises(MissingData, match="reset by peer" if fault == "reset" else "another file"):
        task.prepare(tmp_path / "root", "quick")
    assert files_below(tmp_path / "root") == []


def test_nothing_is_left_when_the_user_breaks_off(
    task: CIFAR10, small_archive: Any, tmp_path: Path, serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: Any) -> bytes:
        raise KeyboardInterrupt

    answer = Response(small_archive.packed.read_bytes())
    monkeypatch.setattr(answer, "read1", interrupt)
    serve({small_archive.published.url: answer})
    with pytest.raises(KeyboardInterrupt):
        task.prepare(tmp_path / "root", "quick")
    assert files_below(tmp_path / "root") == []


def test_parts_that_no_process_writes_to_any_more_are_removed(tmp_path: Path, serve: Any) -> None:
    serve({})
    old, new = tmp_path / f".a.tar.gz.{'0' * 16}.part", tmp_path / f".a.tar.gz.{'1' * 16}.part"
    for path in (old, new):
        path.write_bytes(b"part")
    os.utime(old, (0, 0))
    with pytest.raises(download.DownloadFailed):
        download.fetch(("http://one/a.tar.gz",), "0" * 32, tmp_path / "a.tar.gz")
    assert files_below(tmp_path) == [new.name]
