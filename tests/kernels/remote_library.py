"""Stand-in for compiled libraries whose kernels run in another program (`call_kernels.cpp`), such as an emulator."""

from __future__ import annotations

import ctypes
import math
import struct
import subprocess
from collections.abc import Callable, Sequence
from typing import Any

ELEMENT_BYTES = (4, 2, 2)  # by number of the format
Arguments = tuple[Any, ...]


class RemoteLibrary:
    """The functions of all libraries. Memory is copied to the program before a call, and back afterwards.

    Args:
        command: Starts the program.
    """

    def __init__(self, command: Sequence[str]) -> None:
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        functions: tuple[tuple[str, Callable[[Arguments], dict[int, int]]], ...] = (
            ("pdt_prune_nm", _memory_of_prune),
            ("pdt_compress_nm", _memory_of_compress),
            ("pdt_data_gradient", lambda a: _memory_of_product(a, data=True)),
            ("pdt_weight_gradient", lambda a: _memory_of_product(a, data=False)),
            ("pdt_blocks", self._memory_of_blocks),
            ("pdt_sum_taps", self._memory_of_taps),
            ("pdt_sum_products", self._memory_of_sums),
            ("pdt_block_images", lambda a: {}),
            ("pdt_vector_bits", lambda a: {}),
        )
        for number, (name, memory) in enumerate(functions):
            setattr(self, name, _Function(self._call, number, memory))
        self._lane_bytes = 4 * self.pdt_block_images()  # type: ignore[attr-defined]

    def close(self) -> None:
        """End the program."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        assert self._process.wait(timeout=30) == 0

    def _call(self, function: int, memory: dict[int, int], arguments: Arguments) -> int:
        sent, places = struct.pack("<2q", function, len(arguments)), dict[int, int]()
        for index, value in enumerate(arguments):
            if index not in memory:
                sent += struct.pack("<2q", 0, int(value) - 2**64 if value >= 2**63 else int(value))
            elif value in places and memory[index]:
                sent += struct.pack("<2q", 2, places[value])
            else:
                places[value] = index
                sent += struct.pack("<2q", 1, memory[index]) + ctypes.string_at(value, memory[index])
        input, output = self._process.stdin, self._process.stdout
        assert input is not None
        assert output is not None
        input.write(sent)
        input.flush()
        (status,) = struct.unpack("<q", output.read(8))
        for value, index in places.items():
            ctypes.memmove(value, output.read(memory[index]), memory[index])
        return int(status)

    def _memory_of_blocks(self, a: Arguments) -> dict[int, int]:
        numbers = _integers(a[0], 12, 8)
        images, channels = numbers[:2]
        elements = 1 + sum((size - 1) * stride for size, stride in zip(numbers[:4], numbers[4:8], strict=True))
        blocks = -(-images * 4 // self._lane_bytes)
        padded = blocks * channels * numbers[10] * numbers[11] * self._lane_bytes
        return {0: 96, 1: elements * ELEMENT_BYTES[a[3]], 2: padded}

    def _memory_of_taps(self, a: Arguments) -> dict[int, int]:
        rows, columns, _, in_block, _, _, *out = _integers(a[0], 10, 8)
        blocks, channels = a[3:5]
        squares, others = _integers(a[5], channels + 1, 8)[-1], _integers(a[7], channels + 1, 8)[-1]
        extent = sum((count - 1) * step for count, step in zip((blocks, channels, rows, columns), out, strict=True))
        starts = 8 * (channels + 1)
        return {
            **{0: 80, 1: blocks * in_block * self._lane_bytes, 2: (extent + 1) * self._lane_bytes, 5: starts},
            **{6: 4 * squares, 7: starts, 8: 4 * others, 9: 4 * (4 * squares + others)},
        }

    def _memory_of_sums(self, a: Arguments) -> dict[int, int]:
        rows, columns, _, in_block, _, _, out_block, _, out_row, out_column = _integers(a[0], 10, 8)
        blocks, kernels, taps_each = a[4:7]
        extent = (blocks - 1) * out_block + (rows - 1) * out_row + (columns - 1) * out_column
        extent += max(_integers(a[7], kernels, 4), default=0)
        taps = 4 * kernels * taps_each
        return {
            **{0: 80, 1: blocks * in_block * self._lane_bytes, 2: (extent + 1) * self._lane_bytes, 3: taps},
            **{7: 4 * kernels, 8: taps},
        }


class _Function:
    """One function; ctypes would let its types be set."""

    argtypes: Sequence[Any] = ()
    restype: Any = None

    def __init__(
        self, call: Callable[[int, dict[int, int], Arguments], int], number: int,
        memory: Callable[[Arguments], dict[int, int]],
    ) -> None:  # fmt: skip
        self._run, self._number, self._memory = call, number, memory

    def __call__(self, *arguments: Any) -> int:
        return self._run(self._number, self._memory(arguments), arguments)


def _integers(address: int, count: int, size: int) -> list[int]:
    return [*struct.unpack(f"<{count}{'q' if size == 8 else 'i'}", ctypes.string_at(address, count * size))]


def _memory_of_prune(a: Arguments) -> dict[int, int]:
    size = math.prod(a[2:5]) * ELEMENT_BYTES[a[7]]
    return {0: size, 1: size}


def _memory_of_compress(a: Arguments) -> dict[int, int]:
    samples, pixels, channels, n, m, number_format = a[3:9]
    kept = samples * pixels * (channels // m * n + min(channels % m, n))
    return {0: samples * pixels * channels * ELEMENT_BYTES[number_format], 1: 4 * kept, 2: 2 * kept}


def _memory_of_product(a: Arguments, *, data: bool) -> dict[int, int]:
    layer = _integers(a[0], 19, 8)
    images, rows, columns, out_rows, out_columns, inputs, outputs, groups, kernel_rows, kernel_columns = layer[:10]
    kept = images * out_rows * out_columns * layer[-1]
    activation = images * rows * columns * inputs * ELEMENT_BYTES[a[5]]
    weight = 4 * outputs * kernel_rows * kernel_columns * inputs // groups
    return {0: 8 * 19, 1: 4 * kept, 2: 2 * kept, 3: weight if data else activation, 4: activation if data else weight}
