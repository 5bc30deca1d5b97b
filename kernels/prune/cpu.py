"""Load and call the compiled pruning kernels of the CPU."""

from __future__ import annotations

import ctypes
import functools
import logging
import os
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.cpu.build import BuildError
from kernels.cpu.library import open_library
from kernels.prune import proof
from kernels.prune.rule import MODES, SCOPES, PruneRule

log = logging.getLogger("pdt.kernels")

DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
ROW_SCOPE = len(SCOPES)  # scope of a matrix: each row is a sample

# Ratio of the plain-torch time to the compiled time: magnitude 2:4, ResNet-9's largest gradient at batch 512, two cores
# of an AMD EPYC (Zen 4): results/cpu-zen4-2cores/kernels. benchmarks/kernels/bench_kernels.py measures it on this
# machine (as `plain torch`).
REFERENCE_SLOWDOWN = "about 90 (fp32) to 120 (bf16)"

# Sizes, n, m, format, mode, scope, seed and threads, as `_problem` returns them.
_PROBLEM = [ctypes.c_int64] * 3 + [ctypes.c_int] * 5 + [ctypes.c_uint64, ctypes.c_int]


@dataclass(frozen=True)
class Pruning:
    """The compiled kernels that prune."""

    library: ctypes.CDLL

    def __post_init__(self) -> None:
        for kernel, pointers in ((self.library.pdt_prune_nm, 2), (self.library.pdt_compress_nm, 3)):
            kernel.restype = ctypes.c_int
            kernel.argtypes = [*[ctypes.c_void_p] * pointers, *_PROBLEM]

    def prune(self, grad: Tensor, pruned: Tensor, rule: PruneRule, seed: int, threads: int) -> None:
        """Prune `grad` into `pruned`; see `kernels.prune.cpu.prune`."""
        problem = _problem(grad, rule, seed, threads)
        _check(self.library.pdt_prune_nm(grad.data_ptr(), pruned.data_ptr(), *problem), "prune_nm", grad, rule)

    def compress(
        self, grad: Tensor, values: Tensor, channels: Tensor, rule: PruneRule, seed: int, threads: int
    ) -> None:
        """Compress `grad` into `values` and `channels`; see `kernels.prune.cpu.compress`."""
        pointers = grad.data_ptr(), values.data_ptr(), channels.data_ptr()
        problem = _problem(grad, rule, seed, threads)
        _check(self.library.pdt_compress_nm(*pointers, *problem), "compress_nm", grad, rule)


@dataclass(frozen=True)
class Loaded:
    """The compiled kernel, or the reason why plain torch is used."""

    kernel: Pruning | None
    description: str

    @property
    def available(self) -> bool:
        return self.kernel is not None


@functools.cache
def load() -> Loaded:
    """Build and load the kernel, once per process; log one line with the backend and the reason."""
    if os.environ.get("PDT_CPU_KERNEL") == "0":
        return _absent("it is turned off by PDT_CPU_KERNEL=0")
    try:
        kernel, built = open_library("prune_nm", Pruning, proof.of_pruning)
    except BuildError as error:
        return _absent(str(error))
    library = kernel.library
    threads = "OpenMP" if library.pdt_has_openmp() else "one thread: the compiler has no OpenMP"
    description = (
        f"prune_nm: compiled CPU kernel ({built.compiler}; {library.pdt_vector_bits()}-bit vectors; {threads}; "
        f"{built.library})"
    )
    log.info(description)
    if built.refused:
        flags = " ".join(built.flags)
        log.warning("prune_nm: compiled with only %s, which is slower, because %s", flags, built.refused)
    return Loaded(kernel, description)


def prune(grad: Tensor, pruned: Tensor, rule: PruneRule, seed: int) -> None:
    """Prune `grad` into `pruned`, which may be the same tensor.

    Args:
        grad: (N, K, P, Q), dense in channels-last order, or (rows, K) contiguous; fp32, bf16 or fp16, on the CPU.
        pruned: Result, with the same shape, dtype and order.
        rule: Channels to keep, and how to rescale them.
        seed: Seed of random masks, 0 to 2^64 - 1.

    Raises:
        MemoryError: The sums for the rescaling cannot be allocated.
    """
    kernel = load().kernel
    assert kernel is not None, "prune() was called without a compiled kernel"
    kernel.prune(grad, pruned, rule, seed, torch.get_num_threads())


def compress(grad: Tensor, values: Tensor, channels: Tensor, rule: PruneRule, seed: int) -> None:
    """Prune and compress `grad`; see `kernels.compress_nm`.

    Args:
        grad: As in `prune`.
        values: Kept values, fp32, (N, P, Q, J) or (rows, J), contiguous.
        channels: Their channels, int16, with the same shape, contiguous.
        rule: Channels to keep, and how to rescale them.
        seed: As in `prune`.

    Raises:
        MemoryError: The memory for sums and masks cannot be allocated.
    """
    kernel = load().kernel
    assert kernel is not None, "compress() was called without a compiled kernel"
    kernel.compress(grad, values, channels, rule, seed, torch.get_num_threads())


def _problem(grad: Tensor, rule: PruneRule, seed: int, threads: int) -> tuple[int, ...]:
    """Return the arguments of both C functions after their pointers."""
    matrix = grad.dim() == 2
    samples, channels = grad.shape[:2]
    pixels = 1 if matrix else grad.shape[2] * grad.shape[3]
    scope = ROW_SCOPE if matrix and rule.rescale == "sample_channel" else SCOPES.index(rule.rescale)
    return (samples, pixels, channels, rule.n, rule.m, DTYPES[grad.dtype],
            MODES.index(rule.mode), scope, seed, threads)  # fmt: skip


def _check(status: int, name: str, grad: Tensor, rule: PruneRule) -> None:
    if status == 2:
        raise MemoryError(f"{name}: no memory for the sums of {rule} of a gradient {tuple(grad.shape)}")
    assert status == 0, f"pdt_{name} refused its arguments (status {status})"


def _absent(reason: str) -> Loaded:
    description = (
        f"prune_nm: plain torch instead of the compiled CPU kernel, {REFERENCE_SLOWDOWN} times slower, because {reason}"
    )
    log.warning(description)
    return Loaded(None, description)
