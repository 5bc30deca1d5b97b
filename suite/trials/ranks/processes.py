"""The ranks of a trial as processes: how one is started, connected with the others, and waited for."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from suite.errors import UsageError
from suite.trials.ranks import failures
from suite.trials.ranks.failures import Failure
from suite.trials.spec import TrialSpec

if TYPE_CHECKING:
    import torch

RANK, LOCAL_RANK, RENDEZVOUS = "PDT_RANK", "PDT_LOCAL_RANK", "PDT_RENDEZVOUS"
"""Environment variables of a rank: its number, that on its machine, and the URL at which the ranks find each other."""

POLL_INTERVAL = 0.1
GRACE_SECONDS = 10.0  # after the first rank has failed: the others notice it, and rank 0 writes what was measured
WAIT_FOR_OTHERS = timedelta(minutes=30)  # of a rank that is alive; one rank may autotune while the others wait


class RankProcess(Protocol):
    """A rank that runs here or on another machine."""

    def poll(self) -> int | None:
        """Return the exit status, negative for a signal; `None` while the rank runs."""

    def kill(self) -> None:
        """End the rank."""

    def failure(self) -> Failure | None:
        """Return what the rank has reported about its failure; it may not have ended yet."""


class LocalRank:
    """A rank of this machine.

    Args:
        rank, local_rank: Its number among all ranks, and on this machine.
        folder: Folder of the trial.
        rendezvous: URL at which the ranks find each other.
        reports: Folder for what the rank reports.
        more: Further options of `subprocess.Popen`.
    """

    def __init__(self, rank: int, local_rank: int, folder: Path, rendezvous: str, reports: Path, **more: Any) -> None:
        self.rank, self.reports = rank, reports
        own = {RANK: str(rank), LOCAL_RANK: str(local_rank), RENDEZVOUS: rendezvous, failures.FOLDER: str(reports)}
        variables = {**more.get("env", os.environ), **own}
        variables.pop("TORCHELASTIC_USE_AGENT_STORE", None)  # the ranks of a trial have a store of their own
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
    """Return the number of this process among the ranks of its trial; `None` if it is not one of several."""
    text = os.environ.get(RANK)
    return None if text is None else int(text)


def local_rank() -> int:
    """Return the number of this process among the ranks of its trial on this machine; 0 if it is not one of several."""
    return int(os.environ.get(LOCAL_RANK, "0"))


def cuda_device(index: int | None = None) -> torch.device:
    """Return the GPU of this process: the typed one, or that of this rank on its machine.

    Args:
        index: Number of the GPU that the user has typed, if any.

    Raises:
        UsageError: There are fewer GPUs than ranks on this machine.
    """
    import torch

    own, count = local_rank(), torch.cuda.device_count()
    if own == 0 or count == 1:  # a scheduler may show each process its own GPU only
        return torch.device("cuda", index or 0)
    if own >= count:
        raise UsageError(f"rank {own} of this machine has no GPU: this process sees {count}, and each rank needs one")
    return torch.device("cuda", (index or 0) + own)


def join_ranks(spec: TrialSpec) -> None:
    """Connect this rank with the other ranks of its trial; it is the rank of the environment.

    Ranks that find each other through a file are on one machine, and need no interface but the loopback one: whoever
    reaches a port of gloo or NCCL could take the place of a rank.
    """
    import torch
    import torch.distributed as dist

    rank = rank_of_environment()
    assert rank is not None
    if spec.device == "cuda":
        torch.cuda.set_device(cuda_device())
    place = os.environ[RENDEZVOUS]
    found: dict[str, Any] = {"init_method": place}
    if place.startswith("file://"):
        for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
            if loopback := _loopback():
                os.environ.setdefault(variable, loopback)
        # As a path: torch would read the name of a folder such as `a#b` as a URL.
        found = {"store": dist.FileStore(place.removeprefix("file://"), spec.processes)}
        found["store"].set_timeout(WAIT_FOR_OTHERS)
    dist.init_process_group(
        "nccl" if spec.device == "cuda" else "gloo",
        **found,
        rank=rank,
        world_size=spec.processes,
        timeout=WAIT_FOR_OTHERS,
    )


def _loopback() -> str:
    """Return the name of the loopback interface; empty if this machine has none."""
    return next((name for _, name in socket.if_nameindex() if name in ("lo", "lo0")), "")


def leave_ranks() -> None:
    """Wait until all ranks of the trial have come to its end, and close the connections with them.

    A rank whose process ends with open connections may be aborted by a thread that still uses them. These threads end
    here only if the wrapped model, which owns the process group, has been released.
    """
    import torch.distributed as dist

    dist.barrier()
    dist.destroy_process_group()


def wait_for(ranks: Mapping[int, RankProcess]) -> Sequence[Failure]:
    """Wait until all ranks have ended or reported a failure.

    The wait also ends some time after the first rank has failed, and after rank 0, which has then written the result,
    is done: the others may hang.

    Returns:
        The failures of the ranks; empty if none of those that have ended has failed.
    """
    began: float | None = None
    while True:
        found = [_failure(rank, one) for rank, one in ranks.items() if one.poll() or one.failure()]
        if all(one.poll() is not None or one.failure() for one in ranks.values()):
            return found
        if began is None and (found or ranks[0].poll() == 0):
            began = time.monotonic()
        if began is not None and time.monotonic() - began >= GRACE_SECONDS:
            return found
        time.sleep(POLL_INTERVAL)


def _failure(rank: int, process: RankProcess) -> Failure:
    # What it has reported comes first, since a rank that has failed may also crash while it ends.
    if reported := process.failure():
        return reported
    status = process.poll() or 0
    if status < 0:
        return Failure(rank, "error", f"rank {rank} was killed by signal {-status}")
    return Failure(rank, "error", f"rank {rank} ended with exit status {status}")
