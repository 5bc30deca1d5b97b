"""The ranks of a trial as processes: how one is started, numbered and waited for."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from suite.trials.ranks import failures
from suite.trials.ranks.failures import Failure

RANK, LOCAL_RANK, RENDEZVOUS = "PDT_RANK", "PDT_LOCAL_RANK", "PDT_RENDEZVOUS"
"""Environment variables of a rank: its number, its number on its machine, and the URL at which the ranks meet."""

POLL_INTERVAL = 0.1
GRACE_SECONDS = 10.0  # after the first failure: the other ranks find it, and rank 0 writes its measurements


class RankProcess(Protocol):
    """A rank that runs here or on another machine."""

    def poll(self) -> int | None:
        """Return the exit status, negative for a signal; `None` while the rank runs."""

    def kill(self) -> None:
        """End the rank."""

    def failure(self) -> Failure | None:
        """Return what the rank has reported about its failure. The rank may still run."""


class LocalRank:
    """A rank of this machine.

    Args:
        rank, local_rank: Its number among all ranks, and on this machine.
        folder: Folder of the trial.
        rendezvous: URL at which the ranks meet.
        reports: Folder for the rank's reports.
        more: Further options of `subprocess.Popen`.
    """

    def __init__(self, rank: int, local_rank: int, folder: Path, rendezvous: str, reports: Path, **more: Any) -> None:
        self.rank, self.reports = rank, reports
        own = {RANK: str(rank), LOCAL_RANK: str(local_rank), RENDEZVOUS: rendezvous, failures.FOLDER: str(reports)}
        variables = {**more.get("env", os.environ), **own}
        variables.pop("TORCHELASTIC_USE_AGENT_STORE", None)  # the ranks of a trial have their own store
        options = {"stdin": subprocess.DEVNULL, **more, "env": variables}
        command = [sys.executable, "-P", "-m", "suite.trials.trial", str(folder)]
        self.process: subprocess.Popen[bytes] = subprocess.Popen(command, **options)

    def poll(self) -> int | None:
        return self.process.poll()

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    def failure(self) -> Failure | None:
        return failures.reported(self.reports, self.rank)


def rank_of_environment() -> int | None:
    """Return the number of this process among the ranks of its trial; `None` if the trial has one process."""
    text = os.environ.get(RANK)
    return None if text is None else int(text)


def local_rank() -> int:
    """Return the number of this process among its trial's ranks on this machine; 0 if the trial has one process."""
    return int(os.environ.get(LOCAL_RANK, "0"))


def wait_for(ranks: Mapping[int, RankProcess]) -> Sequence[Failure]:
    """Wait until all ranks have ended or reported a failure.

    The wait also ends some time after a rank has failed, or after rank 0 is done, which has written the result. The
    other ranks may hang then.

    Returns:
        The failures of the ranks; empty if no rank that has ended has failed.
    """
    began: float | None = None
    while True:
        failed = [_failure(rank, process) for rank, process in ranks.items() if process.poll() or process.failure()]
        if all(process.poll() is not None or process.failure() for process in ranks.values()):
            return failed
        if began is None and (failed or ranks[0].poll() == 0):
            began = time.monotonic()
        if began is not None and time.monotonic() - began >= GRACE_SECONDS:
            return failed
        time.sleep(POLL_INTERVAL)


def _failure(rank: int, process: RankProcess) -> Failure:
    # The report counts more than the exit status, because a rank that has failed may also crash while it ends.
    if reported := process.failure():
        return reported
    status = process.poll() or 0
    if status < 0:
        return Failure(rank, "error", f"rank {rank} was killed by signal {-status}")
    return Failure(rank, "error", f"rank {rank} ended with exit status {status}")
