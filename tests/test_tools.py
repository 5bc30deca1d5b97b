"""The tools: tests with other versions of torch, and mutations that the tests are to notice."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest

from tools import mutations
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
    assert tool.main(["2.14.1", "-n", "0", "tests/engine/cost"]) == 0
    install, _, tests = commands
    assert install[1:] == ["-m", "pip", "install", "--quiet", "torch==2.14.1", "torchvision", "-e", ".[test]"]
    assert tests[1:] == ["-m", "pytest", "-n", "0", "tests/engine/cost"]
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


SUMS = """
def add(values):
    count = 0
    for value in values:
        count += value
    return count


class Limit:
    def over(self, value):
        return value > 3
"""
LEFT_ALONE = """
LIMIT = 3 + 4


def f(n: Literal[1] = 2) -> Literal[3]:
    '''Return 1 < 2.'''
    width: Literal[5]
    log.info("%d", n + 1)
    print(n == 1)
    assert n > 0, "n < 1 and not True"
    if TYPE_CHECKING:
        import this as n
    if n is False:
        raise ValueError(f"{n + 1} > {1 + 1}" + str(n * 2))
    return "a" + n


class A:
    size = 1

    def __repr__(self):
        return 1 + 2
"""


@pytest.fixture
def small_tree(tmp_path, monkeypatch):
    """A tree of a module and its test, which tests one of two functions, and imports it from a helper."""
    root = tmp_path / "tree"
    files = {
        "package/sums.py": SUMS,
        "tests/support/adding.py": "from package.sums import add",
        "tests/test_sums.py": "from adding import add\n\ndef test_add():\n    assert add([1, 2]) == 3",
        "pytest.ini": "[pytest]\npythonpath = tests/support",
    }
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    for command in (["init", "--quiet"], ["add", "."]):
        subprocess.run(["git", *command], cwd=root, check=True)
    monkeypatch.setattr(mutations, "ROOT", root)
    monkeypatch.setattr(mutations, "SUBJECTS", {"sums": ["package/**/*.py"]})
    monkeypatch.setenv("PDT_CACHE", str(tmp_path / "no kernels"))
    return root


def test_a_mutation_is_noticed_if_a_test_of_its_module_fails(small_tree, tmp_path, capsys):
    known = (
        ("add", "statement", "count += value"),
        ("Limit.over", "comparison", "return value > 3"),
        ("add", "statement", "count += values"),
    )
    listed = tmp_path / "list.json"
    listed.write_text(json.dumps([mutations.Mutation("sums", *one)._asdict() for one in known]))
    assert mutations.main(["--list", str(listed)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "noticed by tests/test_sums.py::test_add  package/sums.py:5  sums  add  statement:  count += value  ->  pass",
        "not noticed  package/sums.py:11  sums  Limit.over  comparison:  return value > 3  ->  return value >= 3",
        "gone  -  sums  add  statement:  count += values",
        "sums: 1 noticed, 1 not noticed, 1 gone, 0 not tried",
    ]
    assert (small_tree / "package" / "sums.py").read_text() == SUMS


def test_a_saved_list_is_found_again_where_the_file_moved(small_tree, tmp_path, capsys):
    listed = tmp_path / "list.json"
    assert mutations.main(["--first", "0", "--save", str(listed)]) == 0
    (small_tree / "package" / "deep").mkdir()
    (small_tree / "package" / "sums.py").rename(small_tree / "package" / "deep" / "moved.py")
    assert mutations.main(["--list", str(listed), "--minutes", "0"]) == 0
    *lines, summary = capsys.readouterr().out.splitlines()
    assert all(line.startswith("not tried, for no time is left  package/deep/moved.py:") for line in lines)
    assert summary == "sums: 0 noticed, 0 not noticed, 0 gone, 4 not tried"


def test_messages_annotations_and_what_is_outside_of_functions_stay(small_tree):
    (small_tree / "package" / "sums.py").write_text(LEFT_ALONE)
    assert [*mutations.all_mutations(small_tree)] == [
        ("sums", "f", "comparison", "if n is False:"),
        ("sums", "f", "flag", "if n is False:"),
    ]


@pytest.mark.parametrize(
    ("line", "changed"),
    [
        ("a < b == c", ["a <= b == c", "a < b != c"]),
        ("a not in (b)", ["a in (b)"]),
        ("a and (b or c)", ["a or (b or c)", "a and (b and c)"]),
        ("not (é is b)", ["(é is b)", "not (é is not b)"]),
        ("a * b - 1e-3", ["a * b + 1e-3", "a / b - 1e-3", "a * b - 1.001"]),
        ("f(True)", ["pass", "f(False)"]),
        ("a += (\n        b\n    )", ["pass"]),
    ],
)
def test_a_mutation_changes_one_node(small_tree, line, changed):
    source = f"def f():\n    {line}  # é\n".encode()
    (small_tree / "package" / "sums.py").write_bytes(source)
    places = [place for several in mutations.all_mutations(small_tree).values() for place in several]
    assert [place.change(source).decode() for place in places] == [f"def f():\n    {one}  # é\n" for one in changed]


def test_mutations_that_cannot_be_run_end_with_status_2(small_tree, monkeypatch, capsys):
    with pytest.raises(SystemExit, match="2"):
        mutations.main(["--list", str(small_tree / "package" / "sums.py")])
    assert "sums.py is not a list of mutations: " in capsys.readouterr().err
    monkeypatch.setattr(mutations, "SUBJECTS", {"sums": ["package/*.py", "moved/*.py"]})
    with pytest.raises(SystemExit, match="2"):
        mutations.main([])
    assert "no file is moved/*.py, which SUBJECTS lists" in capsys.readouterr().err
