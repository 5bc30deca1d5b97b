"""Which CUDA kernels a convolution that skips weights needs, and their lists of taps: plain arithmetic.

Nothing here touches a device: the tests carry out the same plans on the CPU.
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
WARPS = 4  # of a block that sums
TURNING_WARPS = 8  # of a block that brings into blocks or out of them
TURNED_BYTES = 4 * LANES * (LANES + 1)
# Groups of each kind whose weight gradients a block sums together: as many as leave a thread's sums in registers.
GROUPS = {SQUARE: 4, PAIR: 4, SINGLE: 6}
STEPS = (1, 2)
TILES = ((4, 4), (2, 4), (2, 2))  # places that a thread sums; the larger, the more taps share of what they read
# What a GPU of 132 multiprocessors is taken to want, assumed and not measured: so many warps at a time, and a weight
# gradient in so many times as many, so that the last ones to end leave little of it idle.
ENOUGH_WARPS = 16 * 132
TURNS = 4


@dataclass(frozen=True)
class SumLists:
    """What `sum_taps` reads beside activations.

    Attributes:
        order: channels of the result, those with most taps first, so that warps side by side have about as many.
        first: (kinds, channels + 1), where each channel's groups begin, in that order.
        offset: by group.
        number: of each value, in the compact form of the weight.
        squares, pairs: how many groups there are of these kinds.
    """

    order: NDArray[np.int32]
    first: NDArray[np.int32]
    offset: NDArray[np.int32]
    number: Integers
    squares: int
    pairs: int


def sum_lists(taps: Taps, step: Pair, channels: int, window: Window) -> SumLists:
    """Lists the groups of a product that reads what lies in `window`."""
    order = np.argsort(-np.bincount(taps.made, minlength=channels), kind="stable")
    place = np.empty(channels, np.int64)
    place[order] = np.arange(channels)
    # By input channel, so that the warps of a block read the same input at about the same time.
    kinds = [groups.taken(np.lexsort((groups.read, place[groups.made]))) for groups in neighbours(taps, step)]
    first = [np.searchsorted(place[groups.made], np.arange(channels + 1)) for groups in kinds]
    return SumLists(
        order.astype(np.int32),
        np.stack(first).astype(np.int32),
        np.concatenate([groups.offset(window) for groups in kinds]),
        np.concatenate([groups.number.ravel() for groups in kinds]),
        len(kinds[0].made),
        len(kinds[1].made),
    )


@dataclass(frozen=True)
class ProductSets:
    """What `sum_products` reads beside activations, for one kind of groups.

    Attributes:
        kind: of the groups, one of `KINDS`.
        channel: (sets,), the output channel of each.
        offset: (sets, groups); a set that is not full repeats its first.
        number: (sets, groups, taps), in the compact form of the weight; -1 where a set is not full.
    """

    kind: Pair
    channel: Integers
    offset: NDArray[np.int32]
    number: Integers

    @property
    def shape(self) -> tuple[Pair, int]:
        """The kind, and how many sets there are: all that a plan asks."""
        return self.kind, len(self.channel)


def product_sets(taps: Taps, step: Pair, window: Window) -> list[ProductSets]:
    """Lists sets of groups of one output channel each; kinds that do not occur are left out."""
    found = []
    for kind, unsorted in zip(KINDS, neighbours(taps, step), strict=True):
        if not len(unsorted.made):
            continue
        groups, each = unsorted.taken(np.lexsort((unsorted.read, unsorted.made))), GROUPS[kind]
        channel, begin, count = np.unique(groups.made, return_index=True, return_counts=True)
        sets = -(-count // each)
        rank = np.arange(len(groups.made)) - np.repeat(begin, count)
        which = np.repeat(np.cumsum(sets) - sets, count) + rank // each
        offset = np.zeros((int(sets.sum()), each), np.int32)
        number = np.full((*offset.shape, kind[0] * kind[1]), -1, np.int64)
        offset[which, rank % each] = groups.offset(window)
        number[which, rank % each] = groups.number
        offset = np.where(number[:, :, 0] < 0, offset[:, :1], offset)
        found.append(ProductSets(kind, np.repeat(channel, sets), offset, number))
    return found


def images_of_block(dtype: str) -> int:
    """Images whose numbers fit the words of a warp."""
    return LANES * 4 // FORMATS[dtype][1]


@functools.lru_cache(maxsize=4096)  # a training asks for the same few in every step
def plan_to_blocks(shape: tuple[int, ...], window: Window, dtype: str, *, last: bool) -> Launch:
    """Brings `plain`, (N, C, H, W) dense in channels-last (`last`) or contiguous order, into `blocked`."""
    return _turn("to_blocks", ("plain", "blocked"), shape, window, shape[1] * window.plane, dtype, last)


@functools.lru_cache(maxsize=4096)
def plan_from_blocks(shape: tuple[int, ...], window: Window, dtype: str, *, last: bool) -> Launch:
    """Brings `blocked` back into `plain`."""
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
    """Places of a result and how they lie in memory, distances in vectors of 32 words.

    Attributes:
        rows, columns: of the result.
        step: rows and columns between what neighbouring places read.
        in_block, in_row: of what is read.
        begin, block, plane, row, column: of the result (of dO, for a weight gradient).
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
        """The distance of columns that a kernel is compiled for; 0 for any other."""
        return self.step[1] if self.step[1] in STEPS else 0


