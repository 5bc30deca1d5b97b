"""Random keys of a trial's transforms: numbers in eager training, places on the device while steps are replayed.

A CUDA graph repeats what the device did, and no Python. A key that Python computes would be repeated with it: every
step would draw the numbers of the step that was captured. So a captured transform is given a *place* of a buffer on the
device, and before each replay one copy fills all places with the keys that this step has in eager training.
"""

from __future__ import annotations

import hashlib
import struct
from typing import Protocol

import torch
from torch import Tensor

Place = tuple[str, str, int]  # layer, operand, slot


def random_key(seed: int, step: int, slot: int, operand: str, name: str) -> int:
    """A key in 0 .. 2**63 - 1 made of all the arguments: the seed of a counter-based generator."""
    packed = struct.pack("<qqq", seed, step, slot) + f"{operand}\0{name}".encode()
    return int.from_bytes(hashlib.blake2b(packed, digest_size=8).digest(), "little") >> 1


class Keys(Protocol):
    """What stands for the keys while a step is captured."""

    def of(self, name: str, operand: str, slot: int) -> int | Tensor:
        """The key of one place, as a kernel takes it."""


class KeyBuffer:
    """The keys of all places that a captured step draws at, on its device.

    Args:
        capacity: how many places there can be.
        seed: the trial's.
        device: where the kernels read them.
    """

    def __init__(self, capacity: int, seed: int, device: torch.device) -> None:
        self._seed = seed
        self._places: dict[Place, int] = {}
        self._values = torch.zeros(capacity, dtype=torch.int64, device=device)

    def of(self, name: str, operand: str, slot: int) -> Tensor:
        """The place of one layer, operand and slot: 0-dimensional int64; the same memory each time it is asked for.

        Raises:
            IndexError: if there are more places than the buffer was made for.
        """
        return self._values[self._places.setdefault((name, operand, slot), len(self._places))]

    def fill(self, step: int) -> None:
        """Give every place its key of this step."""
        if not self._places:
            return
        keys = [random_key(self._seed, step, slot, operand, name) for name, operand, slot in self._places]
        # Pinned, so that the copy neither waits for the device nor keeps it waiting. In memory of its own, which torch
        # gives to nobody else until the copy is done: earlier steps' copies may still be queued.
        pinned = torch.tensor(keys, dtype=torch.int64, pin_memory=self._values.is_cuda)
        self._values[: len(keys)].copy_(pinned, non_blocking=True)
