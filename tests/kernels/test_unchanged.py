"""Tests that passed with the same kernels are skipped; those that failed, or did not run, are not."""

from __future__ import annotations

from unchanged import digest

pytest_plugins = ["pytester"]

CONFTEST = """
import pathlib
from unchanged import skip_unchanged

def pytest_configure(config):
    folder = pathlib.Path(__file__).parent
    digest = (folder / "digest").read_text()
    skip_unchanged(config, folder / "kernels", frozenset(["test_dear.py"]), digest)
"""
DEAR = """
import os
import pytest

def test_passes():
    pass

def test_another():
    pass

@pytest.fixture
def fails_at_its_end():
    yield
    assert os.environ.get("CORRECT")

def test_fails(fails_at_its_end):
    pass
"""


def test_what_passed_is_skipped_until_something_changes_or_it_is_named(pytester, monkeypatch):
    pytester.makeconftest(CONFTEST)
    pytester.makefile("", digest="first")
    pytester.mkdir("kernels")
    for name in ("test_dear.py", "test_cheap.py"):
        (pytester.path / "kernels" / name).write_text(DEAR if name == "test_dear.py" else "def test_cheap(): pass")

    def outcomes(*arguments):
        found = pytester.runpytest_inprocess(*arguments).parseoutcomes()
        return tuple(found.get(name, 0) for name in ("passed", "skipped", "errors", "deselected"))

    assert outcomes("-k", "passes or fails") == (2, 0, 1, 2)
    assert outcomes() == (3, 1, 1, 0)
    monkeypatch.setenv("CORRECT", "yes")
    assert outcomes() == (2, 2, 0, 0)
    assert outcomes() == (1, 3, 0, 0)
    assert outcomes("kernels/test_dear.py") == (3, 0, 0, 0)
    assert outcomes("kernels/test_dear.py::test_passes") == (1, 0, 0, 0)
    assert outcomes("-p", "no:cacheprovider") == (4, 0, 0, 0)
    pytester.makefile("", digest="second")
    assert outcomes() == (4, 0, 0, 0)
    assert outcomes() == (1, 3, 0, 0)


def test_every_change_of_a_file_or_a_setting_makes_another_digest(tmp_path, monkeypatch):
    (tmp_path / "a.h").write_text("1")
    found = [digest([tmp_path])]
    assert digest([tmp_path]) == found[0]
    (tmp_path / "a.h").write_text("2")
    found.append(digest([tmp_path]))
    (tmp_path / "a.h").rename(tmp_path / "b.h")
    found.append(digest([tmp_path]))
    monkeypatch.setenv("PDT_CPU_ARCH", "x86-64-v2")
    found.append(digest([tmp_path]))
    assert len(set(found)) == 4
