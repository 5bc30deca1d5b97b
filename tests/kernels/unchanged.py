"""Skip tests of builds and emulations that passed with the kernels, tests, compiler and torch that there are now."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import pytest
import torch

from kernels.cpu.build import COMPILERS

VARIABLES = ("CXX", "PDT_CPU_ARCH", "PDT_CPU_KERNEL", "PDT_CUDA_KERNEL")
REASON = (
    "kernels are as when this test last passed; `python -m pytest tests/kernels` runs it, and so does `--cache-clear`"
)


def digest(folders: Iterable[Path]) -> str:
    """Return a hash of everything in these folders, and of what compiles and runs it."""
    found = hashlib.sha256(f"{sys.version} {torch.__version__} {torch.backends.cpu.get_cpu_capability()}".encode())
    compilers = [Path(path) for path in map(shutil.which, COMPILERS) if path]
    times = [(str(path), path.stat().st_mtime_ns) for path in compilers]
    found.update(repr([list(map(os.environ.get, VARIABLES)), times]).encode())
    for folder in folders:
        for path in sorted(path for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc"):
            found.update(f"{path.relative_to(folder)} {path.stat().st_size}\n".encode() + path.read_bytes())
    return found.hexdigest()


def skip_unchanged(config: pytest.Config, folder: Path, files: frozenset[str], digest: str) -> None:
    """Skip tests of `files` that passed with the same digest, unless pytest keeps no cache."""
    if hasattr(config, "cache"):
        config.pluginmanager.register(Unchanged(config, folder, files, digest), "unchanged kernels")


class Unchanged:
    """Keeps the tests that passed in pytest's cache, which a fresh clone does not have, and skips them later.

    Args:
        config: The configuration of this session or, with several workers, of this worker.
        folder: Tests run if the command line names this folder or something in it.
        files: Names of the files whose tests may be skipped.
        digest: Hash of what decides whether they pass.
    """

    def __init__(self, config: pytest.Config, folder: Path, files: frozenset[str], digest: str) -> None:
        self._cache, self._files, self._digest = config.cache, files, digest
        named = (config.invocation_params.dir / str(argument).split("::")[0] for argument in config.args)
        self._all_run = any(path.resolve().is_relative_to(folder) for path in named)
        self._passed: dict[str, set[str]] = defaultdict(set)  # by name of the file
        self._failed: set[str] = set()

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Skip what passed. Tests of a device always run: a driver can change."""
        for item in items:
            skippable = item.path.name in self._files and not item.get_closest_marker("gpu")
            if skippable and not self._all_run and item.nodeid in self._earlier(item.path.name):
                item.add_marker(pytest.mark.skip(reason=REASON))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note whether a test passed, its fixtures' ends included."""
        if report.failed:
            self._failed.add(report.nodeid)
        elif report.when == "call" and report.passed:
            self._passed[Path(report.nodeid.split("::")[0]).name].add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        """Store what passed, next to what passed earlier with the same digest."""
        for name in self._files & self._passed.keys():
            passed = sorted((self._earlier(name) | self._passed[name]) - self._failed)
            self._cache.set(f"kernels/{name}", {"digest": self._digest, "passed": passed})

    def _earlier(self, name: str) -> set[str]:
        stored = self._cache.get(f"kernels/{name}", {})
        return set(stored["passed"]) if stored.get("digest") == self._digest else set()
