"""Commands that `torchrun` or Slurm has started once per rank.

The command of rank 0 plans, runs the trials one after the other, and reports. The commands of the other ranks follow
it: for each trial they start their rank, in the same output folder, until rank 0 says that it has finished. They find
each other through a `TCPStore` of torch.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Self

from suite.errors import UsageError
from suite.runs.engines.lifeline import PARENT
from suite.runs.ranks.failures import Failure
from suite.runs.ranks.processes import RANK, LocalRank, RankProcess

VARIABLE = "PDT_ALLOCATION"
"""Environment variable of the trials of rank 0's command: the allocation, as JSON."""

POLL_INTERVAL = 0.2
FIRST_CONTACT = timedelta(minutes=10)
SLURM_PORT = 29400
_END, _LEFT, _TRIALS = "end", "left", "trials"


@dataclass(frozen=True)
class Allocation:
    """The place of this command among those that were started together.

    Attributes:
        rank, size: Its number, and the number of commands.
        local_rank: Its number on this machine.
        address, port: Where rank 0 runs, and where the store listens.
        source: What started the commands.
        has_store: Whether the store runs already, in a process of `torchrun`.
    """

    rank: int
    size: int
    local_rank: int
    address: str
    port: int
    source: str
    has_store: bool

    @classmethod
    def of_environment(cls) -> Self | None:
        """Return the allocation that the environment describes; `None` if this command was started alone.

        Raises:
            UsageError: The environment lacks a variable.
        """
        variables = os.environ
        if RANK in variables or VARIABLE in variables:  # a trial
            return None
        try:
            if int(variables.get("WORLD_SIZE", "1")) > 1 and "LOCAL_RANK" in variables:
                return cls(
                    rank=int(variables["RANK"]),
                    size=int(variables["WORLD_SIZE"]),
                    local_rank=int(variables["LOCAL_RANK"]),
                    address=variables["MASTER_ADDR"],
                    port=int(variables["MASTER_PORT"]),
                    source="torchrun",
                    has_store=variables.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
                )
            # A batch script has SLURM_NTASKS too, but only `srun` sets the number of tasks of a step.
            if int(variables.get("SLURM_STEP_NUM_TASKS", "1")) > 1:
                port = SLURM_PORT + int(variables["SLURM_JOB_ID"]) % 1000
                return cls(
                    rank=int(variables["SLURM_PROCID"]),
                    size=int(variables["SLURM_STEP_NUM_TASKS"]),
                    local_rank=int(variables["SLURM_LOCALID"]),
                    address=variables.get("MASTER_ADDR") or _first_host(variables["SLURM_STEP_NODELIST"]),
                    port=int(variables.get("MASTER_PORT") or port),
                    source="Slurm",
                    has_store=False,
                )
        except (KeyError, ValueError) as error:
            raise UsageError(f"the environment of torchrun or Slurm is incomplete: {error}") from error
        return None

    def store(self) -> Any:
        """Return a connection to the store; rank 0's command starts it under Slurm.

        Raises:
            UsageError: The store cannot be reached.
        """
        import torch.distributed as dist

        starts = self.rank == 0 and not self.has_store and VARIABLE not in os.environ
        try:
            store = dist.TCPStore(
                self.address, self.port, is_master=starts, timeout=FIRST_CONTACT, wait_for_workers=False
            )
        except (dist.DistError, RuntimeError) as error:
            raise UsageError(
                f"the store of {self.source} at {self.address}:{self.port} cannot be reached: {error}"
            ) from error
        return dist.PrefixStore("pdt", store)


@contextlib.contextmanager
def _as_leader(allocation: Allocation) -> Iterator[None]:
    os.environ[VARIABLE] = json.dumps(asdict(allocation))
    try:
        yield
    finally:
        del os.environ[VARIABLE]


def lead(allocation: Allocation, command: Callable[[], int]) -> int:
    """Run the command of rank 0, and tell the other ranks its exit status when it ends."""
    store = allocation.store()
    status = 1
    try:
        with _as_leader(allocation):
            status = command()
        return status
    except UsageError:
        status = 2
        raise
    finally:
        store.set(_END, str(status))
        # Rank 0's process may hold the store, so that it must end last.
        deadline = time.monotonic() + 60
        while store.add(_LEFT, 0) < allocation.size - 1 and time.monotonic() < deadline:
            time.sleep(POLL_INTERVAL)


