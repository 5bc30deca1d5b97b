"""Sentences of reports: each macro is said somewhere, and says one line."""

from __future__ import annotations

from pathlib import Path

import jinja2
import pytest

from reports.sentences import listed, say

ROOT = Path(__file__).parents[2]
TEMPLATES = sorted((ROOT / "reports" / "sentences").glob("*.j2"))


def test_a_finding_that_is_missing_is_an_error() -> None:
    with pytest.raises(jinja2.UndefinedError):
        say("verdict.no_verdict")
    with pytest.raises(TypeError):
        say("verdict.no_verdict", reason="x", other=1)


def test_names_are_listed() -> None:
    assert [listed(["a"]), listed(["a", "b"]), listed(["a", "b", "c"])] == ["a", "a and b", "a, b and c"]


def test_one_and_several_have_their_number() -> None:
    assert "`a` needs 6 seeds, `b` needs 9 seeds (" in say("verdict.more_seeds", needed={"a": 6, "b": 9})


def test_a_shorter_dense_training_that_is_as_good_is_named() -> None:
    said = say("verdict.fastest", cost="flops", margin=0.5, best="", shortest=0.91, share="", ways=True, unknown=False)
    assert said.endswith(": none is shown to be cheaper than dense; dense as good takes 0.91 of dense's FLOPs.")
