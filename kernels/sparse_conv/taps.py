"""Where the weights of a convolution that are there find their input: index arithmetic, without a device or a tensor.

A *tap* is a weight that is there. For each product that sums taps (the output, and the data gradient by classes of
places that a stride tells apart) there is a list of them by channel of the result, with the distance of what each
reads; the lists depend on the mask and on sizes alone, so that a kernel's are made once.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Pair = tuple[int, int]
Integers = NDArray[np.int64]


class Window(NamedTuple):
    """An image within its border: rows and columns of both, and where the image begins."""

    rows: int
    columns: int
    top: int
    left: int
    padded_rows: int
    padded_columns: int

    @property
    def plane(self) -> int:
        return self.padded_rows * self.padded_columns


def without_border(size: Pair) -> Window:
    """An image alone."""
    return Window(*size, 0, 0, *size)


class Taps(NamedTuple):
    """Taps in the order of the result's channels, each an entry of (taps,).

    Attributes:
        made: channel of the result.
        read: channel of what is read.
        down, right: rows and columns from where the first place of the result lies in what is read, times the stride,
            to what the tap reads; negative where that is in the border.
        number: in the compact form of the weight.
    """

    made: Integers
    read: Integers
    down: Integers
    right: Integers
    number: Integers

    def taken(self, which: Integers | NDArray[np.bool_]) -> Taps:
        return Taps(*(column[which] for column in self))

    def first(self, channels: int) -> Integers:
        """Where each channel's taps begin, and where the last one's end: (channels + 1,)."""
        return np.searchsorted(self.made, np.arange(channels + 1)).astype(np.int64)

    def offset(self, window: Window) -> NDArray[np.int32]:
        """The distance in memory of what each tap reads, in places of (channel, H', W')."""
        row, column = self.down + window.top, self.right + window.left
        return (self.read * window.plane + row * window.padded_columns + column).astype(np.int32)


class PlaceClass(NamedTuple):
    """Places of an input whose gradients sum the same taps: the first, how many (a stride apart), and the taps."""

    first: Pair
    places: Pair
    taps: Taps


class ConvolutionTaps:
    """The taps of a convolution, for its three products.

    Args:
        kept: (K, C, R, S), the weights that are there.
        stride, padding, dilation: of the convolution, (rows, columns).

    Attributes:
        position: (taps, 4), output channel, input channel, row and column of each, in this order.
        density: taps of all weights.
    """

    def __init__(self, kept: NDArray[np.bool_], stride: Pair, padding: Pair, dilation: Pair) -> None:
        self.shape = kept.shape
        self.stride, self.padding, self.dilation = stride, padding, dilation
        self.position = np.argwhere(kept).astype(np.int64)
        self.density = len(self.position) / max(kept.size, 1)

    def check_channels(self, given: int) -> None:
        """Refuse an input of other channels, of which other memory would be read."""
        if given != self.shape[1]:
            raise ValueError(f"the input has {given} channels and the weights {self.shape[1]}; groups are not followed")

    def memory(self, stride: tuple[int, ...]) -> Integers:
        """Where the taps lie in the memory of a weight with these strides, (taps,)."""
        return self.position @ np.array(stride, np.int64)

    def input_window(self, size: Pair) -> Window:
        """The input within the convolution's padding."""
        above, beside = self.padding
        return Window(*size, above, beside, size[0] + 2 * above, size[1] + 2 * beside)

    def output_size(self, size: Pair) -> Pair:
        """(P, Q) of an input of (H, W)."""
        rows, columns = (
            (size[axis] + 2 * self.padding[axis] - self.dilation[axis] * (self.shape[2 + axis] - 1) - 1)
            // self.stride[axis]
            + 1
            for axis in (0, 1)
        )
        return rows, columns

    def grad_window(self, size: Pair, grad_size: Pair) -> Window:
        """dO, of (P, Q), within a border as wide as any offset of the data gradient of (H, W) needs."""
        borders = []
        for axis in (0, 1):
            before = after = 0
            for first in range(self.stride[axis]):
                count = -(-(size[axis] - first) // self.stride[axis])
                for _, shift in self._shifts(axis, first):
                    before, after = max(before, -shift), max(after, count - 1 + shift - (grad_size[axis] - 1))
            borders.append((before, after))
        (top, bottom), (left, right) = borders
        rows, columns = grad_size
        return Window(rows, columns, top, left, rows + top + bottom, columns + left + right)

    def forward(self) -> Taps:
        """For the output: what is read is the input."""
        out, channel, row, column = self.position.T
        down, right = row * self.dilation[0] - self.padding[0], column * self.dilation[1] - self.padding[1]
        return Taps(out, channel, down, right, np.arange(len(out)))

    def dgrad(self, size: Pair) -> list[PlaceClass]:
        """For the gradient of an input of (H, W), by classes of places: what is read is dO, with a stride of 1."""
        found = []
        out, channel, row, column = self.position.T
        absent = np.iinfo(np.int32).min
        for first_row in range(min(self.stride[0], size[0])):
            for first_column in range(min(self.stride[1], size[1])):
                down, right = np.full(self.shape[2], absent, np.int64), np.full(self.shape[3], absent, np.int64)
                for position, shift in self._shifts(0, first_row):
                    down[position] = shift
                for position, shift in self._shifts(1, first_column):
                    right[position] = shift
                number = np.flatnonzero((down[row] > absent) & (right[column] > absent))
                number = number[np.argsort(channel[number], kind="stable")]
                taps = Taps(channel[number], out[number], down[row[number]], right[column[number]], number)
                rows = -(-(size[0] - first_row) // self.stride[0])
                columns = -(-(size[1] - first_column) // self.stride[1])
                found.append(PlaceClass((first_row, first_column), (rows, columns), taps))
        return found

    def _shifts(self, axis: int, first: int) -> list[Pair]:
        """Positions of the kernel that reach input rows first, first + stride ...: with the output row of the first."""
        found = []
        for position in range(self.shape[2 + axis]):
            reach = first + self.padding[axis] - position * self.dilation[axis]
            if reach % self.stride[axis] == 0:
                found.append((position, reach // self.stride[axis]))
        return found
