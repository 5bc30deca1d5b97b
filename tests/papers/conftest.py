"""Fixtures of the tests of reproductions: made-up results, and `reproduce` with its trials in this process."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest
from invented_numbers import NUMBERS, by_label
from report_fixtures import drawn, suite
from trials_here import run_here

import reports
from reports.data.records import read
from reports.papers import paper, timed_calls
from suite.cli import main as cli
from suite.engine.cost import clock
from suite.measure.calls import SubprocessResult
from suite.trials.engines.local import LocalEngine

__all__ = ["drawn", "reproduce", "suite"]


def call_here(function, arguments, device, plugins=(), threads=None):
    """Call a function that measures in this process, with arguments and a result that went through JSON."""
    module, _, name = function.partition(":")
    given = json.loads(json.dumps(arguments))
    found = getattr(importlib.import_module(module), name)(**given)
    return SubprocessResult(json.loads(json.dumps(found)), "this process", 0.0)


@pytest.fixture(scope="session")
def reproduce():
    """Function that runs the verb `reproduce` and what it times in this process, without the report of the suite.

    The setup of each method runs in its trial, so that it is not rehearsed; the speed of inference is that of a single
    pass, and what is timed apart is timed a few times.
    """

    def run(folder: Path, *arguments: str, status: int = 0, engine=run_here) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(LocalEngine, "run", engine)
            patch.setattr(reports, "write_report", lambda folder, **more: [])
            patch.setattr("suite.cli.preparation.rehearse_new", lambda trials, folder: None)
            for name in ("FEWEST_PASSES", "MOST_PASSES"):
                patch.setattr(clock, name, 1)
            patch.setattr(timed_calls, "PASSES", 3)
            patch.setattr("reports.papers.timed.call_in_subprocess", call_here)
            assert cli.main(["reproduce", *arguments, "--out", str(folder)]) == status

    return run


@pytest.fixture
def numbers(tmp_path_factory):
    path = tmp_path_factory.mktemp("numbers") / "numbers.toml"
    path.write_text(NUMBERS, encoding="utf-8")
    return paper.read(path)


@pytest.fixture
def trials(suite):
    suite.add_all(("dense", "sdgp"))
    return by_label(read(suite.write()))
