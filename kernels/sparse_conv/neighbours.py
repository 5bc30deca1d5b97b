"""Groups of adjacent taps of one kernel, which share the input values that they read."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kernels.sparse_conv.taps import Integers, Pair, Taps, Window

# Kinds of groups, (rows, columns) of taps, in order of precedence.
SQUARE, PAIR, SINGLE = (2, 2), (1, 2), (1, 1)
KINDS = (SQUARE, PAIR, SINGLE)


class Groups(NamedTuple):
    """Groups of adjacent taps.

    Attributes:
        out_channel, in_channel, row_offset, col_offset: (groups,), those of the first tap of each group; see `Taps`.
        nonzero_index: (groups, taps per group), those of all taps.
    """

    out_channel: Integers
    in_channel: Integers
    row_offset: Integers
    col_offset: Integers
    nonzero_index: Integers

    def select(self, which: Integers) -> Groups:
        """Return the groups at the given indices."""
        return Groups(*(column[which] for column in self))

    def offset(self, window: Window) -> NDArray[np.int32]:
        """Return the memory offset that the first tap of each group reads; see `Taps.offset`."""
        return Taps(*self[:4], self.nonzero_index[:, 0]).offset(window)


def neighbours(taps: Taps, step: Pair) -> list[Groups]:
    """Group adjacent taps of each kernel: first into squares, then into pairs, and the remaining taps into singles.

    Args:
        taps: Taps of one product.
        step: Distance in rows and columns between the input positions that adjacent results read. Adjacent taps share
            input values only if it is 1.

    Returns:
        The groups of each kind, in the order of `KINDS`.
    """
    allowed = {SQUARE: step == (1, 1), PAIR: step[1] == 1, SINGLE: True}
    column_distances = np.diff(np.unique(taps.col_offset))  # greater than 1 if the kernel is dilated
    if not allowed[PAIR] or not (column_distances == 1).any():
        empty = taps.out_channel[:0]
        none = [Groups(empty, empty, empty, empty, empty.reshape(0, rows * columns)) for rows, columns in KINDS[:2]]
        return [*none, Groups(*taps[:4], taps.nonzero_index[:, None])]

    # Enter each tap into a dense table (output channel, input channel, row, column).
    row, column = taps.row_offset - taps.row_offset.min(), taps.col_offset - taps.col_offset.min()
    sizes = [int(index.max()) + 1 for index in (taps.out_channel, taps.in_channel, row, column)]
    table = np.full(sizes, -1, np.int64)
    table[taps.out_channel, taps.in_channel, row, column] = np.arange(len(taps.out_channel))

    # Take groups of each kind out of the table, the largest kind first.
    groups = []
    for rows, columns in KINDS:
        parts = [np.empty((0, rows * columns), np.int64)]
        for i in range(sizes[2] - rows + 1) if allowed[rows, columns] else ():
            for j in range(sizes[3] - columns + 1):
                patch = table[:, :, i : i + rows, j : j + columns]
                complete = (patch >= 0).all((2, 3))
                parts.append(patch[complete].reshape(-1, rows * columns))
                patch[complete] = -1
        members = np.concatenate(parts)
        first = taps.select(members[:, 0])
        groups.append(Groups(*first[:4], taps.nonzero_index[members]))
    return groups
