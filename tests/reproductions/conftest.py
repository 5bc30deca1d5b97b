"""Fixtures that the tests of reproductions share with those of reports."""

from report_fixtures import drawn, suite

__all__ = ["drawn", "suite"]