def tile_of(rows: int, columns: int, warps_each: int) -> Pair:
    """The largest tile that fits and gives the device enough warps, else the smallest of those that fit."""
    fit = [tile for tile in TILES if tile[0] <= rows and tile[1] <= columns]
    enough = [tile for tile in fit if warps_each * _tiles(tile, rows, columns) >= ENOUGH_WARPS]
    return next(iter(enough or fit[::-1]), (1, 1))


def _tiles(tile: Pair, rows: int, columns: int) -> int:
    return -(-rows // tile[0]) * -(-columns // tile[1])


@functools.lru_cache(maxsize=4096)
def plan_sum(grid: Grid, channels: int, squares: int, pairs: int, blocks: int, dtype: str) -> Launch:
    """Sums the taps of `in` into `out`, with the lists `order`, `first`, `offset` and the `value` of each tap.

    Args:
        grid: of the result.
        channels: of the result.
        squares, pairs: groups of these kinds, as `SumLists` has them.
        blocks: of images.
        dtype: of activations, a key of `FORMATS`.
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
    """A launch for each kind of groups, and how many partial sums they leave, in so many parts."""

    launches: tuple[Launch, ...]
    finish: Launch | None
    parts: int
    slots: int


@functools.lru_cache(maxsize=4096)
def plan_products(
    grid: Grid, sets: tuple[tuple[Pair, int], ...], blocks: int, dtype: str, weight_dtype: str
) -> ProductPlan:
    """Sums products of `in` and `grad` into `partial`, by the lists `plane` and `offset` of each kind (`plane0` ...),
    and `partial` into `dense`, where `index` says. How a sum is parted depends on the shapes alone, so that it repeats.
    """
    if not sets:
        return ProductPlan((), None, 0, 0)
    count = sum(number for _, number in sets)
    slots = sum(number * GROUPS[kind] * kind[0] * kind[1] for kind, number in sets)
    tile = tile_of(grid.rows, grid.columns, ENOUGH_WARPS)
    units = blocks * _tiles(tile, grid.rows, grid.columns)
    parts = max(1, min(-(-TURNS * ENOUGH_WARPS // (count * WARPS)), -(-units // WARPS)))
    launches, first_slot = [], 0
    for place, ((down, right), number) in enumerate(sets):
        each = GROUPS[down, right]
        name = f"{FORMATS[dtype][0]}, {tile[0]}, {tile[1]}, {grid.tile_step}, {down}, {right}, {each}"
        pointers = ("in", "grad", f"plane{place}", f"offset{place}", "partial")
        launches.append(
            Launch(
                f"pdt::sum_products<{name}>",
                number * parts,
                (LANES, WARPS),
                4 * WARPS * each * down * right,
                (
                    *((pointer, "pointer") for pointer in pointers),
                    *((n, "int32") for n in (number, parts, blocks, grid.rows, grid.columns)),
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
        first_slot += number * each * down * right
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
