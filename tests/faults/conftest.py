"""Fixtures of the fault tests: an undisturbed suite for comparison, and the counts that the harness prints."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest
import suites
from forked import Operations

HEADS = {
    "kills": "kills",
    "operations": "different writes among them",
    "lost": "finished work lost",
    "orphaned": "processes or files orphaned",
    "doubled": "rows, epochs or commands doubled",
    "edits": "damaged files",
    "refused": "refused in one line or ended with a status",
    "repaired": "run again or harmless",
    "accepted": "damaged folders accepted as done",
    "disks": "full disks",
    "models": "damaged or foreign models",
    "tracebacks": "tracebacks",
}


@dataclass
class Base:
    """A finished folder, its content, and the number of writes that created it."""

    out: Path
    whole: dict
    operations: int


@pytest.fixture(scope="session")
def base(tmp_path_factory):
    folder = tmp_path_factory.mktemp("faults")
    suites.warm_up(folder)
    operations = Operations(folder / "out")
    ended = suites.run(folder / "out", folder / "run", operations=operations)
    assert (ended.status, ended.orphans) == (0, 0), ended.output
    return Base(folder / "out", suites.whole(folder / "out"), ended.operations)


@pytest.fixture
def tally(record_property):
    """Counter of events, whose sums over all tests are printed at the end."""
    found = Counter()
    yield found
    for name, count in found.items():
        record_property(f"faults.{name}", count)


def pytest_terminal_summary(terminalreporter):
    found = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if getattr(report, "when", "") in ("call", "teardown"):
                for name, count in report.user_properties if report.when == "teardown" else ():
                    if name.startswith("faults."):
                        found[name.removeprefix("faults.")] += count
    if found:
        terminalreporter.section("faults")
        for name, head in HEADS.items():
            if name in found or name in ("lost", "orphaned", "doubled", "accepted", "tracebacks"):
                terminalreporter.write_line(f"{found[name]:6d}  {head}")
