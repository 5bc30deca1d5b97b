"""Every CUDA kernel is compiled for sm_80 and sm_90, and what the compiler made of it is looked at."""

from __future__ import annotations

import itertools
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import tap_kernels

from kernels.cuda import plan as plans
from kernels.cuda import tap_plan
from kernels.cuda.plan import Shape
from kernels.cuda.source import FOLDERS, OPTIONS, inlined, source

nvrtc = pytest.importorskip("cuda.bindings.nvrtc", reason="NVRTC comes with torch's CUDA builds, and is not here")

GROUPS = ((1, 2), (2, 4), (4, 8), (2, 16), (8, 16), (16, 32))
# A multiprocessor has 65,536 registers: at 64 a thread it holds half of its 2,048 threads, enough to keep memory busy.
MOST_REGISTERS = {"prune_units": 64, "prune_and_multiply": 64, "prune_and_compress": 64}


def kernels_of(n: int, m: int) -> list[str]:
    """Every kernel that a plan may name for n:m."""
    found: dict[str, None] = {}
    for dtype, mode in itertools.product(plans.FORMATS, plans.MODES):
        for shape in (Shape(2, 9, 64), Shape(2, 9, 63), Shape(5, 1, 64, matrix=True)):
            for rescale, shared in itertools.product(("none", "group", "sample_channel", "channel"), (2**20, 0)):
                planned = plans.plan_prune(shape, dtype, n, m, mode, rescale, True, shared)
                found.update({launch.kernel: None for launch in planned.launches})
        if n <= 2 and m in (4, 8, 16) and dtype != "float32":
            found[plans.plan_compress(Shape(1, 1, 16), dtype, n, m, mode).kernel] = None
    return list(found)


def _buffer(size: int) -> bytes:
    """Bytes for NVRTC to write into. Never a single one: Python has each single byte once, for all who use it."""
    return bytes(size + 2)


def compile_cubin(kernels: list[str], architecture: str, file: str = plans.PRUNING) -> bytes:
    """Compiles as CuPy does: the same text, the same options."""
    error, program = nvrtc.nvrtcCreateProgram(source(file).encode(), file.encode(), 0, [], [])
    assert not int(error)
    for kernel in kernels:
        nvrtc.nvrtcAddNameExpression(program, kernel.encode())
    options = [option.encode() for option in (*OPTIONS, f"--gpu-architecture={architecture}")]
    (error,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
    _, size = nvrtc.nvrtcGetProgramLogSize(program)
    log = _buffer(size)
    nvrtc.nvrtcGetProgramLog(program, log)
    assert not int(error), log.decode()[:2000]
    _, size = nvrtc.nvrtcGetCUBINSize(program)
    cubin = _buffer(size)
    nvrtc.nvrtcGetCUBIN(program, cubin)
    return cubin[:size]


def tool(name: str) -> str:
    """A disassembler: on the path, or the one that Triton brings along with torch."""
    found = shutil.which(name)
    if not found:
        triton = pytest.importorskip(
            "triton", reason=f"{name} is on no path, and Triton, which brings one, is not here"
        )
        found = str(Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / name)
        if not Path(found).exists():
            pytest.skip(f"{name} is neither on the path nor in Triton's package")
    return found


def resources(cubin: Path) -> dict[str, dict[str, int]]:
    """Registers, stack and local memory of each function."""
    text = subprocess.run(
        [tool("cuobjdump"), "--dump-resource-usage", str(cubin)], capture_output=True, text=True, check=True
    ).stdout
    found = re.findall(r"Function (\S+):\s+(REG:.*)", text)
    assert found
    return {name: {key: int(value) for key, value in re.findall(r"(\w+):(\d+)", usage)} for name, usage in found}


def instructions(cubin: Path) -> dict[str, list[str]]:
    """The machine instructions of each function."""
    text = subprocess.run([tool("nvdisasm"), str(cubin)], capture_output=True, text=True, check=True).stdout
    parts = re.split(r"\.section\s+\.text\.(\S+?),", text)
    opcode = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]+)")
    return {name: opcode.findall(body) for name, body in zip(parts[1::2], parts[2::2], strict=True)}


# Turing has no instruction for bf16; the kernels still run there.
COMPILED = [*itertools.product(["sm_90"], GROUPS), *itertools.product(["sm_80"], GROUPS[1:]), ("sm_75", (2, 4))]


@pytest.fixture(scope="module", params=COMPILED, ids=str)
def compiled(request, tmp_path_factory):
    architecture, (n, m) = request.param
    path = tmp_path_factory.mktemp("cubin") / "kernels.cubin"
    path.write_bytes(compile_cubin(kernels_of(n, m), architecture))
    return m, path


def may_spill(name: str, m: int) -> bool:
    """Whether one register may go through local memory: in the slow kernel of any shape with 32 keys."""
    return "prune_any" in name and m == 32


