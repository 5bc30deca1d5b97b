"""The kernels compile for aarch64, by a cross compiler: `apt-get install g++-aarch64-linux-gnu` on Debian."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from instruction_sets import KERNELS

from kernels.cpu.build import BASE_FLAGS, INCLUDE_FOLDERS, SOURCES

COMPILER = "aarch64-linux-gnu-g++"


@pytest.mark.slow
@pytest.mark.skipif(shutil.which(COMPILER) is None, reason=f"there is no {COMPILER}")
@pytest.mark.parametrize("name", KERNELS)
def test_kernels_compile_for_aarch64(name):
    includes = [f"-I{folder}" for folder in INCLUDE_FOLDERS]
    subprocess.run([COMPILER, *BASE_FLAGS, *includes, "-fsyntax-only", str(SOURCES / f"{name}.cpp")], check=True)
