"""Fixtures of the tests of reproductions: made-up results, and `reproduce` with its trials in this process."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest
from invented_numbers import NUMBERS, by_label
from report_fixtures import drawn, suite

import reports
from reports.data.records import read
from reproductions import published
from suite import files
from suite.command import cli
from suite.runs import trial
from suite.runs.engines.local import LocalEngine
from suite.runs.folder.records import RUNNING, read_record, write_record

__all__ = ["drawn", "reproduce", "suite"]


def run_here(engine, trials, progress):
    """Run trials one after the other in this process, which has imported torch already."""
    for spec, folder in trials:
        began = time.monotonic()
        progress.started(spec)
        files.make_folder(folder)
        write_record(folder, spec, RUNNING)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "argv", ["trial", str(folder)])
            trial.main()
        progress.ended(spec, read_record(folder), time.monotonic() - began)


@pytest.fixture(scope="session")
def reproduce():
    """Function that runs the verb `reproduce` in this process, without the report of the suite."""

    def run(folder: Path, *arguments: str, status: int = 0, engine=run_here) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(LocalEngine, "run", engine)
            patch.setattr(reports, "write_report", lambda folder: [])
            assert cli.main(["reproduce", *arguments, "--out", str(folder)]) == status

    return run


@pytest.fixture
def numbers(tmp_path_factory):
    path = tmp_path_factory.mktemp("numbers") / "numbers.toml"
    path.write_text(NUMBERS, encoding="utf-8")
    return published.read(path)


@pytest.fixture
def trials(suite):
    suite.add_all(("dense", "sdgp"))
    return by_label(read(suite.write()))