def test_no_kernel_spills_or_uses_local_memory(compiled):
    m, path = compiled
    for name, usage in resources(path).items():
        if not may_spill(name, m):
            assert usage["STACK"] == 0, name
        assert usage["LOCAL"] == 0, name
        assert usage["REG"] <= 255, name
        rescales = "prune_units" in name and "ELb1E" in name
        for kernel, most in MOST_REGISTERS.items():
            if kernel in name and m <= 16 and not rescales:
                assert usage["REG"] <= most, (name, usage["REG"])


def test_the_fast_kernels_read_and_write_16_bytes_at_a_time(compiled):
    m, path = compiled
    looked_at = 0
    for name, opcodes in instructions(path).items():
        local = [opcode for opcode in opcodes if opcode.startswith(("LDL", "STL"))]
        assert len(local) <= (2 if may_spill(name, m) else 0), name
        if any(slow in name for slow in ("_any", "finish_channels")):
            continue
        looked_at += 1
        assert any(re.match(r"LDG\.E\.\S*128", opcode) for opcode in opcodes), name
        if "sum_channels" not in name:
            assert any(re.match(r"STG\.E\.\S*128", opcode) for opcode in opcodes), name
        if "prune_and_rescale_samples" in name and "ELb1" in name:  # STASH: shared memory between read and write
            assert any(re.match(r"STS\.128", opcode) for opcode in opcodes), name
            assert sum(bool(re.match(r"LDG\.E\.\S*128", opcode)) for opcode in opcodes) == sum(
                bool(re.match(r"STG\.E\.\S*128", opcode)) for opcode in opcodes
            ), name
    assert looked_at


def test_memory_and_not_arithmetic_bounds_the_kernels_without_rescaling(compiled):
    # An H200 copies about 1.1e12 16-bit elements a second and issues about 27 instructions for each, half of them on
    # the units that compare and select; 32-bit elements have twice that.
    _, path = compiled
    for name, opcodes in instructions(path).items():
        if "prune_units" not in name or "ELb1E" in name:
            continue
        size = 4 if "Float32" in name else 2
        elements = 16 // size * sum(bool(re.match(r"LDG\.E\.\S*128", opcode)) for opcode in opcodes)
        path_length = max(i for i, opcode in enumerate(opcodes) if re.match(r"STG\.E\.\S*128", opcode))
        assert path_length / elements <= 22, name


@pytest.mark.parametrize(("n", "m"), [(2, 3), (5, 7), (5, 24), (31, 32)])
def test_other_group_sizes_compile(n, m):
    assert compile_cubin(kernels_of(n, m), "sm_90")


@pytest.mark.parametrize(
    ("architecture", "dtype"),
    [*itertools.product(["sm_90"], plans.FORMATS), ("sm_80", "float32"), ("sm_75", "bfloat16")],
)
def test_convolutions_that_skip_weights_keep_their_sums_in_registers(architecture, dtype, tmp_path):
    steps = (0, 1, 2) if architecture == "sm_90" else (1,)
    kernels = tap_kernels.kernels_of(dtype, steps)
    path = tmp_path / "kernels.cubin"
    path.write_bytes(compile_cubin(kernels, architecture, tap_plan.SOURCE))
    used = resources(path)
    assert len(used) == len(kernels)
    for name, usage in used.items():
        assert usage["STACK"] == 0, name
        assert usage["LOCAL"] == 0, name
        # Of 65,536 registers: so many threads are on a multiprocessor at a time, in blocks of 128 and of 256.
        assert usage["REG"] <= (128 if "sum_" in name else 64), name
    for name, opcodes in instructions(path).items():
        assert not [opcode for opcode in opcodes if opcode.startswith(("LDL", "STL"))], name
        # A square's taps share what they read: of 4 x 4 places 64 multiply-adds take 25 loads; pairs and singles more.
        loads = sum(opcode.startswith("LDG") for opcode in opcodes)
        products = sum(opcode.startswith("FFMA") for opcode in opcodes)
        if "sum_tapsINS_7Float32ELi4ELi4ELi1E" in name:
            assert products == 16 * (4 + 2 + 1)
            assert loads <= 25 + 20 + 16 + 16, name
        if "sum_productsINS_7Float32ELi4ELi4ELi1ELi2ELi2E" in name:
            assert products == 16 * 4 * tap_plan.GROUPS[tap_plan.SQUARE]
            assert loads <= 16 + (25 + 1) * tap_plan.GROUPS[tap_plan.SQUARE] + 4, name


def test_the_texts_are_complete_and_have_each_header_once():
    texts = [source(file.name) for file in FOLDERS[0].glob("*.cu")]
    assert len(texts) == 2
    assert all("#include" not in re.sub(r"#include <\w+>", "", text) for text in texts)
    for folder in FOLDERS:
        for header in folder.glob("*.*h"):
            first_line = header.read_text().splitlines()[0]
            assert {text.count(first_line) for text in texts} in ({1}, {0, 1}), header.name


def test_a_header_that_is_included_twice_is_put_in_once(tmp_path):
    (tmp_path / "a.cu").write_text('#include "b.h"\n#include "b.h"\nint a;\n')
    (tmp_path / "b.h").write_text("#pragma once\nint b;\n")
    assert inlined("a.cu", (tmp_path,), set()).count("int b;") == 1
