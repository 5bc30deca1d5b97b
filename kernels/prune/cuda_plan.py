"""Plans of the CUDA kernels that prune a gradient, computed from its shape and equal on every machine.

No code here touches a device. The tests execute the same plans on the CPU.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from kernels.cuda.plan import FORMATS, Launch
from kernels.prune.rule import PruneRule

SOURCE = "prune_nm.cu"
THREADS = 256
FAST_GROUPS = (2, 4, 8, 16, 32)
QUAD_BYTES = 16  # bytes of one load or store
SUM_FLOATS = 8  # elements of a unit that cross shared memory at a time, each with two sums
# Two blocks share a multiprocessor when each takes no more than this (H100 has 227 KiB, A100 163 KiB).
PREFERRED_SHARED_BYTES = 80 * 1024
ANY_PART = 256  # terms that a thread of the slow kernels adds sequentially
PART_BLOCKS = 1024  # blocks that sum a batch: several per multiprocessor


@dataclass(frozen=True)
class Shape:
    """Shape of a gradient in channels-last order; the rows of a matrix are samples with one pixel."""

    samples: int
    pixels: int
    channels: int
    matrix: bool = False

    @property
    def elements(self) -> int:
        return self.samples * self.pixels * self.channels


@dataclass(frozen=True)
class Plan:
    """Launches in order, and the names and lengths of their fp32 workspaces. Plans are cached: do not modify them."""

    launches: tuple[Launch, ...]
    workspaces: dict[str, int]


@functools.lru_cache(maxsize=4096)  # every training step needs the same few plans
def plan_prune(shape: Shape, dtype: str, rule: PruneRule, aligned: bool, most_shared_bytes: int) -> Plan:
    """Plan `prune_nm` of a nonempty gradient.

    Args:
        shape: Shape of the gradient.
        dtype: Key of `FORMATS`.
        rule: Channels to keep, and how to rescale them.
        aligned: Whether gradient and result begin at a multiple of 16 bytes.
        most_shared_bytes: Limit of shared memory per block on the device.
    """
    name, size = FORMATS[dtype]
    least = 8 if rule.mode == "random" else QUAD_BYTES // size
    unit = max(rule.m, least)  # elements of a thread's unit, as in unit.cuh
    fast = rule.m in FAST_GROUPS and shape.channels % rule.m == 0 and aligned
    template = f"<{name}, {rule.m}, {rule.n}, {_mode(rule)}"
    if fast and rule.rescale in ("none", "group"):
        return Plan((_units(shape, template, unit * size // QUAD_BYTES, unit, rule.rescale == "group"),), {})
    if fast and shape.channels % unit == 0:
        if rule.rescale == "channel":
            return _by_channel(shape, template, unit, size)
        if shape.matrix:
            return Plan((_by_row(shape, template, unit),), {})
        return Plan((_by_sample(shape, template, unit, size, most_shared_bytes),), {})
    return _any_shape(shape, name, rule)


def _units(shape: Shape, template: str, quads: int, unit: int, rescale: bool) -> Launch:
    in_flight = max(1, 4 // quads)
    units = max(1, shape.elements // unit)  # the first thread also handles the remainder of a unit
    return Launch(
        f"pdt::prune_units{template}, {'true' if rescale else 'false'}>",
        -(-units // (THREADS * in_flight)),
        (THREADS, 1),
        0,
        (("grad", "pointer"), ("pruned", "pointer"), (shape.elements, "int64")),
        seeded=True,
        source=SOURCE,
    )


def _by_sample(shape: Shape, template: str, unit: int, size: int, most_shared_bytes: int) -> Launch:
    units_per_pixel = shape.channels // unit
    unit_bytes = unit * size

    def geometry(slab_bytes: int, stash: bool) -> tuple[int, int, int]:
        """Return columns and rows of a block, and its shared memory in bytes."""
        columns = min(max(1, slab_bytes // unit_bytes), units_per_pixel)
        rows = max(1, min(THREADS // columns, shape.pixels))
        stashed = shape.pixels * columns * unit_bytes if stash else 0
        return columns, rows, _sum_bytes(unit, columns * rows) + 4 * unit * columns + stashed

    # Slabs of 128 and 64 bytes use whole memory sectors; 32 bytes are one sector.
    for slab_bytes, limit in ((128, PREFERRED_SHARED_BYTES), (64, PREFERRED_SHARED_BYTES), (64, most_shared_bytes),
                              (32, most_shared_bytes)):  # fmt: skip
        columns, rows, shared_bytes = geometry(slab_bytes, True)
        if shared_bytes <= min(limit, most_shared_bytes):
            stash = True
            break
    else:
        columns, rows, shared_bytes = geometry(128, False)
        stash = False
    slabs = -(-units_per_pixel // columns)
    return Launch(
        f"pdt::prune_and_rescale_samples{template}, {'true' if stash else 'false'}>",
        shape.samples * slabs,
        (columns, rows),
        shared_bytes,
        (
            ("grad", "pointer"),
            ("pruned", "pointer"),
            (shape.pixels, "int32"),
            (units_per_pixel, "int32"),
            (slabs, "int32"),
        ),
        seeded=True,
        source=SOURCE,
    )


def _by_channel(shape: Shape, template: str, unit: int, size: int) -> Plan:
    pixels = shape.samples * shape.pixels
    units_per_pixel = shape.channels // unit
    columns = min(max(1, 128 // (unit * size)), units_per_pixel)
    rows = THREADS // columns
    slabs = -(-units_per_pixel // columns)
    pixels_per_part = max(rows, -(-pixels // max(1, PART_BLOCKS // slabs)))
    parts = -(-pixels // pixels_per_part)
    return Plan(
        (
            Launch(
                f"pdt::sum_channels{template}>",
                parts * slabs,
                (columns, rows),
                _sum_bytes(unit, columns * rows),
                (
                    ("grad", "pointer"),
                    ("sums", "pointer"),
                    (pixels, "int64"),
                    (pixels_per_part, "int64"),
                    (units_per_pixel, "int32"),
                    (slabs, "int32"),
                ),
                seeded=True,
                source=SOURCE,
            ),
            _finish(parts, shape.channels),
            Launch(
                f"pdt::prune_and_multiply{template}>",
                _blocks(pixels * units_per_pixel),
                (THREADS, 1),
                0,
                (
                    ("grad", "pointer"),
                    ("pruned", "pointer"),
                    ("ratio", "pointer"),
                    (pixels * units_per_pixel, "int64"),
                    (units_per_pixel, "int32"),
                ),
                seeded=True,
                source=SOURCE,
            ),
        ),
        {"sums": 2 * parts * shape.channels, "ratio": shape.channels},
    )


def _by_row(shape: Shape, template: str, unit: int) -> Launch:
    units_per_row = shape.channels // unit
    threads = 32
    while threads < min(units_per_row, THREADS):
        threads *= 2
    return Launch(
        f"pdt::prune_and_rescale_rows{template}>",
        shape.samples,
        (threads, 1),
        8 * threads,
        (("grad", "pointer"), ("pruned", "pointer"), (units_per_row, "int32")),
        seeded=True,
        source=SOURCE,
    )


def _any_shape(shape: Shape, name: str, rule: PruneRule) -> Plan:
    power = next(size for size in FAST_GROUPS if size >= rule.m)
    groups = shape.samples * shape.pixels * -(-shape.channels // rule.m)
    prune = Launch(
        f"pdt::prune_any<{name}, {power}, {rule.n}, {_mode(rule)}, {'true' if rule.rescale == 'group' else 'false'}>",
        _blocks(groups),
        (THREADS, 1),
        0,
        (("grad", "pointer"), ("pruned", "pointer"), (groups, "int64"), (shape.channels, "int32"), (rule.m, "int32")),
        seeded=True,
        source=SOURCE,
    )
    if rule.rescale in ("none", "group"):
        return Plan((prune,), {})
    channels, sample = shape.channels, shape.pixels * shape.channels
    if rule.rescale == "channel":
        outputs, width, jump, count, stride = channels, channels, shape.elements, shape.samples * shape.pixels, channels
    elif shape.matrix:
        outputs, width, jump, count, stride = shape.samples, 1, channels, channels, 1
    else:
        outputs, width, jump, count, stride = shape.samples * channels, channels, sample, shape.pixels, channels
    by_row = rule.rescale == "sample_channel" and shape.matrix
    parts = -(-count // ANY_PART)
    sums = Launch(
        f"pdt::sum_any<{name}>",
        _blocks(outputs * parts),
        (THREADS, 1),
        0,
        (
            ("grad", "pointer"),
            ("pruned", "pointer"),
            ("sums", "pointer"),
            (outputs, "int64"),
            (parts, "int64"),
            (width, "int64"),
            (jump, "int64"),
            (count, "int64"),
            (ANY_PART, "int64"),
            (stride, "int64"),
        ),
        seeded=False,
        source=SOURCE,
    )
    multiply = Launch(
        f"pdt::multiply_any<{name}>",
        _blocks(shape.elements),
        (THREADS, 1),
        0,
        (
            ("pruned", "pointer"),
            ("ratio", "pointer"),
            (shape.elements, "int64"),
            (width, "int64"),
            (jump, "int64"),
            (int(by_row), "int32"),
        ),
        seeded=False,
        source=SOURCE,
    )
    return Plan((prune, sums, _finish(parts, outputs), multiply), {"sums": 2 * parts * outputs, "ratio": outputs})


def _finish(parts: int, outputs: int) -> Launch:
    return Launch(
        "pdt::finish_channels",
        _blocks(outputs),
        (THREADS, 1),
        0,
        (("sums", "pointer"), ("ratio", "pointer"), (parts, "int32"), (outputs, "int64")),
        seeded=False,
        source=SOURCE,
    )


def _mode(rule: PruneRule) -> str:
    return f"pdt::mode_{rule.mode}"


def _sum_bytes(unit: int, threads: int) -> int:
    return 4 * 2 * min(unit, SUM_FLOATS) * threads


def _blocks(threads: int) -> int:
    return -(-threads // THREADS)
