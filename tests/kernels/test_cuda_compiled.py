"""Compile every CUDA kernel for sm_80 and sm_90a with NVRTC, and inspect the machine code."""

from __future__ import annotations

import functools
import itertools
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import nvrtc_binding as binding
import pytest
import sparse_conv_kernels

from kernels import PruneRule
from kernels.cuda.compiler import CompileError, architecture, compile_cubin, cubin
from kernels.cuda.source import OPTIONS, inlined, source
from kernels.prune import cuda_plan as plans
from kernels.prune.cuda_plan import Shape
from kernels.prune.rule import MODES
from kernels.sparse_conv import cuda_plan as tap_plan

pytestmark = pytest.mark.slow

GROUPS = ((1, 2), (2, 4), (4, 8), (2, 16), (8, 16), (16, 32))
# A multiprocessor has 65,536 registers: at 64 a thread it holds half of its 2,048 threads, enough to keep memory busy.
MOST_REGISTERS = {"prune_units": 64, "prune_and_multiply": 64}


def kernels_of(n: int, m: int) -> list[str]:
    """Return every kernel that a plan may contain for n:m."""
    found: dict[str, None] = {}
    for dtype, mode in itertools.product(plans.FORMATS, MODES):
        for shape in (Shape(2, 9, 64), Shape(2, 9, 63), Shape(5, 1, 64, matrix=True)):
            scopes = ("none",) if mode == "unbiased" else ("none", "group", "sample_channel", "channel")
            for rescale, shared in itertools.product(scopes, (2**20, 0)):
                planned = plans.plan_prune(shape, dtype, PruneRule(n, m, mode, rescale), True, shared)
                found.update({launch.kernel: None for launch in planned.launches})
    return list(found)


def compiled_cubin(kernels: list[str], target: str) -> bytes:
    """Compile kernels as a launch does."""
    return compile_cubin(binding, plans.SOURCE, kernels, target, OPTIONS)[0]


@functools.cache
def assembled(kernels: tuple[str, ...], target: str, file: str = plans.SOURCE) -> tuple[bytes, str]:
    """Compile kernels as a launch does, once for all tests; return the cubin and the PTX from which it was made."""
    texts: list[str] = []

    def get_cubin(program):
        texts.append(binding.getPTX(program))
        return binding.getCUBIN(program)

    both = SimpleNamespace(**(vars(binding) | {"getCUBIN": get_cubin}))
    content = compile_cubin(both, file, kernels, target, OPTIONS)[0]
    return content, texts[0]


def tool(name: str) -> str:
    """Return a disassembler: from the path, or from the Triton package that torch installs."""
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
    """Return registers, stack and local memory of each function."""
    text = subprocess.run(
        [tool("cuobjdump"), "--dump-resource-usage", str(cubin)], capture_output=True, text=True, check=True
    ).stdout
    found = re.findall(r"Function (\S+):\s+(REG:.*)", text)
    assert found
    return {name: {key: int(value) for key, value in re.findall(r"(\w+):(\d+)", usage)} for name, usage in found}


def instructions(cubin: Path) -> dict[str, list[str]]:
    """Return the machine instructions of each function."""
    text = subprocess.run([tool("nvdisasm"), str(cubin)], capture_output=True, text=True, check=True).stdout
    parts = re.split(r"\.section\s+\.text\.(\S+?),", text)
    opcode = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]+)")
    return {name: opcode.findall(body) for name, body in zip(parts[1::2], parts[2::2], strict=True)}


# Turing has no instruction for bf16, but the kernels run there.
COMPILED = [("sm_75", (2, 4)), ("sm_80", (2, 4)), *(("sm_90a", group) for group in ((1, 2), (2, 4), (2, 16)))]
LONG = [one for one in itertools.product(("sm_80", "sm_90a"), GROUPS) if one not in COMPILED]


STEPS = (0, 1, 2)  # distances of input columns, for which convolutions that skip weights have kernels


@dataclass(frozen=True)
class Compiled:
    """Kernels for n:m in one cubin, and the instructions of each function."""

    m: int
    path: Path
    instructions: dict[str, list[str]]


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(one, id=str(one), marks=marks)
        for several, marks in ((COMPILED, ()), (LONG, pytest.mark.long))
        for one in several
    ],
)
def compiled(request, tmp_path_factory):
    architecture, (n, m) = request.param
    path = tmp_path_factory.mktemp("cubin") / "kernels.cubin"
    path.write_bytes(assembled((*kernels_of(n, m),), architecture)[0])
    return Compiled(m, path, instructions(path))


def ptx(file: str, kernels: list[str], options=OPTIONS) -> str:
    """Compile kernels to PTX, in which each instruction states whether it flushes subnormal numbers."""
    program = binding.createProgram(source(file), file, (), ())
    for kernel in kernels:
        binding.addNameExpression(program, kernel)
    binding.compileProgram(program, (*options, "--gpu-architecture=compute_90a"))
    return binding.getPTX(program)


@pytest.mark.parametrize("file", [plans.SOURCE, tap_plan.SOURCE])
def test_no_kernel_flushes_subnormal_numbers(file):
    """The kernels that other tests assemble for sm_90a, and those for float16."""
    if file == plans.SOURCE:
        kernels = kernels_of(2, 4)
        texts = [assembled((*kernels_of(*group),), "sm_90a")[1] for group in ((2, 4), (5, 7))]
    else:
        kernels = sparse_conv_kernels.kernels_of("float16", (1,))
        others = (sparse_conv_kernels.kernels_of(dtype, STEPS) for dtype in ("float32", "bfloat16"))
        texts = [*(assembled((*names,), "sm_90a", file)[1] for names in others), ptx(file, kernels)]
    assert all(re.search(r"\b(add|fma)\.\S*f32", text) for text in texts)
    text = "".join(texts)
    assert re.findall(r"\S+\.ftz\S*", text) == []
    assert re.findall(r"\S+\.approx\S*", text) == []
    # The option that CuPy adds to whatever it compiles.
    assert ".ftz" in ptx(file, kernels[:9], (*OPTIONS, "-ftz=true"))


