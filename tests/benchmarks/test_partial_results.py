"""Tests of results that are saved one by one, and of the archive that they are packed into."""

from __future__ import annotations

import fcntl
import json
import random
import tarfile
import threading

import pytest

from benchmarks.evidence.pack import LEFT_OUT, LIMIT_BYTES, pack
from benchmarks.partial_results import OtherRunError, PartialResults, kept

FACTS = {"torch": "2.11", "pairs": 30}


def test_every_number_is_saved_at_once(tmp_path):
    path = tmp_path / "x.json"
    found = kept(path, FACTS, "ratios")
    assert not path.exists()
    found["a"] = {"median": 1.5}
    assert json.loads(path.read_text()) == {**FACTS, "ratios": {"a": {"median": 1.5}}}
    inner = found.part("layers").part("float32")
    inner["b"] = 2
    assert json.loads(path.read_text())["ratios"] == {"a": {"median": 1.5}, "layers": {"float32": {"b": 2}}}

    again = kept(path, FACTS, "ratios")
    assert again == found
    again.part("layers").part("float32")["c"] = 3
    assert json.loads(path.read_text())["ratios"]["layers"] == {"float32": {"b": 2, "c": 3}}
    assert [one.name for one in tmp_path.iterdir()] == ["x.json"]


def test_numbers_of_another_run_are_refused_and_stay(tmp_path):
    path = tmp_path / "x.json"
    kept(path, FACTS, "ratios")["a"] = 1
    with pytest.raises(OtherRunError, match=r"x.json holds numbers of another run \(torch: '2.11', now '2.12'\); name"):
        kept(path, {**FACTS, "torch": "2.12"}, "ratios")
    with pytest.raises(OtherRunError, match="it has no 'found'"):
        kept(path, FACTS, "found")
    for damaged in ("{", "[]", '{"ratios": 3}'):
        path.write_text(damaged)
        with pytest.raises(OtherRunError, match="cannot be continued"):
            kept(path, FACTS, "ratios")
        assert path.read_text() == damaged


def test_without_a_file_numbers_are_in_memory_alone():
    found = kept(None, FACTS, "ratios")
    assert isinstance(found, PartialResults)
    found.part("layers")["a"] = 1
    assert found == {"layers": {"a": 1}}


def names(archive):
    with tarfile.open(archive) as tar:
        return sorted(tar.getnames())


def test_a_number_is_packed_with_all_that_is_in_the_folder(tmp_path, monkeypatch):
    results, archive = tmp_path / "gpu-1", tmp_path / "out" / "on_gpu.tar.gz"
    (results / "smoke").mkdir(parents=True)
    for name in ("model.pt", ".lock", ".trial.json.part"):
        (results / "smoke" / name).write_bytes(b"x")
    (results / "smoke" / "trial.json").write_text("{}")
    monkeypatch.setenv("PDT_RESULTS", str(results))
    monkeypatch.setenv("PDT_ARCHIVE", str(archive))
    kept(results / "x.json", FACTS, "ratios")["a"] = 1
    assert names(archive) == ["gpu-1/smoke/trial.json", "gpu-1/x.json"]
    assert [one.name for one in archive.parent.iterdir()] == ["on_gpu.tar.gz"]


def test_one_packs_at_a_time(tmp_path):
    """Otherwise a process that started earlier could replace a later archive."""
    results, archive = tmp_path / "gpu-1", tmp_path / "on_gpu.tar.gz"
    results.mkdir()
    (results / "a").write_text("1")
    with (tmp_path / ".gpu-1.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        second = threading.Thread(target=pack, args=(results, archive))
        second.start()
        second.join(0.2)
        assert not archive.exists()
        (results / "b").write_text("2")
    second.join()
    assert names(archive) == ["gpu-1/a", "gpu-1/b"]


def test_the_largest_files_are_left_out_of_an_archive_that_would_be_too_large(tmp_path):
    results, archive = tmp_path / "gpu-1", tmp_path / "on_gpu.tar.gz"
    results.mkdir()
    noise = random.Random(0)
    for name, size in (("a", 30_000), ("b", 50_000), ("c", 2_000)):
        (results / name).write_bytes(noise.randbytes(size))
    assert pack(results, archive, 40_000) == ["b"]
    assert names(archive) == ["gpu-1/LEFT_OUT.txt", "gpu-1/a", "gpu-1/c"]
    assert pack(results, archive, 1) == ["a", "b", "c"]
    with tarfile.open(archive) as tar:
        assert tar.extractfile(f"gpu-1/{LEFT_OUT}").read() == b"a\nb\nc\n"
    assert LIMIT_BYTES < 16 * 2**20
