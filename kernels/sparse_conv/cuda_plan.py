"""Plans of the CUDA kernels for a convolution with a fixed sparsity mask, and their lists of taps.

No code here touches a device. The tests execute the same plans on the CPU.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kernels.cuda.plan import FORMATS, Launch
from kernels.sparse_conv.neighbours import KINDS, PAIR, SINGLE, SQUARE, neighbours
from kernels.sparse_conv.taps import Integers, Pair, Taps, Window

SOURCE = "sparse_conv.cu"
LANES = 32
WARPS = 4  # warps of a block that sums
TURNING_WARPS = 8  # warps of a block that converts into blocks or out of them
TURNED_BYTES = 4 * LANES * (LANES + 1)
# Groups of each kind whose weight gradients one block sums together: as many as fit in the registers of a thread.
GROUPS = {SQUARE: 4, PAIR: 4, SINGLE: 6}
STEPS = (1, 2)
TILES = ((4, 4), (2, 4), (2, 2))  # positions that a thread sums; larger tiles share more input values
# Assumed, not measured, for a GPU with 132 multiprocessors: the number of warps that fill it, and the multiple of that
# number into which a weight gradient is divided, so that the device is rarely idle at the end.
ENOUGH_WARPS = 16 * 132
TURNS = 4


@dataclass(frozen=True)
class SumLists:
    """Lists that `sum_taps` reads in addition to activations.

    Attributes:
        order: Channels of the result, those with most taps first, so that adjacent warps have similar numbers of taps.
        first: (kinds, channels + 1), index at which the groups of each channel begin, in that order.
        offset: Memory offset that the first tap of each group reads.
        nonzero_index: Index of each value among the taps of the weight.
        squares, pairs: Number of groups of these kinds.
    """

    order: NDArray[np.int32]
    first: NDArray[np.int32]
    offset: NDArray[np.int32]
    nonzero_index: Integers
    squares: int
    pairs: int


def sum_lists(taps: Taps, step: Pair, channels: int, window: Window) -> SumLists:
    """List the groups of a product that reads an image in `window`."""
    order = np.argsort(-np.bincount(taps.out_channel, minlength=channels), kind="stable")
    rank = np.empty(channels, np.int64)
    rank[order] = np.arange(channels)
    # Sorted by input channel, so that the warps of a block read the same input at about the same time.
    kinds = [
        groups.select(np.lexsort((groups.in_channel, rank[groups.out_channel]))) for groups in neighbours(taps, step)
    ]
    first = [np.searchsorted(rank[groups.out_channel], np.arange(channels + 1)) for groups in kinds]
    return SumLists(
        order.astype(np.int32),
        np.stack(first).astype(np.int32),
        np.concatenate([groups.offset(window) for groups in kinds]),
        np.concatenate([groups.nonzero_index.ravel() for groups in kinds]),
        len(kinds[0].out_channel),
        len(kinds[1].out_channel),
    )


@dataclass(frozen=True)
class ProductSets:
    """Lists that `sum_products` reads in addition to activations, for one kind of groups.

    Attributes:
        kind: Kind of the groups, one of `KINDS`.
        out_channel: (sets,), output channel of each set.
        offset: (sets, groups), memory offset that the first tap of each group reads. An incomplete set repeats its
            first group.
        nonzero_index: (sets, groups, taps), index among the taps of the weight; -1 in the missing groups of a set.
    """

    kind: Pair
    out_channel: Integers
    offset: NDArray[np.int32]
    nonzero_index: Integers

    @property
    def shape(self) -> tuple[Pair, int]:
        """Return the kind and the number of sets, which determine a plan."""
        return self.kind, len(self.out_channel)


def product_sets(taps: Taps, step: Pair, window: Window) -> list[ProductSets]:
    """List sets of groups, each of one output channel, without kinds that do not occur."""
    found = []
    for kind, unsorted in zip(KINDS, neighbours(taps, step), strict=True):
        if not len(unsorted.out_channel):
            continue
        groups, each = unsorted.select(np.lexsort((unsorted.in_channel, unsorted.out_channel))), GROUPS[kind]
        channel, begin, count = np.unique(groups.out_channel, return_index=True, return_counts=True)
        sets = -(-count // each)
        place = np.arange(len(groups.out_channel)) - np.repeat(begin, count)  # place within the channel
        which = np.repeat(np.cumsum(sets) - sets, count) + place // each
        offset = np.zeros((int(sets.sum()), each), np.int32)
        nonzero_index = np.full((*offset.shape, kind[0] * kind[1]), -1, np.int64)
        offset[which, place % each] = groups.offset(window)
        nonzero_index[which, place % each] = groups.nonzero_index
        offset = np.where(nonzero_index[:, :, 0] < 0, offset[:, :1], offset)
        found.append(ProductSets(kind, np.repeat(channel, sets), offset, nonzero_index))
    return found


def images_of_block(dtype: str) -> int:
    """Return the number of images whose values fit the words of a warp."""
    return LANES * 4 // FORMATS[dtype][1]


@functools.lru_cache(maxsize=4096)  # every training step needs the same few plans
def plan_to_blocks(shape: tuple[int, ...], window: Window, dtype: str, *, last: bool) -> Launch:
    """Plan the conversion of `plain`, (N, C, H, W) in channels-last (`last`) or contiguous order, into `blocked`."""
    return _turn("to_blocks", ("plain", "blocked"), shape, window, shape[1] * window.plane, dtype, last)


@functools.lru_cache(maxsize=4096)
def plan_from_blocks(shape: tuple[int, ...], window: Window, dtype: str, *, last: bool) -> Launch:
    """Plan the conversion of `blocked` back into `plain`."""
    return _turn(
        "from_blocks", ("blocked", "plain"), shape, window, shape[1] * window.rows * window.columns, dtype, last
    )


def _turn(
    kernel: str, names: tuple[str, str], shape: tuple[int, ...], window: Window, elements: int, dtype: str, last: bool
) -> Launch:
    blocks = -(-shape[0] // images_of_block(dtype))
    return Launch(
        f"pdt::{kernel}<{FORMATS[dtype][0]}, {str(last).lower()}>",
        -(-elements // LANES) * blocks,
        (LANES, TURNING_WARPS),
        TURNED_BYTES,
        (*((name, "pointer") for name in names), *((n, "int32") for n in (shape[0], shape[1], *window))),
        seeded=False,
        source=SOURCE,
    )


@dataclass(frozen=True)
class Grid:
    """Positions of a result and their memory layout. Distances are in vectors of 32 words.

    Attributes:
        rows, columns: Size of the result.
        step: Distance in rows and columns between the input positions that adjacent results read.
        in_block, in_row: Distances of blocks and rows in the input.
        begin, block, plane, row, column: Offset of the first position of the result, and distances of blocks, channels,
            rows and columns in it. For a weight gradient, those of dO.
    """

    rows: int
    columns: int
    step: Pair
    in_block: int
    in_row: int
    begin: int
    block: int
    plane: int
    row: int
    column: int

    @property
    def tile_step(self) -> int:
        """Return the distance of columns for which a kernel is specialised, or 0 for the general kernel."""
        return self.step[1] if self.step[1] in STEPS else 0


def tile_of(rows: int, columns: int, warps_each: int) -> Pair:
    """Return the largest tile that fits and fills the device with warps, otherwise the smallest tile that fits."""
    fit = [tile for tile in TILES if tile[0] <= rows and tile[1] <= columns]
    enough = [tile for tile in fit if warps_each * _tiles(tile, rows, columns) >= ENOUGH_WARPS]
    return next(iter(enough or fit[::-1]), (1, 1))


def _tiles(tile: Pair, rows: int, columns: int) -> int:
    return -(-rows // tile[0]) * -(-columns // tile[1])


@functools.lru_cache(maxsize=4096)
def plan_sum(grid: Grid, channels: int, squares: int, pairs: int, blocks: int, dtype: str) -> Launch:
    """Plan the sum of the taps of `in` into `out`, by the lists `order`, `first` and `offset` and each tap's `value`.

    Args:
        grid: Layout of the result.
        channels: Channels of the result.
        squares, pairs: Number of groups of these kinds.
        blocks: Blocks of images.
        dtype: Dtype of activations, a key of `FORMATS`.
    """
    tile = tile_of(grid.rows, grid.columns, channels * blocks)
    return Launch(
        f"pdt::sum_taps<{FORMATS[dtype][0]}, {tile[0]}, {tile[1]}, {grid.tile_step}>",
        -(-channels // WARPS) * _tiles(tile, grid.rows, grid.columns) * blocks,
        (LANES, WARPS),
        0,
        (
            *((name, "pointer") for name in ("in", "out", "order", "first", "offset", "value")),
            *((n, "int32") for n in (squares, pairs, grid.rows, grid.columns, channels)),
            (grid.in_block, "int64"),
            (grid.step[0] * grid.in_row, "int32"),
            (grid.step[1], "int32"),
            *((n, "int64") for n in (grid.begin, grid.block, grid.plane, grid.row)),
            (grid.column, "int32"),
        ),
        seeded=False,
        source=SOURCE,
    )


@dataclass(frozen=True)
class ProductPlan:
    """Launches by kind of groups, the launch that adds the parts, and the numbers of parts and of sums in a part."""

    launches: tuple[Launch, ...]
    finish: Launch | None
    parts: int
    slots: int


@functools.lru_cache(maxsize=4096)
def plan_products(
    grid: Grid, sets: tuple[tuple[Pair, int], ...], blocks: int, dtype: str, weight_dtype: str
) -> ProductPlan:
    """Plan the sums of products of `in` and `grad` into `partial`, and of `partial` into `dense` at offsets `index`.

    The lists `plane` and `offset` of each kind are numbered (`plane0`, ...). The number of parts depends on the shapes
    only, so sums are reproducible.
    """
    if not sets:
        return ProductPlan((), None, 0, 0)
    total = sum(set_count for _, set_count in sets)
    slots = sum(set_count * GROUPS[kind] * kind[0] * kind[1] for kind, set_count in sets)
    tile = tile_of(grid.rows, grid.columns, ENOUGH_WARPS)
    units = blocks * _tiles(tile, grid.rows, grid.columns)
    parts = max(1, min(-(-TURNS * ENOUGH_WARPS // (total * WARPS)), -(-units // WARPS)))
    launches, first_slot = [], 0
    for kind, ((rows, columns), set_count) in enumerate(sets):
        each = GROUPS[rows, columns]
        name = f"{FORMATS[dtype][0]}, {tile[0]}, {tile[1]}, {grid.tile_step}, {rows}, {columns}, {each}"
        pointers = ("in", "grad", f"plane{kind}", f"offset{kind}", "partial")
        launches.append(
            Launch(
                f"pdt::sum_products<{name}>",
                set_count * parts,
                (LANES, WARPS),
                4 * WARPS * each * rows * columns,
                (
                    *((pointer, "pointer") for pointer in pointers),
                    *((n, "int32") for n in (set_count, parts, blocks, grid.rows, grid.columns)),
                    (grid.in_block, "int64"),
                    (grid.step[0] * grid.in_row, "int32"),
                    (grid.step[1], "int32"),
                    (grid.begin, "int64"),
                    (grid.block, "int64"),
                    *((n, "int32") for n in (grid.row, first_slot, slots)),
                ),
                seeded=False,
                source=SOURCE,
            )
        )
        first_slot += set_count * each * rows * columns
    finish = Launch(
        f"pdt::finish_products<{FORMATS[weight_dtype][0]}>",
        -(-slots // 256),
        (256, 1),
        0,
        (*((name, "pointer") for name in ("partial", "dense", "index")), (parts, "int32"), (slots, "int32")),
        seeded=False,
        source=SOURCE,
    )
    return ProductPlan(tuple(launches), finish, parts, slots)
