"""Times of the pruning kernels, compared with a copy of the same tensor.

    python -m pytest benchmarks/kernels/bench_kernels.py -k "large and magnitude" --benchmark-min-rounds 30
        --benchmark-json FILE
    python -m benchmarks.kernels.tables FILE

A GPU is used if the machine has one. `-k` selects cases by their names, such as `512x64x6x6-float32-2:4-random`. Every
case is checked before it is timed: a new random gradient is pruned into memory that was filled with NaN, and all
elements are compared with `kernels.prune.reference`. Kernel and copy then take turns, so that other load on the machine
affects both. On a GPU, other memory is read before each of them, so that the tensor is in no cache and the call is
enqueued before the GPU is free. The clock that pytest-benchmark reads advances only by the kernel's time. `extra_info`
has what the table shows.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

import kernels
from kernels import PruneRule
from kernels.prune import reference
from suite.choices import build_model
from suite.engine.cost.clock import stamps_of
from suite.engine.cost.flops import count_layers
from suite.engine.cost.interleaved import interleaved_times, ratio_of

SEED = 1  # of random masks
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
ON_CPU = DEVICE.type == "cpu"
BATCH, NETWORK = 512, "resnet9[width=0.25]" if ON_CPU else "resnet9"
LARGE = (512, 512, 16, 16) if ON_CPU else (1536, 512, 16, 16)  # larger than the caches
DTYPES = ("float32", "bfloat16") if ON_CPU else ("float32", "bfloat16", "float16")
GROUPS = ("1:2", "1:4", "2:4", "2:8", "4:8", "2:16", "8:16", "16:32")
MODES: dict[str, tuple[Any, Any]] = {
    "magnitude": ("magnitude", "none"),
    "random": ("random", "none"),
    "unbiased": ("unbiased", "none"),
    "sample_channel": ("magnitude", "sample_channel"),
    "group": ("magnitude", "group"),
    "channel": ("magnitude", "channel"),
}
# (relative, absolute). Sums in another order differ by a few fp32 roundings per factor of ten in length; 16-bit results
# differ by at most one rounding, which is absolute for subnormal numbers.
TOLERANCES = {"float32": (2e-6, 0.0), "bfloat16": (2**-7, 0.0), "float16": (2**-10, 2**-24)}
READ_BYTES = 2**30  # between calls on a GPU

now = 0.0  # of the clock that pytest-benchmark reads
pytestmark = [pytest.mark.benchmark(timer=lambda: now), pytest.mark.timeout(0)]


def shapes() -> dict[str, tuple[int, ...]]:
    """Return the distinct gradients of a network that SDGP prunes, and one that is larger than the caches, by name."""
    with torch.device("meta"):
        layers = count_layers(build_model(NETWORK, (3, 32, 32), 10), (3, 32, 32)).values()
    found = [(BATCH, one.out_channels, *one.output) for one in layers if one.kind == "conv" and one.has_dgrad]
    return {"x".join(map(str, shape)): shape for shape in found} | {"large": LARGE}


SHAPES = shapes()


@dataclasses.dataclass
class Case:
    """A random gradient, how it is pruned, and the result of the reference."""

    grad: Tensor
    dtype: str
    group: str
    mode: str
    rounds: int

    def __post_init__(self) -> None:
        self.rule = PruneRule(*map(int, self.group.split(":")), *MODES[self.mode])
        self.expected = reference.prune_nm(self.grad, self.rule, seed=SEED)

    def check(self, pruned: Tensor) -> None:
        """Assert that a result equals the reference: bit for bit, or within rounding if it involves sums."""
        assert (pruned.shape, pruned.dtype) == (self.expected.shape, self.expected.dtype)
        if self.rule.rescale == "none":
            integer = {4: torch.int32, 2: torch.int16}[pruned.element_size()]
            same = [tensor.movedim(1, -1).contiguous().view(integer) for tensor in (pruned, self.expected)]
            assert torch.equal(*same), f"{int((same[0] != same[1]).sum())} elements differ from the reference"
        else:
            relative, absolute = TOLERANCES[self.dtype]
            torch.testing.assert_close(pruned, self.expected, rtol=relative, atol=absolute)

    def measure(self, benchmark: Any, prune: Callable[[], object], moved_bytes: int) -> None:
        """Time a kernel in alternation with a copy, give its times to pytest-benchmark, and fill `extra_info`."""
        target = torch.empty_like(self.grad)
        other = torch.zeros(0 if ON_CPU else READ_BYTES // 4, device=DEVICE)
        calls = (other.sum, prune, other.sum, lambda: target.copy_(self.grad), other.sum)
        times = interleaved_times(calls, self.rounds, stamps_of(DEVICE), warm_ups=2)[:, [1, 3]]
        ratio, copied_bytes, seconds = ratio_of(times[:, 1], times[:, 0]), 2 * bytes_of(self.grad), iter(times[:, 0])

        def turn() -> None:
            global now
            now += next(seconds)

        benchmark.group = f"{self.group} {self.dtype} {self.mode}"
        benchmark.pedantic(turn, rounds=self.rounds)
        share = moved_bytes / copied_bytes
        benchmark.extra_info |= {
            "shape": "x".join(map(str, self.grad.shape)),
            "dtype": self.dtype,
            "group": self.group,
            "mode": self.mode,
            "backend": kernels.backend_of(self.grad),
            "bytes": moved_bytes,
            "seconds": ratio.second_s,
            "gb_per_s": moved_bytes / ratio.second_s / 1e9,
            "copy_gb_per_s": copied_bytes / ratio.first_s / 1e9,
            "of_copy": {name: share * getattr(ratio, name) for name in ("median", "low", "high", "least")},
        }


@pytest.fixture(params=map("-".join, itertools.product(SHAPES, DTYPES, GROUPS, MODES)))
def case(request: Any) -> Case:
    """A case with a new random gradient, channels-last as cuDNN and oneDNN return it."""
    shape, dtype, group, mode = request.param.rsplit("-", 3)
    empty = torch.empty(SHAPES[shape], dtype=getattr(torch, dtype), device=DEVICE, memory_format=torch.channels_last)
    generator = torch.Generator(DEVICE)
    print(f"gradient of seed {generator.seed()}")  # pytest shows this line if the check fails
    rounds = request.config.getoption("benchmark_min_rounds")
    return Case(empty.normal_(generator=generator), dtype, group, mode, rounds)


def test_prune_nm(benchmark: Any, case: Case) -> None:
    def prune() -> Tensor:
        return kernels.prune_nm(case.grad, case.rule, seed=SEED)

    with poisoned_memory():
        pruned = prune()
    case.check(pruned)
    case.measure(benchmark, prune, 2 * bytes_of(case.grad))


@pytest.mark.skipif(not ON_CPU, reason="compress_nm has a compiled kernel on the CPU only")
def test_compress_nm(benchmark: Any, case: Case) -> None:
    def compress() -> tuple[Tensor, Tensor]:
        return kernels.compress_nm(case.grad, case.rule, seed=SEED)

    with poisoned_memory():
        values, channels = compress()
    dense = torch.zeros_like(case.grad.movedim(1, -1))
    case.check(dense.scatter_(-1, channels.to(torch.int64), values.to(case.grad.dtype)).movedim(-1, 1))
    case.measure(benchmark, compress, bytes_of(case.grad) + bytes_of(values) + bytes_of(channels))


@contextmanager
def poisoned_memory() -> Iterator[None]:
    """Fill new tensors with NaN, so that elements that a kernel does not write are detected."""
    before, warned = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    assert torch.utils.deterministic.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=warned)


def bytes_of(tensor: Tensor) -> int:
    return math.prod(tensor.shape) * tensor.element_size()