def follow(allocation: Allocation) -> int:
    """Start this rank of each trial of rank 0's command, until that command ends.

    Returns:
        The exit status of rank 0's command.
    """
    store = allocation.store()
    number = 1
    while True:
        if store.check([f"{_TRIALS}/{number}"]):
            _run_rank(allocation, store, number)
            number += 1
        elif store.check([_END]):
            status = int(store.get(_END))
            store.add(_LEFT, 1)
            return status
        else:
            time.sleep(POLL_INTERVAL)


class RemoteRanks:
    """The ranks of a trial that the other commands of an allocation start.

    Attributes:
        rendezvous: URL at which the ranks find each other.
        ranks: The ranks by their number.
    """

    def __init__(self, allocation: Allocation, folder: Path) -> None:
        store = allocation.store()
        with socket.socket() as free:
            free.bind(("", 0))
            self.rendezvous = f"tcp://{allocation.address}:{free.getsockname()[1]}"
        number = store.add("count", 1)
        store.set(f"{_TRIALS}/{number}", json.dumps({"folder": str(folder), "rendezvous": self.rendezvous}))
        self.ranks: dict[int, RankProcess] = {
            rank: _RemoteRank(store, number, rank) for rank in range(1, allocation.size)
        }


class _RemoteRank:
    """A rank that another command of the allocation starts and watches."""

    def __init__(self, store: Any, number: int, rank: int) -> None:
        self._store, self._number, self._rank = store, number, rank
        self._ended: dict[str, Any] | None = None

    def poll(self) -> int | None:
        key = f"{_TRIALS}/{self._number}/{self._rank}"
        if self._ended is None and self._store.check([key]):
            self._ended = json.loads(self._store.get(key))
        return None if self._ended is None else int(self._ended["status"])

    def kill(self) -> None:
        if self.poll() is None:
            self._store.set(f"{_TRIALS}/{self._number}/stop", "")

    def failure(self) -> Failure | None:
        reported = (self._ended or {}).get("failure")
        return Failure(**reported) if reported else None


def in_allocation() -> bool:
    """Return whether this process belongs to rank 0's command of an allocation."""
    return VARIABLE in os.environ


def remote_ranks(folder: Path) -> RemoteRanks | None:
    """Ask the other commands of the allocation to start their ranks of a trial; `None` outside of an allocation."""
    text = os.environ.get(VARIABLE)
    return RemoteRanks(Allocation(**json.loads(text)), folder) if text else None


def _run_rank(allocation: Allocation, store: Any, number: int) -> None:
    """Run this rank of a trial, and tell rank 0 how it ended."""
    from suite.runs.engines.local import environment

    asked = json.loads(store.get(f"{_TRIALS}/{number}"))
    answer, stop = f"{_TRIALS}/{number}/{allocation.rank}", f"{_TRIALS}/{number}/stop"
    folder = Path(asked["folder"])
    if not (folder / "trial.json").is_file():
        message = f"{folder} is not visible here; --out must be a folder that all machines share"
        failure = Failure(allocation.rank, "error", message)
        store.set(answer, json.dumps({"status": 1, "failure": asdict(failure)}))
        return
    reports = Path(tempfile.mkdtemp(prefix="pdt-rank-"))
    try:
        with open(folder / "log.txt", "ab") as log:
            rank = LocalRank(
                allocation.rank,
                allocation.local_rank,
                folder,
                asked["rendezvous"],
                reports,
                # As an engine starts a trial, so that the rank ends with this process (`lifeline`).
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**environment(1), PARENT: str(os.getpid())},
            )
            while (status := rank.poll()) is None and not store.check([stop]):
                time.sleep(POLL_INTERVAL)
            rank.kill()
        failure_of_rank = rank.failure()
        state = {"status": status or 0, "failure": asdict(failure_of_rank) if failure_of_rank else None}
        store.set(answer, json.dumps(state))
    finally:
        shutil.rmtree(reports, ignore_errors=True)


def _first_host(nodes: str) -> str:
    """Return the first host of a list as Slurm writes it, such as `gpu[01-04,07]`."""
    done = subprocess.run(["scontrol", "show", "hostnames", nodes], capture_output=True, text=True, check=False)
    if done.returncode or not done.stdout.split():
        raise ValueError(f"MASTER_ADDR is not set, and scontrol does not know the hosts of '{nodes}'")
    return done.stdout.split()[0]
