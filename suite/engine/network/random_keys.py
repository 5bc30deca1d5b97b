"""Random keys for the transforms of a trial: numbers in eager training, buffer entries on the device in a CUDA graph.

A CUDA graph repeats the device's operations without running Python. A key that Python computes would be repeated too,
so that every step would draw the random numbers of the captured step. A captured transform therefore receives an entry
of a buffer on the device. Before each replay, one copy fills all entries with the keys that the step has in eager
training.
"""

from __future__ import annotations

import torch
from torch import Tensor

from suite.plan import random_key

Entry = tuple[str, str, int]  # layer, operand, slot


class KeyBuffer:
    """A buffer on the device with the key of every layer, operand and slot that draws in a captured step.

    Args:
        capacity: Maximum number of entries.
        seed: Seed of the trial.
        device: Device on which the kernels read the keys.
    """

    def __init__(self, capacity: int, seed: int, device: torch.device) -> None:
        self._seed = seed
        self._entries: dict[Entry, int] = {}
        self._values = torch.zeros(capacity, dtype=torch.int64, device=device)

    def of(self, name: str, operand: str, slot: int) -> Tensor:
        """Return the entry of one layer, operand and slot: 0-dimensional, int64, always at the same address.

        Raises:
            IndexError: if there are more entries than the buffer's capacity.
        """
        return self._values[self._entries.setdefault((name, operand, slot), len(self._entries))]

    def fill(self, step: int) -> None:
        """Fill every entry with its key for this step."""
        if not self._entries:
            return
        keys = [random_key(self._seed, step, slot, operand, name) for name, operand, slot in self._entries]
        # Pinned memory makes the copy asynchronous. Each step allocates its own, because copies of earlier steps may
        # still be queued; torch does not reuse the memory before its copy has finished.
        pinned = torch.tensor(keys, dtype=torch.int64, pin_memory=self._values.is_cuda)
        self._values[: len(keys)].copy_(pinned, non_blocking=True)
