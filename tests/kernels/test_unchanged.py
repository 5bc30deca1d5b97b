"""Tests that passed with the same kernels are skipped, unless their folder is named."""

from __future__ import annotations

from unchanged import digest

pytest_plugins = ["pytester"]

CONFTEST = """
import pathlib
from unchanged import skip_unchanged

def pytest_configure(config):
    folder = pathlib.Path(__file__).parent
    skip_unchanged(config, folder / "kernels", frozenset(["test_dear.py"]), (folder / "digest").read_text())
"""


def test_what_passed_is_skipped_until_something_changes_or_it_is_named(pytester):
    pytester.makeconftest(CONFTEST)
    pytester.mkdir("kernels")
    dear = pytester.path / "kernels" / "test_dear.py"
    dear.write_text("def test_passes(): pass\ndef test_fails(): assert False")

    def outcomes(content, *arguments):
        pytester.makefile("", digest=content)
        found = pytester.runpytest_inprocess(*arguments).parseoutcomes()
        return tuple(found.get(name, 0) for name in ("passed", "skipped", "failed"))

    assert outcomes("first") == (1, 0, 1)
    assert outcomes("first") == (0, 1, 1)
    assert outcomes("first", "kernels") == (1, 0, 1)
    assert outcomes("second") == (1, 0, 1)


def test_every_change_of_a_file_makes_another_digest(tmp_path):
    found = set()
    for content in ("1", "2"):
        (tmp_path / "a.h").write_text(content)
        found.add(digest([tmp_path]))
    assert len(found) == 2
