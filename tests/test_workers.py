"""A run of all tests gets one worker per core; workers read `conftest.py` too and start none."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("xdist")

SETTINGS = """
[tool.pytest.ini_options]
testpaths = ["tests"]
addopts = "-m 'not slow and not long'"
markers = ["slow: takes minutes", "long: takes longer"]
"""

TORCH = """
class cuda:
    def is_available():
        return True  # so that the file has no autograd to start

def set_num_threads(count):
    pass

def set_flush_denormal(mode):
    pass
"""

WITHOUT = ("cacheprovider", "xdist", "debugging", "capture", "timeout")  # the plugins whose options are asked for


@pytest.mark.parametrize(
    ("arguments", "workers"),
    [
        ((), True),
        (("-k", "one"), False),
        (tuple(f"-pno:{name}" for name in WITHOUT), False),
    ],
)
def test_only_a_run_of_all_tests_gets_workers(tmp_path, arguments, workers):
    (tmp_path / "pyproject.toml").write_text(SETTINGS)
    tests = tmp_path / "tests"
    tests.mkdir()
    shutil.copy(Path(__file__).with_name("conftest.py"), tests)
    # Stand-ins for the slow imports of that file; what it does with workers needs neither.
    (tmp_path / "torch.py").write_text(TORCH)
    (tmp_path / "forks.py").write_text("def install(): pass")
    for name in ("finished_folder", "toy_fixtures"):
        (tmp_path / f"{name}.py").touch()
    backends = tmp_path / "methods" / "backends"
    backends.mkdir(parents=True)
    for package in (backends.parent, backends):
        (package / "__init__.py").touch()
    (backends / "autotune.py").write_text("FEWEST_ROUNDS = MOST_ROUNDS = SHORTEST_SAMPLE_S = 1")
    for name in ("one", "other"):
        (tests / f"test_{name}.py").write_text(
            "import os\n\ndef test_one():\n    open(f'{os.getpid()}', 'w').close()\n"
        )
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *arguments],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout
    found = re.search(r"created: (\d+)/\1 workers", done.stdout)
    if workers and len(os.sched_getaffinity(0)) > 1:
        assert found
        assert int(found[1]) == min(8, len(os.sched_getaffinity(0)))
    else:
        assert not found


def test_files_that_workers_begin_with_exist(request):
    folder = Path(__file__).parent
    (conftest,) = (
        plugin
        for plugin in request.config.pluginmanager.get_plugins()
        if getattr(plugin, "__file__", None) == str(folder / "conftest.py")
    )
    assert len(set(conftest.FIRST)) == len(conftest.FIRST)
    assert set(conftest.FIRST) <= {path.name for path in folder.rglob("test_*.py")}
