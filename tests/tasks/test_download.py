"""Fetching the archive: from the first host that gives it, whole, or not at all."""

from __future__ import annotations

import io
import os
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from suite.errors import MissingData, UsageError
from tasks.cifar10 import CIFAR10, MIRRORS
from tasks.sources import download


class Response(io.BytesIO):
    """What `urlopen` returns."""

    def __init__(self, content: bytes, pause: float = 0.0, break_after: int | None = None, piece: int = 1024) -> None:
        super().__init__(content)
        self.headers = {"Content-Length": str(len(content))}
        self._pause, self._break_after, self._piece = pause, break_after, piece

    def read1(self, size: int | None = -1) -> bytes:
        time.sleep(self._pause)
        if self._break_after is not None and self.tell() >= self._break_after:
            raise ConnectionResetError(104, "Connection reset by peer")
        return super().read1(min(size or 1, self._piece))


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


def test_a_root_that_cannot_be_made_is_missing_data_too(task: CIFAR10, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(MissingData, match="--preset smoke"):
        task.prepare(tmp_path / "file" / "root", "quick")


def test_smoke_never_asks_the_network_and_writes_nothing(task: CIFAR10, tmp_path: Path, serve: Any) -> None:
    asked = serve({})
    assert task.prepare(tmp_path / "root", "smoke").kind == "sample"
    assert asked == []
    assert files_below(tmp_path) == []


def test_the_archive_is_fetched_from_its_authors_and_kept(
    task: CIFAR10, small_archive: Any, tmp_path: Path, serve: Any
) -> None:
    url, root = small_archive.published.url, tmp_path / "root"
    asked = serve({url: Response(small_archive.packed.read_bytes())})
    copy = task.prepare(root, "quick")
    assert copy.kind == "original"
    assert asked == [url]
    assert task.prepare(root, "quick") == copy
    assert asked == [url]
    assert files_below(root) == [f".pdt-cache/{Path(copy.path).name}", "cifar-10-python.tar.gz"]


def test_a_mirror_is_taken_when_the_authors_do_not_answer(
    task: CIFAR10, small_archive: Any, tmp_path: Path, serve: Any
) -> None:
    asked = serve({MIRRORS[0]: Response(small_archive.packed.read_bytes())})
    assert task.prepare(tmp_path / "root", "quick").kind == "original"
    assert asked == [small_archive.published.url, MIRRORS[0]]


def test_another_file_is_refused_and_the_next_host_asked(
    task: CIFAR10, small_archive: Any, tmp_path: Path, serve: Any
) -> None:
    content = small_archive.packed.read_bytes()
    serve({small_archive.published.url: Response(b"<html>moved</html>"), MIRRORS[0]: Response(content)})
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


def test_a_host_that_never_answers_is_given_up(tmp_path: Path, serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "CONNECT_SECONDS", 0.05)
    serve({"https://silent.invalid/x": lambda: time.sleep(0.5)})
    with pytest.raises(download.DownloadFailed, match=r"silent\.invalid: no answer within 0\.05 s"):
        download.fetch(("https://silent.invalid/x",), "0", tmp_path / "x")


def test_a_slow_host_is_left_for_a_faster_one_and_taken_if_there_is_none(
    small_archive: Any, tmp_path: Path, serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "JUDGED_AFTER_SECONDS", 0.0)
    monkeypatch.setattr(download, "SLOW_BYTES_PER_SECOND", 1_000_000)
    content, md5 = small_archive.packed.read_bytes(), small_archive.published.md5
    slow, fast = "https://slow.invalid/x", "https://fast.invalid/x"
    # 8 kB each 20 ms, and all at once.
    answers = {slow: lambda: Response(content, 0.02, piece=8192), fast: lambda: Response(content, piece=1 << 20)}
    asked = serve(answers)
    download.fetch((slow, fast), md5, tmp_path / "x")
    assert asked == [slow, fast]

    asked = serve({slow: answers[slow]})
    download.fetch((slow, fast), md5, tmp_path / "y")
    assert asked == [slow, fast, slow]
    assert (tmp_path / "y").read_bytes() == content


def test_parts_that_no_process_writes_to_any_more_are_removed(tmp_path: Path, serve: Any) -> None:
    serve({})
    old, new = tmp_path / f".a.tar.gz.{'0' * 16}.part", tmp_path / f".a.tar.gz.{'1' * 16}.part"
    for path in (old, new):
        path.write_bytes(b"part")
    os.utime(old, (0, 0))
    with pytest.raises(download.DownloadFailed):
        download.fetch(("http://one/a.tar.gz",), "0" * 32, tmp_path / "a.tar.gz")
    assert files_below(tmp_path) == [new.name]


def test_a_torchvision_that_does_not_fit_torch_is_named(
    task: CIFAR10, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torchvision.datasets", None)
    with pytest.raises(UsageError, match=r"torchvision cannot be loaded .* the release for torch"):
        task.prepare(tmp_path / "root", "quick")
