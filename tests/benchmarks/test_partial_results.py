"""Tests of results that are saved one by one."""

from __future__ import annotations

import json

import pytest

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
