"""Times of the pruning kernels, compared with a copy of the same tensor and with alternatives.

    python -m pytest benchmarks/kernels/bench_kernels.py --benchmark-json FILE
    python -m benchmarks.kernels.tables FILE

The benchmarks use a GPU if the machine has one. Every case is checked before it is timed: a new random gradient is
pruned into memory that was filled with NaN, and all elements are compared with `kernels.prune.reference`. Each round
then times the kernel and the fastest known copy of the same tensor in alternating order, so that other load on the
machine affects both. The clock that pytest-benchmark reads advances only by the kernel's time. `extra_info` holds the
other figures (see `results.py`). `--help` lists the options under "kernel benchmarks"; `--json FILE` saves each case as
soon as it is measured.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import pytest
import torch
from torch import Tensor

import kernels
from benchmarks.kernels import alternatives
from benchmarks.kernels.cases import LEAST_ROUNDS, Case, Plan
from benchmarks.stopwatch import Watch, copies, count, measured_time, watch_of
from kernels.prune import reference
from suite.engine.cost.interleaved import Ratio, ratio_of

pytestmark = pytest.mark.benchmark(timer=measured_time)

SEED = 1  # seed of random masks
SLOW_BUDGET_S = {"cpu": 3.0, "cuda": 1.0}  # no further rounds of an alternative after this time
COPY_ROUNDS = 10  # rounds per way to copy, to find the fastest
# (relative, absolute). Sums in another order differ by a few fp32 roundings per factor of ten in length; 16-bit results
# differ by at most one rounding, which is absolute for subnormal numbers.
TOLERANCES = {"float32": (2e-6, 0.0), "bfloat16": (2**-7, 0.0), "float16": (2**-10, 2**-24)}


@pytest.fixture(scope="session")
def watch(plan: Plan) -> Watch:
    return watch_of(plan.device)


@pytest.fixture
def grad(case: Case, plan: Plan) -> Tensor:
    """A new random gradient, channels-last as cuDNN and oneDNN return it."""
    shape, dtype = case.gradient.shape, getattr(torch, case.dtype)
    empty = torch.empty(shape, dtype=dtype, device=plan.device, memory_format=torch.channels_last)
    generator = torch.Generator(plan.device)
    seed = generator.seed()
    print(f"gradient of seed {seed}")  # pytest shows this line if the check fails
    return empty.normal_(generator=generator)


@pytest.fixture(scope="session")
def fastest_copies() -> dict[tuple[Any, ...], dict[str, float]]:
    """GB/s of each way to copy, by shape and type, so that it is measured once per tensor."""
    return {}


def test_prune_nm(
    benchmark: Any, case: Case, grad: Tensor, plan: Plan, watch: Watch, fastest_copies: dict[Any, dict[str, float]]
) -> None:
    def prune() -> Tensor:
        return kernels.prune_nm(grad, case.rule, seed=SEED)

    with poisoned_memory():
        pruned = prune()
    expected = oracle(case, grad)
    assert_same(case, pruned, expected)
    measure(benchmark, case, grad, plan, watch, fastest_copies, prune, 2 * bytes_of(grad))
    benchmark.extra_info["backend"] = kernels.backend_of(grad)
    if plan.slow_rounds and case.mode in plan.slow_modes:
        others = alternatives.alternatives(grad, case.rule, compiled=plan.compiled)
        benchmark.extra_info["instead"] = compare(others, plan.slow_rounds, plan, watch, prune, expected)


def test_compress_nm(
    benchmark: Any, case: Case, grad: Tensor, plan: Plan, watch: Watch, fastest_copies: dict[Any, dict[str, float]]
) -> None:
    def compress() -> tuple[Tensor, Tensor]:
        return kernels.compress_nm(grad, case.rule, seed=SEED)

    def prune() -> Tensor:
        return kernels.prune_nm(grad, case.rule, seed=SEED)

    with poisoned_memory():
        values, channels = compress()
    expected = oracle(case, grad)
    assert_same(case, alternatives.expand(values, channels, grad), expected)
    least = bytes_of(grad) + bytes_of(values) + bytes_of(channels)
    del values, channels
    measure(benchmark, case, grad, plan, watch, fastest_copies, compress, least)
    benchmark.extra_info["backend"] = kernels.backend_of(grad)
    # The time of `prune_nm` over that of this kernel: more than 1 where compression is the faster one.
    others: dict[str, Callable[[], Tensor]] = {alternatives.PRUNE: prune}
    benchmark.extra_info["instead"] = compare(others, plan.rounds, plan, watch, compress, expected)


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


def oracle(case: Case, grad: Tensor) -> Tensor:
    return reference.prune_nm(grad, case.rule, seed=SEED)


def assert_same(case: Case, pruned: Tensor, expected: Tensor) -> None:
    """Assert that a result equals the reference: bit for bit, or within rounding if it involves sums."""
    assert pruned.shape == expected.shape
    assert pruned.dtype == expected.dtype
    if case.rule.rescale == "none":
        integer = {4: torch.int32, 2: torch.int16}[pruned.element_size()]
        same = [tensor.movedim(1, -1).contiguous().view(integer) for tensor in (pruned, expected)]
        assert torch.equal(*same), f"{int((same[0] != same[1]).sum())} elements differ from the reference"
    else:
        relative, absolute = TOLERANCES[case.dtype]
        torch.testing.assert_close(pruned, expected, rtol=relative, atol=absolute)


def measure(
    benchmark: Any,
    case: Case,
    grad: Tensor,
    plan: Plan,
    watch: Watch,
    fastest_copies: dict[Any, dict[str, float]],
    prune: Callable[[], object],
    least_bytes: int,
) -> None:
    """Time the kernel through pytest-benchmark in alternation with a copy, and fill `extra_info`."""
    ways, copied_bytes = copies(grad), 2 * bytes_of(grad)
    key = (case.gradient.shape, case.dtype)
    if key not in fastest_copies:
        fastest_copies[key] = rates(ways, copied_bytes, watch)
    name = max(fastest_copies[key], key=lambda way: fastest_copies[key][way])
    both: tuple[Callable[[], object], ...] = (prune, ways[name])
    times: tuple[list[float], list[float]] = ([], [])

    def turn() -> None:
        for which in (0, 1) if len(times[0]) % 2 == 0 else (1, 0):
            times[which].append(watch.time(both[which]))
        count(times[0][-1])

    for function in both * 2:
        watch.time(function)
    benchmark.group = f"{case.kernel} {case.n}:{case.m} {case.dtype} {case.mode}"
    benchmark.pedantic(turn, rounds=plan.rounds)
    if benchmark.disabled:
        return
    of_copy = ratio_of(times[1], times[0])
    benchmark.extra_info |= {
        "kernel": case.kernel,
        "layers": list(case.gradient.layers),
        "layer": case.gradient.label,
        "shape": list(case.gradient.shape),
        "dtype": case.dtype,
        "n": case.n,
        "m": case.m,
        "mode": case.rule.mode,
        "rescale": case.rule.rescale,
        "device": plan.device.type,
        "tensor_bytes": bytes_of(grad),
        "bytes": least_bytes,
        "seconds": of_copy.second_s,
        "gb_per_s": least_bytes / of_copy.second_s / 1e9,
        "copy": name,
        "copies_gb_per_s": fastest_copies[key],
        "copy_gb_per_s": copied_bytes / of_copy.first_s / 1e9,
        "fraction_of_copy": fraction_of_copy(of_copy, least_bytes / copied_bytes),
    }


def fraction_of_copy(copy_over_kernel: Ratio, bytes_over_copied: float) -> dict[str, float]:
    """Return the kernel's rate (bytes per second) as a fraction of the copy's rate."""
    return {name: bytes_over_copied * getattr(copy_over_kernel, name) for name in ("median", "low", "high", "least")}


def rates(ways: dict[str, Callable[[], object]], moved_bytes: int, watch: Watch) -> dict[str, float]:
    """Return the GB/s of each way to copy, from median times over interleaved rounds."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(1 + COPY_ROUNDS):
        for name, function in ways.items():
            seconds = watch.time(function)
            if turn:  # the first round is a warm-up
                times[name].append(seconds)
    return {name: moved_bytes / sorted(found)[len(found) // 2] / 1e9 for name, found in times.items()}


def compare(
    others: dict[str, Callable[[], Tensor]],
    rounds: int,
    plan: Plan,
    watch: Watch,
    kernel: Callable[[], object],
    expected: Tensor,
) -> dict[str, dict[str, Any]]:
    """Return the time of each alternative relative to the kernel's, measured in alternation with it."""
    found: dict[str, dict[str, Any]] = {}
    for name, function in others.items():
        try:
            result = function()
        except (
            RuntimeError
        ) as error:  # torch.compile has no compiler, or a kernel of torch does not support this device
            found[name] = {"failed": " ".join(str(error).split())[:300]}
            continue
        same = bool(torch.equal(result, expected))
        del result
        times: tuple[list[float], list[float]] = ([], [])
        watch.time(function)
        began = time.monotonic()
        for turn in range(rounds):
            for which in (0, 1) if turn % 2 == 0 else (1, 0):
                times[which].append(watch.time((function, kernel)[which]))
            if turn + 1 >= LEAST_ROUNDS and time.monotonic() - began > SLOW_BUDGET_S[plan.device.type]:
                break
        ratio: Ratio = ratio_of(*times)
        found[name] = {
            "seconds": ratio.first_s,
            "same_values": same,
            "pairs": len(times[0]),
            "times_as_long": asdict(ratio),
        }
    return found


def bytes_of(tensor: Tensor) -> int:
    return math.prod(tensor.shape) * tensor.element_size()
