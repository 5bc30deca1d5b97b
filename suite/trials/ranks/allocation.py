"""Commands that `torchrun` has started once per rank, on one or several machines.

The command of rank 0 plans, runs the trials one after the other, and reports. The other commands follow it: for each
trial they start their rank in the same output folder, until rank 0 sends that it has finished. They communicate through
the store of torchrun. Its agents end all commands if one command ends or is lost.

The store has no password, and listens on all interfaces: anyone who reaches it can write to it. A message is therefore
plain data, which the reader checks, and names no path and no program. It can start only a trial that its reader has
planned itself, from its own command line.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Self

from annotated_types import Interval
from pydantic import TypeAdapter, ValidationError

from suite import files
from suite.errors import UsageError
from suite.trials.folder.records import read_record
from suite.trials.process import die_with, environment
from suite.trials.ranks import in_allocation
from suite.trials.ranks.processes import Failure, LocalRank, RankProcess
from suite.trials.spec import TrialSpec

log = logging.getLogger(__name__)

POLL_INTERVAL = 0.2
TRIALS = "trials"
"""Prefix of keys of the store: `/N` has the id of the N-th trial, `/N/RANK` how a rank ended; `/N/stop` ends it."""
MEETING = ".ranks"
"""File in a trial's folder through which its ranks on one machine meet."""
Plan = Callable[[], tuple[Path, Sequence[TrialSpec]]]
"""Returns the output folder and the trials of a command line."""
_END = "end"


@dataclass(frozen=True)
class End:
    """Message: a rank of a trial has ended.

    Attributes:
        status: Exit status of its process, negative for a signal.
        failure: How it failed; `None` if it did not fail or sent no reason.
    """

    status: Annotated[int, Interval(ge=-255, le=255)]
    failure: Failure | None = None


_MESSAGE = TypeAdapter(End)


def send(store: Any, key: str, message: End) -> None:
    """Write a message to the store."""
    store.set(key, _MESSAGE.dump_json(message))


def receive(store: Any, key: str) -> End:
    """Wait for a message in the store, and return it.

    Raises:
        UsageError: The store has other data in its place.
    """
    content = store.get(key)
    try:
        return _MESSAGE.validate_json(content, strict=True)
    except ValidationError:
        raise UsageError(
            f"the store of the ranks has {content[:80]!r} as {key}, which no command of this suite has written"
        ) from None


@dataclass(frozen=True)
class Allocation:
    """The place of this command among the commands that `torchrun` has started together.

    Attributes:
        rank, size: Its number, and the number of commands.
        local_rank: Its number on this machine.
        address, port: Where the store of torchrun listens, on the machine of rank 0.
        restart: How often torchrun has started the commands again. The store still has the earlier messages.
        one_machine: Whether all of them run on one machine.
    """

    rank: int
    size: int
    local_rank: int
    address: str
    port: int
    restart: int = 0
    one_machine: bool = False

    @classmethod
    def of_environment(cls) -> Self:
        """Return the allocation of this process, which belongs to one (`in_allocation`).

        Raises:
            UsageError: The commands were started without torchrun.
        """
        variables = os.environ
        if variables.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
            raise UsageError(
                "this command was started several times without torchrun; let srun start torchrun once per machine: "
                "srun --ntasks-per-node 1 torchrun ... run_suite.py ... (docs/data-parallel.md)"
            )
        return cls(
            rank=int(variables["RANK"]),
            size=int(variables["WORLD_SIZE"]),
            local_rank=int(variables["LOCAL_RANK"]),
            address=variables["MASTER_ADDR"],
            port=int(variables["MASTER_PORT"]),
            restart=int(variables.get("TORCHELASTIC_RESTART_COUNT", "0")),
            one_machine=variables.get("LOCAL_WORLD_SIZE") == variables["WORLD_SIZE"],
        )

    def rendezvous(self, folder: Path, number: int) -> str:
        """Return the URL at which the ranks of a trial find each other.

        On one machine this is a file in the folder of the trial, which only its owner can write to. On several machines
        it is a part of the store.

        Args:
            folder: Folder of the trial.
            number: Number of the trial among those of rank 0's command, from 1.
        """
        if self.one_machine:
            return f"file://{folder / MEETING}"
        return f"tcp://{self.address}:{self.port}/pdt/{self.restart}/meeting/{number}"

    def store(self) -> Any:
        """Return a connection to the store."""
        import torch.distributed as dist  # a command that was started alone does not need it

        store = dist.TCPStore(self.address, self.port, is_master=False, wait_for_workers=False)
        return dist.PrefixStore(f"pdt/{self.restart}", store)


def lead(allocation: Allocation, command: Callable[[], int]) -> int:
    """Run the command of rank 0, return its exit status, and tell the others when it ends."""
    die_with(os.getppid())  # torchrun
    store = allocation.store()
    try:
        return command()
    finally:
        store.set(_END, "")


