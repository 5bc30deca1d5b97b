"""Index arithmetic of a convolution with a fixed sparsity mask, independent of a device.

A *tap* is a weight that is not masked. Each product that sums taps has a list of its taps, sorted by the channel of the
result, with the memory offset that each tap reads. The data gradient has one list for each class of positions that a
stride distinguishes. The lists depend only on the mask and on image sizes, so they are built once.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Pair = tuple[int, int]
Integers = NDArray[np.int64]


class Window(NamedTuple):
    """An image with a border: rows and columns of the image, its origin, and rows and columns including the border."""

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
    """Return the window of an image that has no border."""
    return Window(*size, 0, 0, *size)


class Taps(NamedTuple):
    """Taps sorted by the channel of the result. Every field has the shape (taps,).

    Attributes:
        out_channel: Channel of the result. For the data gradient this is an input channel of the convolution.
        in_channel: Channel that the tap reads.
        row_offset, col_offset: Rows and columns from the position of the result, times the stride, to the position that
            the tap reads. Negative offsets lead into the border.
        nonzero_index: Position of the tap among all taps of the weight.
    """

    out_channel: Integers
    in_channel: Integers
    row_offset: Integers
    col_offset: Integers
    nonzero_index: Integers

    def select(self, which: Integers | NDArray[np.bool_]) -> Taps:
        """Return the taps at the given indices, or where a mask is True."""
        return Taps(*(column[which] for column in self))

    def starts(self, channels: int) -> Integers:
        """Return the index at which the taps of each channel begin, and the number of taps: (channels + 1,)."""
        return np.searchsorted(self.out_channel, np.arange(channels + 1)).astype(np.int64)

    def offset(self, window: Window) -> NDArray[np.int32]:
        """Return the memory offset that each tap reads, in elements of an image (channel, H', W') with its border."""
        row, column = self.row_offset + window.top, self.col_offset + window.left
        return (self.in_channel * window.plane + row * window.padded_columns + column).astype(np.int32)


class PositionClass(NamedTuple):
    """Positions of an input whose gradients sum the same taps.

    Attributes:
        first: Row and column of the first position. The others follow at distances of the stride.
        size: Number of rows and columns of positions.
        taps: Taps that every position sums.
    """

    first: Pair
    size: Pair
    taps: Taps


class ConvolutionTaps:
    """Taps of a convolution, listed for each of its three products.

    Args:
        kept: (K, C, R, S), True for every weight that is not masked.
        stride, padding, dilation: Those of the convolution, each (rows, columns).

    Attributes:
        position: (taps, 4), output channel, input channel, row and column of each tap, in lexicographic order.
        density: Share of the weights that are not masked.
    """

    def __init__(self, kept: NDArray[np.bool_], stride: Pair, padding: Pair, dilation: Pair) -> None:
        self.shape = kept.shape
        self.stride, self.padding, self.dilation = stride, padding, dilation
        self.position = np.argwhere(kept).astype(np.int64)
        self.density = len(self.position) / max(kept.size, 1)

    def check_channels(self, in_channels: int) -> None:
        """Refuse an input with another number of channels, because kernels would read foreign memory."""
        if in_channels != self.shape[1]:
            raise ValueError(
                f"the input has {in_channels} channels and the weights {self.shape[1]}; groups are not supported"
            )

    def memory_offsets(self, stride: tuple[int, ...]) -> Integers:
        """Return the memory offset of each tap in a weight with these strides, (taps,)."""
        return self.position @ np.array(stride, np.int64)

    def input_window(self, size: Pair) -> Window:
        """Return the window of an input of (H, W) with the padding of the convolution as its border."""
        vertical, horizontal = self.padding
        return Window(*size, vertical, horizontal, size[0] + 2 * vertical, size[1] + 2 * horizontal)

    def output_size(self, size: Pair) -> Pair:
        """Return the output size (P, Q) for an input of (H, W)."""
        rows, columns = (
            (size[axis] + 2 * self.padding[axis] - self.dilation[axis] * (self.shape[2 + axis] - 1) - 1)
            // self.stride[axis]
            + 1
            for axis in (0, 1)
        )
        return rows, columns

    def grad_window(self, size: Pair, grad_size: Pair) -> Window:
        """Return the window of dO, (P, Q), with a border that covers every offset of the data gradient of (H, W)."""
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
        """Return the taps of the output, which read the input."""
        out_channel, in_channel, row, column = self.position.T
        row_offset = row * self.dilation[0] - self.padding[0]
        col_offset = column * self.dilation[1] - self.padding[1]
        return Taps(out_channel, in_channel, row_offset, col_offset, np.arange(len(out_channel)))

    def dgrad(self, size: Pair) -> list[PositionClass]:
        """Return the taps of the gradient of an input of (H, W) by classes of positions. They read dO with stride 1."""
        classes = []
        out_channel, in_channel, row, column = self.position.T
        absent = np.iinfo(np.int32).min
        for first_row in range(min(self.stride[0], size[0])):
            for first_column in range(min(self.stride[1], size[1])):
                # Offset in dO of each row and column of the kernel, for the kernel positions that reach this class
                row_shift = np.full(self.shape[2], absent, np.int64)
                col_shift = np.full(self.shape[3], absent, np.int64)
                for position, shift in self._shifts(0, first_row):
                    row_shift[position] = shift
                for position, shift in self._shifts(1, first_column):
                    col_shift[position] = shift
                index = np.flatnonzero((row_shift[row] > absent) & (col_shift[column] > absent))
                index = index[np.argsort(in_channel[index], kind="stable")]
                taps = Taps(
                    in_channel[index], out_channel[index], row_shift[row[index]], col_shift[column[index]], index
                )
                rows = -(-(size[0] - first_row) // self.stride[0])
                columns = -(-(size[1] - first_column) // self.stride[1])
                classes.append(PositionClass((first_row, first_column), (rows, columns), taps))
        return classes

    def _shifts(self, axis: int, first: int) -> list[Pair]:
        """Return the kernel positions that reach inputs first, first + stride, ..., each with its first output."""
        shifts = []
        for position in range(self.shape[2 + axis]):
            reach = first + self.padding[axis] - position * self.dilation[axis]
            if reach % self.stride[axis] == 0:
                shifts.append((position, reach // self.stride[axis]))
        return shifts
