"""The tests run with other versions of torch: which one is installed, and what runs in CI."""

import re
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest

from tools import test_with_torch as tool

ROOT = Path(__file__).parents[1]


@pytest.fixture
def commands(monkeypatch):
    """Collect the commands that the tool runs, in place of running them."""
    found = []

    def run(command, **options):
        found.append([str(part) for part in command])
        return SimpleNamespace(returncode=int("torch==9.9.*" in command))

    monkeypatch.setattr(tool.subprocess, "run", run)
    monkeypatch.setattr(tool.venv, "create", lambda folder, **options: (folder / "pyvenv.cfg").touch(exist_ok=False))
    return found


def test_the_oldest_version_is_that_of_the_package():
    needed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    (oldest,) = [one for one in needed if re.match(r"torch\b", one)]
    assert tool.requirement("oldest") == oldest.replace(">=", "==") + ".*"


def test_torch_and_its_torchvision_are_installed_before_the_tests_run(commands):
    assert tool.main(["2.14.1", "-n", "0", "tests/cost"]) == 0
    install, _, tests = commands
    assert install[1:] == ["-m", "pip", "install", "--quiet", "torch==2.14.1", "torchvision", "-e", ".[test]"]
    assert tests[1:] == ["-m", "pytest", "-n", "0", "tests/cost"]
    assert install[0] == tests[0]
    assert tests[0] != sys.executable


def test_an_environment_is_kept_where_it_is_asked_for(commands, tmp_path):
    for _ in range(2):  # it is made once
        assert tool.main(["--keep", str(tmp_path), "newest"]) == 0
    assert commands[0][4:] == ["--quiet", "torch", "torchvision", "-e", ".[test]"]
    assert all(Path(command[0]).is_relative_to(tmp_path) for command in commands)


def test_what_cannot_be_installed_ends_in_one_line(commands, capsys):
    assert tool.main(["9.9"]) == 2
    assert capsys.readouterr().err == "test_with_torch: torch==9.9.* cannot be installed\n"
    assert len(commands) == 1
    with pytest.raises(SystemExit, match="2"):
        tool.main(["2.x"])
    assert "'2.x' is not a version" in capsys.readouterr().err


def test_help_installs_nothing(commands, capsys):
    assert tool.main(["oldest", "--help"]) == 0
    assert "VERSION" in capsys.readouterr().out
    assert not commands
