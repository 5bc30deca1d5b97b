"""The kernels of every instruction set that this processor can run agree with their definition.

All other tests run the kernels of one instruction set: this processor's, or `PDT_CPU_ARCH`.
"""

from __future__ import annotations

import logging
import os
import platform
from pathlib import Path

import filelock
import pytest
import torch
from instruction_sets import KERNELS, compiled, mutated_sources

from kernels import cache
from kernels.compressed import cpu as compressed
from kernels.cpu import build, library
from kernels.prune import cpu as prune
from kernels.sparse_conv import cpu as sparse_conv

pytestmark = [
    pytest.mark.skipif(platform.machine() != "x86_64", reason="the instruction sets are those of x86-64"),
    pytest.mark.usefixtures("compiled"),
    pytest.mark.slow,
]


def needs(architecture: str) -> None:
    missing = build.missing_features(architecture)
    if missing:
        pytest.skip(f"{architecture}: this processor has no {', '.join(missing)}")


def elsewhere() -> str:
    """Return the instruction set whose kernels the other tests run."""
    widest = next(name for name in reversed(build.ARCHITECTURES) if not build.missing_features(name))
    return os.environ.get("PDT_CPU_ARCH", "native").replace("native", widest)


@pytest.mark.parametrize(("architecture", "bits"), [("x86-64", 128), ("x86-64-v4", 512)])
def test_kernels_agree_with_their_definition(architecture, bits):
    """Compiled with less optimization, in less time; the test below has x86-64-v3."""
    needs(architecture)
    if architecture == elsewhere():
        pytest.skip(f"{architecture}: the other tests run these kernels")
    for name, (bind, proof) in KERNELS.items():
        with filelock.FileLock(cache.folder() / "tests.lock"):
            bound = bind(compiled(name, (f"-march={architecture}", "-O1", "-fopenmp")))
        if name == "prune_nm":
            assert bound.library.pdt_vector_bits() == bits
        assert proof(bound) == ""


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("architecture", ["x86-64-v3", "native"])
def test_optimized_kernels_agree_with_their_definition(architecture, name):
    """The sources have no path of x86-64-v2; `native` has one where AVX-512 compresses 16-bit lanes."""
    if architecture != "native":
        needs(architecture)
    bind, proof = KERNELS[name]
    assert proof(bind(compiled(name, (f"-march={architecture}", "-fopenmp")))) == ""


# One wrong lane of AVX2, and of pairs of bfloat16, by source: the file, a place in it, and what replaces it.
WRONG_LANES = (
    ("compressed_gradients", "bf16_pairs.h", "(7, 3, 6, 2, 5, 1, 4, 0)", "(7, 3, 6, 2, 5, 1, 0, 4)"),
    ("prune_nm", "lanes.h", "_mm256_set1_epi64x(factor)", "_mm256_set_epi64x(factor, factor, factor ^ 1, factor)"),
    ("prune_nm", "lanes.h", "_mm_movemask_epi8(narrow)", "_mm_movemask_epi8(narrow) & 0xefff"),
    (
        "compressed_gradients",
        "compressed_layer.h",
        "const Lanes value = factor[0].value - Lanes{};",
        "Lanes value = factor[0].value - Lanes{}; if (width == 8) value[5] = 0;",
    ),
    (
        "sparse_conv",
        "sparse_conv.cpp",
        "    return load(base + vectors * lanes<Number>);",
        "    Vector<Number> v = load(base + vectors * lanes<Number>); if (vector_bytes == 32) v[6] = 0; return v;",
    ),
    ("sparse_conv", "bf16_pairs.h", "(7, 3, 6, 2, 5, 1, 4, 0)", "(7, 3, 6, 2, 5, 1, 0, 4)"),
)


@pytest.mark.parametrize(("name", "file", "right", "wrong"), WRONG_LANES)
def test_one_wrong_lane_is_found_by_the_proof_and_plain_torch_takes_its_place(
    name, file, right, wrong, tmp_path, monkeypatch, caplog
):
    """The user's machine has a library whose kernels differ from their definition in one lane."""
    architecture = "native" if right.startswith("(7, 3") else "x86-64-v3"
    if architecture == "native" and "avx512_bf16" not in Path("/proc/cpuinfo").read_text():
        pytest.skip("this processor does not multiply pairs of bfloat16")
    needs("x86-64-v3")
    sources, include = mutated_sources(tmp_path, file, right, wrong)
    monkeypatch.setattr(build, "BASE_FLAGS", (*build.BASE_FLAGS, "-O1"))  # the last level counts
    monkeypatch.setattr(build, "SOURCES", sources)
    monkeypatch.setattr(build, "INCLUDE_FOLDERS", (include, sources))
    monkeypatch.setenv("PDT_CPU_ARCH", architecture)
    monkeypatch.setenv("PDT_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("PDT_CPU_KERNEL", raising=False)
    bind, proof = KERNELS[name]
    with caplog.at_level(logging.WARNING, "pdt.kernels"):
        assert library.open_optional(name, "these kernels", bind, proof) is None
    (message,) = caplog.messages
    assert message.startswith("these kernels: plain torch instead of compiled kernels, because the compiled library ")
    assert "differs from its definition: " in message
    (made,) = (tmp_path / "cache").glob("*.so")
    assert cache.find(made) == {}


@pytest.mark.parametrize("name", KERNELS)
def test_the_proof_does_not_depend_on_the_state_of_the_process_and_leaves_it(name):
    """Subnormal numbers are flushed to zero, and torch has another default number format."""
    found = {
        "prune_nm": prune.load().kernel,
        "compressed_gradients": compressed.library(),
        "sparse_conv": sparse_conv.library(),
    }
    before = torch.get_rng_state(), torch.get_num_threads(), torch.is_grad_enabled()
    torch.set_default_dtype(torch.bfloat16)
    torch.use_deterministic_algorithms(True)
    try:
        assert torch.set_flush_denormal(True)
        assert KERNELS[name][1](found[name]) == ""
        assert torch.get_default_dtype() == torch.bfloat16
    finally:
        torch.set_flush_denormal(False)
        torch.use_deterministic_algorithms(False)
        torch.set_default_dtype(torch.float32)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (torch.get_num_threads(), torch.is_grad_enabled()) == before[1:]
