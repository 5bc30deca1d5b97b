"""Folders, the registry and suites for the tests of the command line."""

import sys

import pytest
from toy_suite import CHILD, TOY, forget_plugins, good

import reports
from suite.command import cli
from suite.runs.engines import local


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty working folder, which is the home too, with the toy plugin in it."""
    for name in ("PDT_DATA", "PYTHONPATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "toy.py").write_text(TOY)
    return tmp_path


@pytest.fixture
def forget_toys():
    """Takes out of the registry what a test's plugins put there."""
    forget_plugins()
    yield
    forget_plugins()


@pytest.fixture
def suite(folder, monkeypatch, forget_toys):
    """Runs suites of toy trials in this process, with a stand-in for the trial's process and for the report."""
    (folder / "child.py").write_text(CHILD)
    monkeypatch.setattr(local, "trial_command", lambda path: [sys.executable, str(folder / "child.py"), str(path)])

    def write_report(path):
        (path / "report.html").write_text("x")
        return [path / "report.html"]

    monkeypatch.setattr(reports, "write_report", write_report)
    return lambda *arguments: cli.main(good(*arguments))
