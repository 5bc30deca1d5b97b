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
import secrets
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Self, TypeVar

from annotated_types import Interval
from pydantic import StringConstraints, TypeAdapter, ValidationError

from suite import files
from suite.errors import UsageError
from suite.trials.folder.records import read_record
from suite.trials.process import RANK, die_with, environment
from suite.trials.ranks.processes import Failure, LocalRank, RankProcess
from suite.trials.spec import TrialSpec

log = logging.getLogger(__name__)

POLL_INTERVAL = 0.2
TRIALS = "trials"
MEETING = ".ranks-"
"""Beginning of the name of a file in a trial's folder through which its ranks on one machine meet."""
Plan = Callable[[], tuple[Path, Sequence[TrialSpec]]]
"""Returns the output folder and the trials of a command line."""
_END = "end"
_LOG_LEVEL = "TORCH_CPP_LOG_LEVEL"  # torch reads it at its import

ExitStatus = Annotated[int, Interval(ge=-255, le=255)]
Message = TypeVar("Message")


@dataclass(frozen=True)
class Start:
    """Message: every rank must start a trial.

    Attributes:
        trial: Id of the trial.
        meeting: Where its ranks meet: a port, or the random end of the name of a file.
    """

    trial: Annotated[str, StringConstraints(max_length=255)]
    meeting: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{1,32}$")]


@dataclass(frozen=True)
class RankEnd:
    """Message: a rank of a trial has ended.

    Attributes:
        status: Exit status of its process, negative for a signal.
        failure: How it failed; `None` if it did not fail or sent no reason.
    """

    status: ExitStatus
    failure: Failure | None = None


def send(store: Any, key: str, message: object) -> None:
    """Write a message to the store."""
    store.set(key, TypeAdapter(type(message)).dump_json(message))


def receive(store: Any, key: str, kind: type[Message]) -> Message:
    """Wait for a message in the store, and return it.

    Raises:
        UsageError: The store has other data in its place.
    """
    content = store.get(key)
    try:
        return TypeAdapter(kind).validate_json(content, strict=True)
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
    def of_environment(cls) -> Self | None:
        """Return the allocation of this command, or of the trial that it has started, as the environment describes it.

        `None` if the command was started alone, and for a rank of a trial.

        Raises:
            UsageError: Several processes were started without torchrun.
        """
        variables = os.environ
        if RANK in variables:
            return None
        if int(variables.get("WORLD_SIZE", "1")) > 1 and "LOCAL_RANK" in variables:
            if variables.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
                raise UsageError("several processes need the store of torchrun: start the command by torchrun")
            return cls(
                rank=int(variables["RANK"]),
                size=int(variables["WORLD_SIZE"]),
                local_rank=int(variables["LOCAL_RANK"]),
                address=variables["MASTER_ADDR"],
                port=int(variables["MASTER_PORT"]),
                restart=int(variables.get("TORCHELASTIC_RESTART_COUNT", "0")),
                one_machine=variables.get("LOCAL_WORLD_SIZE") == variables["WORLD_SIZE"],
            )
        # A batch script has SLURM_NTASKS too. Only `srun` sets the number of tasks of a step.
        if int(variables.get("SLURM_STEP_NUM_TASKS", "1")) > 1 and "TORCHELASTIC_RUN_ID" not in variables:
            raise UsageError(
                "srun has started this command several times; let it start torchrun once per machine: "
                "srun --ntasks-per-node 1 torchrun ... run_suite.py ... (docs/data-parallel.md)"
            )
        return None

    def rendezvous(self, folder: Path, meeting: str) -> str:
        """Return the URL at which the ranks of a trial find each other.

        On one machine this is a file in the folder of the trial, which only its owner can write to.

        Args:
            folder: Folder of the trial.
            meeting: As in `Start`.
        """
        return f"file://{folder / MEETING}{meeting}" if self.one_machine else f"tcp://{self.address}:{meeting}"

    def store(self) -> Any:
        """Return a connection to the store."""
        import torch.distributed as dist  # a command that was started alone does not need it

        store = dist.TCPStore(self.address, self.port, is_master=False, wait_for_workers=False)
        return dist.PrefixStore(f"pdt/{self.restart}", store)


def lead(allocation: Allocation, command: Callable[[], int]) -> int:
    """Run the command of rank 0, and send its exit status to the others when it ends."""
    die_with(os.getppid())  # torchrun
    store = allocation.store()
    status = 1
    try:
        status = command()
        return status
    except UsageError:
        status = 2
        raise
    finally:
        send(store, _END, status)


