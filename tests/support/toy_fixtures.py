"""Fixtures for tests of the command line: folders, the registry and suites."""

import subprocess
import sys

import forks
import pytest
from toy_suite import CHILD, TOY, forget_plugins, good

import reports
from suite.cli import main as cli
from suite.trials.engines import local


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working folder, also used as home, that contains only the toy plugin."""
    for name in ("PDT_DATA", "PYTHONPATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "toy.py").write_text(TOY)
    return tmp_path


@pytest.fixture
def started_programs(monkeypatch):
    """Start the Python programs of a test, which is about what a new process has imported."""
    monkeypatch.setattr(subprocess, "Popen", forks.STARTED)


@pytest.fixture
def forget_toys():
    """Remove from the registry what the plugins of a test registered."""
    forget_plugins()
    yield
    forget_plugins()


@pytest.fixture
def suite(folder, monkeypatch, forget_toys):
    """Function that runs suites of toy trials in this process, without the trial's process and the report."""
    (folder / "child.py").write_text(CHILD)
    monkeypatch.setattr(local, "trial_command", lambda path: [sys.executable, str(folder / "child.py"), str(path)])

    def write_report(path, *options, **more):
        (path / "report.html").write_text("x")
        return reports.Written([path / "report.html"], ())

    monkeypatch.setattr(reports, "write_report", write_report)
    return lambda *arguments: cli.main(good(*arguments))
