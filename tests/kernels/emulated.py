"""Execute plans of CUDA kernels on the CPU: the same source, compiled with `cuda_on_cpu.h`."""

from __future__ import annotations

import ctypes
import hashlib
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from kernels import cache
from kernels.cpu.build import BuildError, find_compiler
from kernels.cuda.plan import Launch
from kernels.cuda.source import FOLDERS
from kernels.prune.cuda_plan import SOURCE as PRUNING
from kernels.prune.cuda_plan import Plan, Shape

HERE = Path(__file__).resolve().parent
GUARD = 1024  # floats after a workspace
TYPES = {"int32": ctypes.c_int32, "int64": ctypes.c_int64}


def needs_compiler() -> None:
    """Skip the test if there is no C++ compiler."""
    try:
        find_compiler()
    except BuildError as error:
        pytest.skip(str(error))


def kernels_of(plans: Iterable[Plan]) -> list[str]:
    """Return the kernels that plans launch, each once."""
    return list(dict.fromkeys(launch.kernel for plan in plans for launch in plan.launches))


def build(kernels: Sequence[str], source: str = PRUNING) -> dict[str, ctypes._CFuncPtr]:
    """Compile kernels, given by their names with template arguments, into one library; return a launcher for each.

    The library is kept with the compiled kernels, under a name that contains a hash of everything that determines it.
    """
    lines = ["#include <algorithm>", '#include "cuda_on_cpu.h"', f'#include "{source}"']
    for index, kernel in enumerate(kernels):
        lines.append(
            f'extern "C" void launch_{index}(int blocks, int x, int y, int shared_bytes, void** arguments) '
            f"{{ cuda_on_cpu::launch(&{kernel}, blocks, x, y, shared_bytes, arguments); }}"
        )
    lines.append('extern "C" int beyond() { return cuda_on_cpu::writes_beyond_shared; }')
    text = "\n".join(lines) + "\n"
    compiler = find_compiler()
    command = [*compiler, "-std=c++17", "-O1", "-w", "-fPIC", "-shared", *(f"-I{path}" for path in (HERE, *FOLDERS))]
    digest = hashlib.sha256(f"{text}{command}{Path(compiler[0]).stat().st_mtime_ns}".encode())
    for header in (HERE / "cuda_on_cpu.h", *(path for folder in FOLDERS for path in sorted(folder.iterdir()))):
        digest.update(header.read_bytes())
    path = cache.folder() / "tests" / f"emulated-{digest.hexdigest()[:20]}.so"
    if cache.find(path) is None:
        with cache.building(path) as built:
            result = subprocess.run(
                [*command, "-x", "c++", "-", "-o", str(built)], input=text, capture_output=True, text=True
            )
            assert result.returncode == 0, result.stderr[:4000]
            cache.store(built, path)
    library = ctypes.CDLL(str(path))
    launchers = {kernel: getattr(library, f"launch_{index}") for index, kernel in enumerate(kernels)}
    return {**launchers, "beyond": library.beyond}


def run(plan: Plan, launchers: dict[str, ctypes._CFuncPtr], tensors: dict[str, Tensor], seed: int) -> None:
    """Execute a plan on CPU tensors; workspaces are filled with NaN first."""
    spaces = {
        name: torch.full((length + GUARD,), float("nan"), dtype=torch.float32)
        for name, length in plan.workspaces.items()
    }
    for launch in plan.launches:
        run_launch(launch, launchers, {**tensors, **spaces}, seed)
    for name, space in spaces.items():
        assert space[-GUARD:].isnan().all(), f"a kernel wrote beyond the workspace {name}"


def run_launch(
    launch: Launch, launchers: dict[str, ctypes._CFuncPtr], tensors: dict[str, Tensor], seed: int, memory: int = 0
) -> None:
    """Execute one launch; `memory` is the address of the key of random masks, or 0 to use `seed`."""
    values: list[ctypes._SimpleCData] = []
    for value, kind in launch.arguments:
        values.append(ctypes.c_void_p(tensors[str(value)].data_ptr()) if kind == "pointer" else TYPES[kind](int(value)))
    if launch.seeded:
        values += [ctypes.c_void_p(memory), ctypes.c_uint64(seed)]
    addresses = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
    before = launchers["beyond"]()
    launchers[launch.kernel](launch.blocks, *launch.threads, launch.shared_bytes, addresses)
    assert launchers["beyond"]() == before, f"{launch.kernel} wrote beyond its shared memory"


def shape_of(grad: Tensor) -> Shape:
    """Return the shape of a gradient in channels-last order."""
    if grad.dim() == 2:
        return Shape(grad.shape[0], 1, grad.shape[1], matrix=True)
    return Shape(grad.shape[0], grad.shape[2] * grad.shape[3], grad.shape[1])


def poisoned_like(grad: Tensor) -> Tensor:
    """Return a result with the same memory format, filled with NaN so that a missing write is seen."""
    return torch.empty_like(grad, memory_format=torch.preserve_format).fill_(float("nan"))
