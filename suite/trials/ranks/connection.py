"""The torch part of a rank of a trial: its device, and its connection with the other ranks."""

from __future__ import annotations

import os
import socket
import sys
import threading
from datetime import timedelta
from urllib.parse import urlsplit

import torch
import torch.distributed as dist

from suite.errors import UsageError
from suite.trials.process import LOCAL_RANK, RENDEZVOUS, rank_of_environment
from suite.trials.ranks.processes import Failure
from suite.trials.spec import TrialSpec

WAIT_FOR_OTHERS = timedelta(minutes=30)  # for a rank that is alive: one rank may autotune while the others wait
CONNECT_SECONDS = 120.0
"""Time in which all ranks have to be connected. Without a limit, a client that takes a rank's place and says nothing
would stop a trial for `WAIT_FOR_OTHERS`."""


def cuda_device(index: int | None = None) -> torch.device:
    """Return the GPU of this process: the typed one, or that of this rank on its machine.

    Args:
        index: Number of the GPU that the user has typed, if any.

    Raises:
        UsageError: There are fewer GPUs than ranks on this machine.
    """
    own, count = int(os.environ.get(LOCAL_RANK, "0")), torch.cuda.device_count()
    if own == 0 or count == 1:  # a scheduler may give each process one GPU only
        return torch.device("cuda", index or 0)
    if own >= count:
        raise UsageError(f"rank {own} of this machine has no GPU: this process sees {count}, and each rank needs one")
    return torch.device("cuda", (index or 0) + own)


def join_ranks(spec: TrialSpec) -> None:
    """Connect this rank, given by the environment, with the other ranks of its trial.

    Ranks that meet through a file are on one machine, and use the loopback interface alone. Anyone who reaches a port
    of gloo or NCCL could take the place of a rank.
    """
    rank = rank_of_environment()
    assert rank is not None
    if spec.device == "cuda":
        torch.cuda.set_device(cuda_device())
    url = os.environ[RENDEZVOUS]
    if url.startswith("file://") and (loopback := _loopback()):
        for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
            os.environ.setdefault(variable, loopback)

    def end() -> None:
        message = f"rank {rank} was not connected with the other ranks after {CONNECT_SECONDS:g} s"
        print(message, file=sys.stderr, flush=True)
        Failure(rank, "error", message).report()
        os._exit(1)  # the thread that connects cannot be interrupted

    timer = threading.Timer(CONNECT_SECONDS, end)
    timer.daemon = True
    timer.start()
    try:
        store = _store(url, spec.processes)
        store.set_timeout(WAIT_FOR_OTHERS)
        dist.init_process_group(
            "nccl" if spec.device == "cuda" else "gloo",
            store=store,
            rank=rank,
            world_size=spec.processes,
            timeout=WAIT_FOR_OTHERS,
        )
        dist.barrier()  # NCCL connects in its first call
    finally:
        timer.cancel()


def _store(url: str, processes: int) -> dist.Store:
    """Return the store through which the ranks of a trial meet: a file, or a part of the store of torchrun."""
    if url.startswith("file://"):
        return dist.FileStore(url.removeprefix("file://"), processes)
    parts = urlsplit(url)
    store = dist.TCPStore(parts.hostname or "", parts.port or 0, is_master=False, wait_for_workers=False)
    return dist.PrefixStore(parts.path, store)


def _loopback() -> str:
    """Return the name of the loopback interface; empty if this machine has none."""
    return next((name for _, name in socket.if_nameindex() if name in ("lo", "lo0")), "")


def leave_ranks() -> None:
    """Wait until all ranks of the trial have come to its end, and close the connections with them.

    A thread that still uses an open connection may abort the process at its end. The threads end only after the wrapped
    model, which owns the process group, has been released.
    """
    dist.barrier()
    dist.destroy_process_group()


def lost_others(error: Exception) -> bool:
    """Return whether an error says that a connection to another rank has ended."""
    if isinstance(error, (dist.DistNetworkError, dist.DistBackendError)):
        return True
    signs = ("gloo", "Gloo", "NCCL", "Connection closed by peer", "Connection reset")
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in signs)
