"""Comparison of compiled pruning kernels with their definition on small random gradients.

A library is compared before its first use on a machine (`kernels.cpu.library`). The gradients have several tiles of the
widest vectors, so that every lane is tested, with and without equal magnitudes. No number is subnormal, because this
process may flush subnormal numbers to zero.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from kernels.prune import reference
from kernels.prune.arguments import dtype_name
from kernels.prune.rule import MODES, SCOPES, PruneRule

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
# Largest relative error of a rescaled value: from the order of fp32 sums, plus one unit in the last place.
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 2.0**-7, torch.float16: 2.0**-10}
WHOLE, OTHER = (2, 4, 8, 16, 32), (3, 7, 13, 31)  # groups of the fast paths, and others
Shape = tuple[int, ...]
SMALL: Shape = (2, 96, 3, 5)
WORDS: Shape = (3, 64, 4, 5)
ROWS: Shape = (30, 128)  # like WORDS, it has whole 64-bit words of keep bits
MANY: Shape = (4, 96, 8, 8)  # several blocks of work, for several threads
STREAMED_BYTES = 16 << 20  # `streaming_bytes` of prune_nm.cpp
THREADS = 3
SEED = 2**63 + 2**33 + 7


class Pruning(Protocol):
    """Kernels that prune `grad` into `pruned`, both dense in channels-last order, and into what is kept."""

    def prune(self, grad: Tensor, pruned: Tensor, rule: PruneRule, seed: int, threads: int) -> None: ...

    def compress(
        self, grad: Tensor, values: Tensor, channels: Tensor, rule: PruneRule, seed: int, threads: int
    ) -> None: ...


class Case(NamedTuple):
    """A gradient of this shape and dtype, and the rule that prunes it."""

    shape: Shape
    dtype: torch.dtype
    rule: PruneRule

    def __str__(self) -> str:
        rule = self.rule
        rescaled = "" if rule.rescale == "none" else f" rescaled by {rule.rescale}"
        return f"{rule.mode} {rule.n}:{rule.m}{rescaled} of {dtype_name(self.dtype)} {self.shape}"

    def gradient(self) -> Tensor:
        """Return the gradient. It has infinities and NaN only if nothing is rescaled, because they would spread."""
        return _gradient(self.shape, self.dtype, special=self.rule.rescale == "none")


@functools.lru_cache(maxsize=32)
def _gradient(shape: Shape, dtype: torch.dtype, *, special: bool) -> Tensor:
    """Return a gradient. The magnitudes of its first half differ within every group; many of the others are equal."""
    generator = torch.Generator().manual_seed(len(shape))
    pixels, channels = shape[0] * math.prod(shape[2:]), shape[1]
    order = torch.rand(pixels, 64, generator=generator, dtype=torch.float32).argsort(1)
    distinct = (1 + order / 64).repeat(1, -(-channels // 64))[:, :channels]
    scale = 2.0 ** torch.randint(-3, 4, (pixels, 1), generator=generator)
    sign = torch.randint(0, 2, (pixels, channels), generator=generator) * 2 - 1
    equal = torch.randint(0, 4, (pixels, channels), generator=generator).float()
    if special:
        chance = torch.rand(pixels, channels, generator=generator, dtype=torch.float32)
        equal = equal.masked_fill(chance < 0.02, torch.inf).masked_fill(chance > 0.98, torch.nan)
    later = torch.arange(pixels)[:, None] > pixels // 2
    grad = torch.where(later, equal, distinct * scale) * sign
    return grad.to(dtype).reshape(shape[0], *shape[2:], channels).movedim(-1, 1)


def cases() -> Iterator[Case]:
    """Yield a case for each path of the kernels: number format, group, mode and scope."""
    for m in (*WHOLE, *OTHER):
        shapes = (SMALL,) if m in OTHER else (SMALL, WORDS)
        for mode, shape, dtype in itertools.product(MODES, shapes, DTYPES):
            for n in sorted({1, 2, m // 2, m}) if mode == "magnitude" else [m // 2]:
                yield Case(shape, dtype, PruneRule(n, m, mode))
    for m, shape, dtype in itertools.product((2, 8, 32, 7), (SMALL, ROWS), DTYPES):
        for scope in SCOPES[1:]:
            yield Case(shape, dtype, PruneRule(m // 2, m, "magnitude", scope))
    for dtype in DTYPES:
        for rule in (PruneRule(2, 4), PruneRule(3, 7), PruneRule(3, 8, "random"), PruneRule(2, 4, "unbiased")):
            yield Case(MANY, dtype, rule)
        for scope in SCOPES[1:]:
            yield Case(MANY, dtype, PruneRule(2, 4, "magnitude", scope))
        # Chunks whose random numbers do not start at a whole Philox block.
        yield Case((200, 28), dtype, PruneRule(2, 4, "random", "channel"))
    yield from (Case(ROWS, dtype, PruneRule(n, 32)) for dtype in DTYPES for n in (1, 2))


def of_pruning(kernel: Pruning) -> str:
    """Compare kernels with their definition; return the first case that differs, empty if all agree."""
    for case in cases():
        if not prunes(kernel, case):
            return f"prune_nm, {case}"
        if not compresses(kernel, case):
            return f"compress_nm, {case}"
    return next((f"prune_nm past the caches, {case}" for case in _streamed() if not streams(kernel, case)), "")


def prunes(kernel: Pruning, case: Case) -> bool:
    """Return whether a kernel prunes as defined, with one thread and several, into a result and in place."""
    grad = case.gradient()
    expected = reference.prune_nm(grad, case.rule, SEED)
    pruned, in_place = torch.full_like(grad, torch.nan), grad.clone()
    kernel.prune(grad, pruned, case.rule, SEED, 1)
    kernel.prune(in_place, in_place, case.rule, SEED, THREADS)
    return _agree(pruned, expected, case) and _equal(in_place, pruned)


def compresses(kernel: Pruning, case: Case) -> bool:
    """Return whether a kernel compresses as defined, with one thread and several."""
    grad = case.gradient()
    expected, places = reference.compress_nm(grad, case.rule, SEED)
    results = []
    for threads in (1, THREADS):
        values, channels = torch.full_like(expected, torch.nan), torch.full_like(places, -1)
        kernel.compress(grad, values, channels, case.rule, SEED, threads)
        results.append(values)
        if not torch.equal(channels, places):
            return False
    return _agree(results[0], expected, case) and _equal(results[1], results[0])


def _streamed() -> Iterator[Case]:
    """Yield cases. The kernel writes past the caches only where the groups are those of its fast path."""
    for dtype in DTYPES:
        for rule in (PruneRule(2, 4), PruneRule(3, 7), PruneRule(4, 8, "random"), PruneRule(4, 8, "unbiased")):
            yield Case(SMALL, dtype, rule)


def streams(kernel: Pruning, case: Case) -> bool:
    """Compare a result that is written past the caches with a result in place, which is not."""
    part = case.gradient()
    rows = part.movedim(1, -1).reshape(-1, part.shape[1])
    copies = -(-STREAMED_BYTES // (rows.numel() * rows.element_size()))
    grad = rows.repeat(copies, 1)
    pruned = torch.empty_like(grad)
    kernel.prune(grad, pruned, case.rule, SEED, THREADS)
    kernel.prune(grad, grad, case.rule, SEED, THREADS)
    return torch.equal(pruned.view(torch.int16), grad.view(torch.int16))


def _agree(found: Tensor, expected: Tensor, case: Case) -> bool:
    """Return whether a result is the expected one: bit for bit, or within `TOLERANCE` if it is rescaled."""
    if case.rule.rescale == "none":
        return _equal(found, expected)
    kept = torch.equal(found == 0, expected == 0)
    return kept and torch.allclose(found, expected, rtol=TOLERANCE[case.dtype], atol=0.0)


def _equal(one: Tensor, other: Tensor) -> bool:
    """Return whether two results have the same bits. All NaNs count as the same."""
    integers = torch.int32 if one.element_size() == 4 else torch.int16
    same = (one.view(integers) == other.view(integers)) | (one.isnan() & other.isnan())
    return bool(same.all())
