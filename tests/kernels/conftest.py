"""Fixtures of the kernel tests: the compiled kernel, and Python code in a separate process."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import filelock
import forks
import pytest
import torch
from unchanged import digest, skip_unchanged

import kernels
from kernels import cache
from kernels.cpu.build import BuildError, find_compiler
from kernels.cuda import library
from kernels.prune import reference

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
# Files whose tests compile sources or emulate devices, which takes minutes: they run if kernels or tests have changed.
DEAR = frozenset(
    (
        *("test_cuda_compiled.py", "test_cuda_emulated.py", "test_cuda_launch.py"),
        *("test_cuda_sparse_conv.py", "test_instruction_sets.py", "test_kernel_build.py"),
    )
)


def pytest_configure(config: pytest.Config) -> None:
    """Skip the tests of `DEAR` that passed with the same kernels."""
    skip_unchanged(config, HERE, DEAR, digest((REPOSITORY / "kernels", HERE)))


@pytest.fixture(scope="session")
def compiled() -> None:
    """Skip if there is no compiler, or the kernel is turned off; fail if the kernel does not compile.

    Test processes that run in parallel compile it once.
    """
    cache.make_folder(cache.folder())
    with filelock.FileLock(cache.folder() / "tests.lock"):
        backend = kernels.backend_of(torch.zeros(1, 2))
    if backend == "cpu":
        return
    try:
        find_compiler()
    except BuildError:
        pytest.skip(kernels.backend_report())
    (pytest.skip if os.environ.get("PDT_CPU_KERNEL") == "0" else pytest.fail)(kernels.backend_report())


@pytest.fixture
def start_python() -> Callable[..., subprocess.Popen[str]]:
    """Start Python code in a process whose environment has the given variables set, or removed where None."""

    def start(code: str, **variables: str | None) -> subprocess.Popen[str]:
        changed = {**os.environ, "PYTHONPATH": str(REPOSITORY), **variables}
        return forks.STARTED(
            [sys.executable, "-c", code],
            env={name: value for name, value in changed.items() if value is not None},
            cwd=REPOSITORY,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return start


@pytest.fixture
def cuda_kernels() -> None:
    """Skip if CuPy is not installed or turned off; fail if CuPy cannot compile."""
    if not library.load().available:
        installed = importlib.util.find_spec("cupy") is not None and os.environ.get("PDT_CUDA_KERNEL") != "0"
        (pytest.fail if installed else pytest.skip)(library.load().description)


@pytest.fixture(params=["kernels", "reference"])
def prune(request: pytest.FixtureRequest) -> Callable[..., torch.Tensor]:
    """The public function (the compiled kernel if it is available) and the reference."""
    return kernels.prune_nm if request.param == "kernels" else reference.prune_nm