def test_a_kernel_is_compiled_once_and_kept_for_its_device(tmp_path, monkeypatch):
    monkeypatch.setenv("PDT_CACHE", str(tmp_path))
    kernel = "pdt::finish_channels"
    found = cubin(binding, plans.SOURCE, kernel, "sm_90a")
    assert re.fullmatch(r"finish_channels-sm_90a-[0-9a-f]{20}\.cubin", found.path.name)
    assert found.function in instructions(found.path)
    assert found.function != kernel
    whole = found.path.read_bytes()
    found.path.write_bytes(whole[:400])
    assert cubin(binding, plans.SOURCE, kernel, "sm_90a") == found
    assert found.path.read_bytes() == whole
    compiled = []
    monkeypatch.setattr(binding, "compileProgram", lambda program, options: compiled.append(options))
    assert cubin(binding, plans.SOURCE, kernel, "sm_90a") == found
    assert not compiled
    with pytest.raises(binding.NVRTCError):  # of a program that was not compiled
        cubin(binding, plans.SOURCE, kernel, "sm_80")
    assert len(compiled) == 1


def test_what_does_not_compile_is_told_in_one_line(tmp_path, monkeypatch):
    monkeypatch.setenv("PDT_CACHE", str(tmp_path))
    with pytest.raises(CompileError, match=r"^prune_nm.cu for sm_90a: .*error.*no_such_kernel[^\n]*$"):
        cubin(binding, plans.SOURCE, "pdt::no_such_kernel", "sm_90a")
    with pytest.raises(CompileError, match=r"^prune_nm.cu for sm_12: [^\n]*gpu-architecture[^\n]*$"):
        cubin(binding, plans.SOURCE, "pdt::finish_channels", "sm_12")
    assert list(tmp_path.iterdir()) == []


def test_the_byte_that_a_binding_drops_is_put_back(monkeypatch):
    """CuPy drops the last byte, without which the ELF file is incomplete."""
    whole, get = compiled_cubin(["pdt::finish_channels"], "sm_90a"), binding.getCUBIN
    monkeypatch.setattr(binding, "getCUBIN", lambda program: get(program)[:-1])
    assert compiled_cubin(["pdt::finish_channels"], "sm_90a") == whole
    monkeypatch.setattr(binding, "getCUBIN", lambda program: get(program)[:-2])
    with pytest.raises(CompileError, match=f"NVRTC returned {len(whole) - 2} bytes of a cubin of {len(whole)} bytes$"):
        compiled_cubin(["pdt::finish_channels"], "sm_90a")


def test_each_device_has_an_architecture_of_its_own():
    assert [architecture(one) for one in ((7, 5), (8, 0), (9, 0), (12, 1))] == ["sm_75", "sm_80", "sm_90a", "sm_121a"]


def is_unbiased(name: str) -> bool:
    """Return whether a kernel samples: its last two template arguments are the mode and a bool."""
    return re.search(rf"ELi{MODES.index('unbiased')}ELb[01]E", name) is not None


def may_spill(name: str, m: int) -> bool:
    """Return whether a register may be spilled: in the slow kernel for any shape with 32 keys."""
    return "prune_any" in name and m == 32


def test_no_kernel_spills_or_uses_local_memory(compiled):
    for name, usage in resources(compiled.path).items():
        if not may_spill(name, compiled.m):
            assert usage["STACK"] == 0, name
        assert usage["LOCAL"] == 0, name
        assert usage["REG"] <= 255, name
        rescales = "prune_units" in name and "ELb1E" in name
        for kernel, most in MOST_REGISTERS.items():
            if kernel in name and compiled.m <= 16 and not rescales:
                # Sampling needs the magnitudes next to the values.
                assert usage["REG"] <= (96 if is_unbiased(name) else most), (name, usage["REG"])


def test_the_fast_kernels_read_and_write_16_bytes_at_a_time(compiled):
    looked_at = 0
    for name, opcodes in compiled.instructions.items():
        local = [opcode for opcode in opcodes if opcode.startswith(("LDL", "STL"))]
        assert len(local) <= (2 if may_spill(name, compiled.m) else 0), name
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


@pytest.mark.parametrize(
    ("architecture", "dtype"),
    [
        ("sm_90a", "float32"),
        ("sm_90a", "bfloat16"),
        ("sm_75", "bfloat16"),
        ("sm_90a", "float16"),
        ("sm_80", "float32"),
    ],
)
def test_convolutions_that_skip_weights_keep_their_sums_in_registers(architecture, dtype, tmp_path):
    kernels = sparse_conv_kernels.kernels_of(dtype, STEPS if architecture == "sm_90a" else (1,))
    path = tmp_path / "kernels.cubin"
    path.write_bytes(assembled((*kernels,), architecture, tap_plan.SOURCE)[0])
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


def test_a_header_that_is_included_twice_is_put_in_once(tmp_path):
    (tmp_path / "a.cu").write_text('#include "b.h"\n#include "b.h"\nint a;\n')
    (tmp_path / "b.h").write_text("#pragma once\nint b;\n")
    assert inlined("a.cu", (tmp_path,), set()).count("int b;") == 1
