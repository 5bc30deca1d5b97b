"""Tests of the check that quoted ratios agree with the measured ones."""

from __future__ import annotations

import json
import sys

import pytest

from benchmarks.evidence import quoted_ratios

MEASURED = {
    "pairs": 30,
    "ratios": {
        "eager: sdgp / dense": {"least": 1.0, "median": 1.0516, "low": 1.04, "high": 1.0604},
        "compile: sdgp / dense": {"least": 1.0, "median": 1.5, "low": 1.25, "high": 1.75},
    },
}
STALE = "of 40 interleaved\npairs: `sdgp / dense` 1.048 [1.043,\n1.053], `compile: sdgp / dense`\n1.48 [1.2, 1.7]."
RIGHT = "of 30 interleaved\npairs: `sdgp / dense` 1.052 [1.040,\n1.060], `compile: sdgp / dense`\n1.500 [1.250, 1.750]."


def test_every_quoted_ratio_becomes_the_measured_one_and_nothing_else_changes():
    assert quoted_ratios.corrected(STALE, MEASURED) == RIGHT
    assert quoted_ratios.corrected(RIGHT, MEASURED) == RIGHT


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a step takes 1.05 [1.04, 1.06] times", r"1\.05 \[1\.04, 1\.06\] is quoted without the name"),
        ("`sdpg / dense` 1.052 [1.040, 1.060]", "'sdpg / dense' is quoted and was not measured; known: sdgp / dense"),
    ],
)
def test_a_ratio_without_a_measured_name_is_refused(text, expected):
    with pytest.raises(ValueError, match=expected):
        quoted_ratios.corrected(text, MEASURED)


@pytest.mark.parametrize("name", quoted_ratios.TEXTS)
def test_each_text_quotes_a_ratio(name):
    assert quoted_ratios.QUOTED.search((quoted_ratios.ROOT / name).read_text(encoding="utf-8"))


@pytest.fixture
def program(tmp_path, monkeypatch):
    """Function that runs the program on a text and a file in `tmp_path`."""
    (tmp_path / "bench_step.json").write_text(json.dumps(MEASURED))
    (tmp_path / "text.md").write_text(STALE)
    monkeypatch.setattr(quoted_ratios, "ROOT", tmp_path)
    monkeypatch.setattr(quoted_ratios, "TEXTS", ("text.md",))

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["quoted_ratios.py", *arguments, str(tmp_path / "bench_step.json")])
        return quoted_ratios.main()

    return run


def test_stale_texts_are_named_and_corrected_only_on_request(program, tmp_path, capsys):
    assert program() == 1
    assert capsys.readouterr().out == "text.md: quotes other numbers; correct it with --write\n"
    assert (tmp_path / "text.md").read_text() == STALE
    assert program("--write") == 0
    assert (tmp_path / "text.md").read_text() == RIGHT
    assert program() == 0


@pytest.mark.parametrize(
    ("content", "expected"), [("{", "Expecting property name"), ("[]", "was not written by bench_step.py")]
)
def test_a_file_that_is_another_is_one_line(program, tmp_path, capsys, content, expected):
    (tmp_path / "bench_step.json").write_text(content)
    with pytest.raises(SystemExit, match="2"):
        program()
    assert expected in capsys.readouterr().err.splitlines()[-1]


def test_cells_of_a_table_of_results_are_not_quotes_of_a_benchmark():
    row = "| `sdgp[mode=rescaled]` | 86.7 ± 0.3 | 1.05 [0.90, 1.22] |"
    assert quoted_ratios.corrected(row, MEASURED) == row
