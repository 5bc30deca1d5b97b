"""Taps that lie side by side in one kernel, which share what they read."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kernels.sparse_conv.taps import Integers, Pair, Taps, Window

# (rows, columns) of taps; the first that fits takes them.
SQUARE, PAIR, SINGLE = (2, 2), (1, 2), (1, 1)
KINDS = (SQUARE, PAIR, SINGLE)


class Groups(NamedTuple):
    """Taps that are neighbours: the first of each group, (groups,), and the numbers of all, (groups, taps each)."""

    made: Integers
    read: Integers
    down: Integers
    right: Integers
    number: Integers

    def taken(self, which: Integers) -> Groups:
        return Groups(*(column[which] for column in self))

    def offset(self, window: Window) -> NDArray[np.int32]:
        return Taps(self.made, self.read, self.down, self.right, self.number[:, 0]).offset(window)


def neighbours(taps: Taps, step: Pair) -> list[Groups]:
    """Takes taps together that lie side by side in one kernel: squares first, then pairs, and what is left.

    Args:
        taps: of one product.
        step: how far apart neighbouring places of the result read; where they lie apart, neighbours share nothing.
    """
    may = {SQUARE: step == (1, 1), PAIR: step[1] == 1, SINGLE: True}
    columns_apart = np.diff(np.unique(taps.right))  # by more than one where the kernel is dilated
    if not may[PAIR] or not (columns_apart == 1).any():
        no = taps.made[:0]
        none = [Groups(no, no, no, no, no.reshape(0, rows * columns)) for rows, columns in KINDS[:2]]
        return [*none, Groups(taps.made, taps.read, taps.down, taps.right, taps.number[:, None])]
    down, right = taps.down - taps.down.min(), taps.right - taps.right.min()
    sizes = [int(column.max()) + 1 for column in (taps.made, taps.read, down, right)]
    where = np.full(sizes, -1, np.int64)
    where[taps.made, taps.read, down, right] = np.arange(len(taps.made))
    found = []
    for rows, columns in KINDS:
        parts = [np.empty((0, rows * columns), np.int64)]
        for i in range(sizes[2] - rows + 1) if may[rows, columns] else ():
            for j in range(sizes[3] - columns + 1):
                patch = where[:, :, i : i + rows, j : j + columns]
                whole = (patch >= 0).all((2, 3))
                parts.append(patch[whole].reshape(-1, rows * columns))
                patch[whole] = -1
        members = np.concatenate(parts)
        first = members[:, 0]
        found.append(
            Groups(taps.made[first], taps.read[first], taps.down[first], taps.right[first], taps.number[members])
        )
    return found