def follow(allocation: Allocation, plan: Plan) -> int:
    """Start this rank of each trial of rank 0's command, until that command ends.

    Args:
        allocation: The place of this command.
        plan: Returns the output folder and the trials that follow from this command's own line. It is called when rank
            0 starts its first trial. Rank 0 has then found no error in the line.

    Returns:
        0 after the end of rank 0's command, whose own status is what torchrun sees; 1 if torchrun, and with it the
        store, has ended before.
    """
    die_with(os.getppid())  # torchrun
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")  # no stack trace when the store is lost
    import torch.distributed as dist

    plan, number = functools.cache(plan), 1
    try:
        store = allocation.store()
        while True:
            if store.check([f"{TRIALS}/{number}"]):
                if not _is_over(store, number):
                    send(store, f"{TRIALS}/{number}/{allocation.rank}", _run_rank(allocation, store, number, plan))
                number += 1
            elif store.check([_END]):
                return 0
            else:
                time.sleep(POLL_INTERVAL)
    except dist.DistError:
        log.error("torchrun has ended")
        return 1


def _is_over(store: Any, number: int) -> bool:
    """Return whether rank 0 has stopped waiting for a trial.

    A trial that is killed, for example by `--timeout`, sends no message. The next trial then starts, or the command
    ends.
    """
    return any(store.check([key]) for key in (f"{TRIALS}/{number}/stop", f"{TRIALS}/{number + 1}", _END))


def _run_rank(allocation: Allocation, store: Any, number: int, plan: Plan) -> End:
    """Run this rank of a trial, and return how it ended."""
    try:
        folder = _checked_folder(*plan(), store.get(f"{TRIALS}/{number}").decode(errors="replace"))
    except UsageError as error:
        return End(1, Failure(allocation.rank, "error", str(error)))
    url = allocation.rendezvous(folder, number)
    with files.temporary_folder("pdt-rank-") as reports:
        rank = LocalRank(allocation.rank, allocation.local_rank, folder, url, reports, environment(1))
        try:
            while (status := rank.poll()) is None and not _is_over(store, number):
                time.sleep(POLL_INTERVAL)
        finally:
            rank.kill()
        return End(status or 0, rank.failure())


def _checked_folder(out: Path, trials: Sequence[TrialSpec], trial_id: str) -> Path:
    """Return the folder of a trial of this command. Its record must have the specification that this command planned.

    Raises:
        UsageError: There is no such trial or folder.
    """
    planned = next((trial for trial in trials if trial.trial_id == trial_id), None)
    if planned is None:
        raise UsageError(
            f"rank 0 starts the trial {trial_id[:255]!r}, which the command of this rank has not planned; all ranks "
            "need the same command line and the same kind of machine"
        )
    folder = out / "trials" / trial_id
    record = read_record(folder)
    if record is None:
        raise UsageError(f"{folder} is not visible here; --out must be a folder that all machines share")
    if record.spec.to_json() != planned.to_json():
        raise UsageError(f"{folder}: trial.json is not that of the trial that the command of this rank has planned")
    return folder


class RemoteRank:
    """A rank that another command of the allocation starts and watches, as the trial of rank 0's command handles it.

    Args:
        store: The store of the allocation.
        number: Number of the trial among those of rank 0's command, from 1.
        rank: Number of the rank.
    """

    def __init__(self, store: Any, number: int, rank: int) -> None:
        self._store, self._trial, self._rank = store, f"{TRIALS}/{number}", rank

    def _end(self) -> End | None:
        key = f"{self._trial}/{self._rank}"
        return receive(self._store, key) if self._store.check([key]) else None

    def poll(self) -> int | None:
        return end.status if (end := self._end()) else None

    def kill(self) -> None:
        self._store.set(f"{self._trial}/stop", "")

    def failure(self) -> Failure | None:
        return end.failure if (end := self._end()) else None


@contextlib.contextmanager
def remote_ranks(folder: Path) -> Iterator[tuple[str, Mapping[int, RankProcess]]]:
    """Ask the other commands of the allocation to start their ranks of a trial.

    Yields:
        The URL at which the ranks meet, and the other ranks by number; both are empty outside an allocation.
    """
    if not in_allocation():
        yield "", {}
        return
    allocation = Allocation.of_environment()
    store = allocation.store()
    (folder / MEETING).unlink(missing_ok=True)  # a killed command may have left it
    number = store.add("count", 1)
    store.set(f"{TRIALS}/{number}", folder.name)
    try:
        ranks = {rank: RemoteRank(store, number, rank) for rank in range(1, allocation.size)}
        yield allocation.rendezvous(folder, number), ranks
    finally:
        (folder / MEETING).unlink(missing_ok=True)
