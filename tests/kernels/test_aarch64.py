"""The kernels of aarch64 agree with their definition, compiled by a cross compiler and run by an emulator.

`apt-get install g++-aarch64-linux-gnu qemu-user` provides both on Debian.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from instruction_sets import KERNELS
from remote_library import RemoteLibrary

from kernels.cpu.build import BASE_FLAGS, INCLUDE_FOLDERS, SOURCES

COMPILER, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64"
MISSING = [program for program in (COMPILER, EMULATOR) if shutil.which(program) is None]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(MISSING), reason=f"aarch64: there is no {' and no '.join(MISSING)}"),
]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RemoteLibrary]:
    """All kernels in one program for aarch64; -O1, because the emulator takes less time than the compiler."""
    program = tmp_path_factory.mktemp("aarch64") / "call_kernels"
    flags = [*(flag for flag in BASE_FLAGS if flag not in ("-shared", "-O3")), "-O1", "-fopenmp", "-static"]
    sources = [Path(__file__).with_name("call_kernels.cpp"), *(SOURCES / f"{name}.cpp" for name in KERNELS)]
    includes = [f"-I{folder}" for folder in INCLUDE_FOLDERS]
    subprocess.run([COMPILER, *flags, *includes, *map(str, sources), "-o", str(program)], check=True)
    library = RemoteLibrary([EMULATOR, str(program)])
    yield library
    library.close()


@pytest.mark.parametrize("name", KERNELS)
def test_kernels_agree_with_their_definition(library, name):
    assert library.pdt_vector_bits() == 128
    bind, proof = KERNELS[name]
    assert proof(bind(library)) == ""