def follow(allocation: Allocation, plan: Plan) -> int:
    """Start this rank of each trial of rank 0's command, until that command ends.

    Args:
        allocation: The place of this command.
        plan: Returns the output folder and the trials that follow from this command's own line. It is called when rank
            0 starts its first trial. Rank 0 has then found no error in the line.

    Returns:
        The exit status of rank 0's command; 1 if torchrun, and with it the store, has ended without one.

    Raises:
        UsageError: The store has a message that no command of the suite has written.
    """
    die_with(os.getppid())  # torchrun
    os.environ.setdefault(_LOG_LEVEL, "FATAL")  # no stack trace when the store is lost
    import torch.distributed as dist

    try:
        return _follow(allocation, allocation.store(), functools.cache(plan))
    except dist.DistError:
        log.error("torchrun has ended")
        return 1


def _follow(allocation: Allocation, store: Any, plan: Plan) -> int:
    number = 1
    while True:
        if store.check([f"{TRIALS}/{number}"]):
            if not _is_over(store, number):
                try:
                    end = _run_rank(allocation, store, number, plan)
                except UsageError as error:
                    end = RankEnd(1, Failure(allocation.rank, "error", str(error)))
                send(store, f"{TRIALS}/{number}/{allocation.rank}", end)
            number += 1
        elif store.check([_END]):
            return receive(store, _END, ExitStatus)
        else:
            time.sleep(POLL_INTERVAL)


def _is_over(store: Any, number: int) -> bool:
    """Return whether rank 0 has stopped waiting for a trial.

    A trial that is killed, for example by `--timeout`, sends no message. The next trial then starts, or the command
    ends.
    """
    return any(store.check([key]) for key in (f"{TRIALS}/{number}/stop", f"{TRIALS}/{number + 1}", _END))


def in_allocation() -> bool:
    """Return whether this process belongs to a command of an allocation."""
    return Allocation.of_environment() is not None


def _run_rank(allocation: Allocation, store: Any, number: int, plan: Plan) -> RankEnd:
    """Run this rank of a trial, and return how it ended.

    Raises:
        UsageError: This command has not planned that trial, or does not see its folder.
    """
    start = receive(store, f"{TRIALS}/{number}", Start)
    folder = _checked_folder(*plan(), start.trial)
    variables = {name: value for name, value in environment(1).items() if name != _LOG_LEVEL}
    url = allocation.rendezvous(folder, start.meeting)
    with files.temporary_folder("pdt-rank-") as reports:
        rank = LocalRank(allocation.rank, allocation.local_rank, folder, url, reports, variables)
        try:
            while (status := rank.poll()) is None and not _is_over(store, number):
                time.sleep(POLL_INTERVAL)
        finally:
            rank.kill()
        return RankEnd(status or 0, rank.failure())


def _checked_folder(out: Path, trials: Sequence[TrialSpec], trial_id: str) -> Path:
    """Return the folder of a trial of this command. Its record must have the specification that this command planned.

    Raises:
        UsageError: There is no such trial or folder.
    """
    planned = next((trial for trial in trials if trial.trial_id == trial_id), None)
    if planned is None:
        raise UsageError(
            f"rank 0 starts the trial {trial_id!r}, which the command of this rank has not planned; all ranks need the "
            "same command line and the same kind of machine"
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
        self._ended: RankEnd | None = None

    def poll(self) -> int | None:
        key = f"{self._trial}/{self._rank}"
        if self._ended is None and self._store.check([key]):
            self._ended = receive(self._store, key, RankEnd)
        return self._ended.status if self._ended else None

    def kill(self) -> None:
        self._store.set(f"{self._trial}/stop", "")

    def failure(self) -> Failure | None:
        return self._ended.failure if self._ended else None


@contextlib.contextmanager
def remote_ranks(folder: Path) -> Iterator[tuple[str, Mapping[int, RankProcess]]]:
    """Ask the other commands of the allocation to start their ranks of a trial.

    Yields:
        The URL at which the ranks meet, and the other ranks by number; both are empty outside an allocation.
    """
    allocation = Allocation.of_environment()
    if allocation is None:
        yield "", {}
        return
    _remove_meetings(folder)  # a killed command may have left some
    store = allocation.store()
    if allocation.one_machine:
        meeting = secrets.token_hex(16)
    else:
        with socket.socket() as free:
            free.bind(("", 0))
            meeting = str(free.getsockname()[1])
    number = store.add("count", 1)
    send(store, f"{TRIALS}/{number}", Start(folder.name, meeting))
    try:
        yield (
            allocation.rendezvous(folder, meeting),
            {rank: RemoteRank(store, number, rank) for rank in range(1, allocation.size)},
        )
    finally:
        _remove_meetings(folder)


def _remove_meetings(folder: Path) -> None:
    for path in folder.glob(f"{MEETING}*"):
        path.unlink(missing_ok=True)
