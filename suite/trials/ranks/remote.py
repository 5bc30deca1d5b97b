"""The ranks of a trial that other commands of an allocation start, as rank 0's command handles them."""

from __future__ import annotations

import json
import os
import secrets
import socket
from pathlib import Path
from typing import Any

from suite.trials.ranks.allocation import TRIALS, VARIABLE, Allocation
from suite.trials.ranks.failures import Failure
from suite.trials.ranks.messages import RankEnd, Start, receive, send
from suite.trials.ranks.processes import RankProcess


class RemoteRanks:
    """The ranks of a trial that other commands of an allocation start.

    Attributes:
        rendezvous: URL at which the ranks meet.
        ranks: The ranks by their number.
    """

    def __init__(self, allocation: Allocation, folder: Path) -> None:
        store = allocation.store()
        if allocation.one_machine:
            meeting = secrets.token_hex(16)
        else:
            with socket.socket() as free:
                free.bind(("", 0))
                meeting = str(free.getsockname()[1])
        self.rendezvous = allocation.rendezvous(folder, meeting)
        number = store.add("count", 1)
        send(store, f"{TRIALS}/{number}", Start(folder.name, meeting))
        self.ranks: dict[int, RankProcess] = {
            rank: RemoteRank(store, number, rank) for rank in range(1, allocation.size)
        }


class RemoteRank:
    """A rank that another command of the allocation starts and watches.

    Args:
        store: The store of the allocation.
        number: Number of the trial among those of rank 0's command, from 1.
        rank: Number of the rank.
    """

    def __init__(self, store: Any, number: int, rank: int) -> None:
        self._store, self._trial, self._rank = store, f"{TRIALS}/{number}", rank
        self._ended: RankEnd | None = None

    def poll(self) -> int | None:
        if self._ended is None:
            key = f"{self._trial}/{self._rank}"
            if self._store.check([key]):
                self._ended = receive(self._store, key, RankEnd)
        return None if self._ended is None else self._ended.status

    def kill(self) -> None:
        self._store.set(f"{self._trial}/stop", "")

    def failure(self) -> Failure | None:
        return None if self._ended is None else self._ended.failure


def remote_ranks(folder: Path) -> RemoteRanks | None:
    """Ask the other commands of the allocation to start their ranks of a trial; `None` outside an allocation."""
    text = os.environ.get(VARIABLE)
    return RemoteRanks(Allocation(**json.loads(text)), folder) if text else None
