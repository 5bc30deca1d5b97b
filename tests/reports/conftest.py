"""Fixtures of the tests of reports; `tests/support/report_fixtures.py` defines most of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from page_parser import Page, parse
from report_fixtures import drawn, full_folder, suite, suites, without_figures

__all__ = ["drawn", "full_folder", "page", "suite", "suites", "without_figures"]


@pytest.fixture(scope="session")
def page(full_folder: Path) -> Page:
    """Return the parsed page of the full folder."""
    return parse(full_folder / "report.html")
