"""A folder of finished trials, which all tests that read one share."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import filelock
import pytest

ROOT = Path(__file__).resolve().parents[2]
OPTIONS = (
    *("--methods", "dense,sdgp,prunetrain,clicktrain", "--task", "digits", "--preset", "smoke", "--seeds", "2"),
    *("--model", "resnet9[width=0.0625]", "--epochs", "2", "--device", "cpu", "--dtype", "float32"),
)
"""Command line of the folder, without `--out`."""


@pytest.fixture(scope="session")
def finished(tmp_path_factory) -> Path:
    """Return a folder with eight trials and their report. Tests only read it; `finished_copy` can be changed."""
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent  # the same for all workers
    out = shared / "finished"
    with filelock.FileLock(shared / "finished.lock"):
        if not (out / "report.html").exists():
            command = [sys.executable, str(ROOT / "run_suite.py"), *OPTIONS, "--out", str(out)]
            subprocess.run(command, check=True, capture_output=True, cwd=ROOT)
    return out


@pytest.fixture
def finished_copy(finished: Path, tmp_path: Path) -> Path:
    """Return a copy of `finished` that a test may change."""
    return Path(shutil.copytree(finished, tmp_path / "finished"))
