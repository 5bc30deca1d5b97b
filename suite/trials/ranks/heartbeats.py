"""Signs of life of the commands of an allocation: each of them counts in the store while it answers."""

from __future__ import annotations

import time
from typing import Any

from suite.trials.ranks.messages import receive, send

SILENCE_SECONDS = 30.0  # after which a command that has stopped counting is taken for dead


def beat(store: Any, rank: int) -> None:
    """Say that the command of a rank answers. Commands call this several times per second."""
    store.add(_count_key(rank), 1)


def has_joined(store: Any, rank: int) -> bool:
    """Return whether the command of a rank has answered at least once."""
    return bool(store.check([_count_key(rank)]))


class Pulse:
    """Watches whether the command of a rank answers.

    Args:
        store: The store of the allocation.
        rank: Number of the rank.
    """

    def __init__(self, store: Any, rank: int) -> None:
        self._store, self._rank = store, rank
        self._count, self._changed = self._read(), time.monotonic()
        silent = f"silent/{rank}"
        if store.check([silent]) and receive(store, silent, int) == self._count:
            self._changed = float("-inf")  # an earlier trial has waited for it already

    def is_silent(self) -> bool:
        """Return whether the command has not answered for `SILENCE_SECONDS`."""
        count = self._read()
        if count != self._count:
            self._count, self._changed = count, time.monotonic()
        if time.monotonic() - self._changed < SILENCE_SECONDS:
            return False
        send(self._store, f"silent/{self._rank}", count)
        return True

    def _read(self) -> int:
        return int(self._store.add(_count_key(self._rank), 0))


def _count_key(rank: int) -> str:
    return f"alive/{rank}"
