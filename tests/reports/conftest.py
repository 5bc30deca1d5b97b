"""Fixtures of the tests of reports; `tests/support/report_fixtures.py` defines them."""

from report_fixtures import drawn, full_folder, made, suite, suites, without_figures

__all__ = ["drawn", "full_folder", "made", "suite", "suites", "without_figures"]
