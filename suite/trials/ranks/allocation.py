"""Commands that `torchrun` has started once per rank, on one or several machines.

The command of rank 0 plans, runs the trials one after the other, and reports. The other commands follow it: for each
trial they start their rank in the same output folder, until rank 0 sends that it has finished. They communicate through
the store of torchrun. Its agents end all commands if one command ends or is lost. The store is not protected
(`messages`), so each command determines from its own command line what it runs.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from suite import files
from suite.errors import UsageError
from suite.trials.engines.exit_with_parent import PARENT, die_with
from suite.trials.engines.local import environment
from suite.trials.folder.records import read_record
from suite.trials.ranks.failures import Failure
from suite.trials.ranks.messages import ExitStatus, RankEnd, Start, receive, send
from suite.trials.ranks.processes import RANK, LocalRank
from suite.trials.spec import TrialSpec

log = logging.getLogger(__name__)

VARIABLE = "PDT_ALLOCATION"
"""Environment variable of the trials of rank 0's command: the allocation, as JSON."""

POLL_INTERVAL = 0.2
TRIALS = "trials"
MEETING = ".ranks-"
"""Beginning of the name of a file in a trial's folder through which its ranks on one machine meet."""
Plan = Callable[[], tuple[Path, Sequence[TrialSpec]]]
"""Returns the output folder and the trials of a command line."""
_END = "end"


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
        """Return the allocation that the environment describes; `None` if this command was started alone.

        Raises:
            UsageError: The environment lacks a variable, or several tasks of Slurm run without torchrun.
        """
        variables = os.environ
        if RANK in variables or VARIABLE in variables:  # this is a rank of a trial
            return None
        try:
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
        except (KeyError, ValueError) as error:
            raise UsageError(f"the environment of torchrun is incomplete: {error}") from error
        return None

    def rendezvous(self, folder: Path, meeting: str) -> str:
        """Return the URL at which the ranks of a trial find each other.

        On one machine this is a file in the folder of the trial, which only its owner can write to.

        Args:
            folder: Folder of the trial.
            meeting: As in `messages.Start`.
        """
        return f"file://{folder / MEETING}{meeting}" if self.one_machine else f"tcp://{self.address}:{meeting}"

    def store(self) -> Any:
        """Return a connection to the store.

        Raises:
            UsageError: It cannot be reached.
        """
        import torch.distributed as dist  # a command that was started alone does not need it

        try:
            store = dist.TCPStore(self.address, self.port, is_master=False, wait_for_workers=False)
        except (RuntimeError, OSError) as error:  # the store raises only these
            raise UsageError(
                f"the store of torchrun at {self.address}:{self.port} cannot be reached: {error}"
            ) from error
        return dist.PrefixStore(f"pdt/{self.restart}", store)


@contextlib.contextmanager
def _as_leader(allocation: Allocation) -> Iterator[None]:
    os.environ[VARIABLE] = json.dumps(asdict(allocation))
    try:
        yield
    finally:
        del os.environ[VARIABLE]


def lead(allocation: Allocation, command: Callable[[], int]) -> int:
    """Run the command of rank 0, and send its exit status to the others when it ends."""
    _end_with_torchrun()
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
        send(store, _END, status)


def _end_with_torchrun() -> None:
    """End this command and the trial that it has started if torchrun, its parent, is killed."""
    if sys.platform == "linux":
        die_with(os.getppid())


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
    _end_with_torchrun()
    plan = functools.cache(plan)
    dist = _quiet_distributed()
    try:
        return _follow(allocation, allocation.store(), plan)
    except dist.DistError:
        log.error("torchrun has ended")
        return 1


def _quiet_distributed() -> Any:
    """Return `torch.distributed`. Its C++ code prints no stack trace when the store is lost."""
    name = "TORCH_CPP_LOG_LEVEL"  # torch reads it at its import
    chosen = name in os.environ
    os.environ.setdefault(name, "FATAL")
    try:
        import torch.distributed as dist
    finally:
        if not chosen:
            del os.environ[name]  # the trials print all messages
    return dist


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
    return VARIABLE in os.environ or Allocation.of_environment() is not None


def _run_rank(allocation: Allocation, store: Any, number: int, plan: Plan) -> RankEnd:
    """Run this rank of a trial, and return how it ended.

    Raises:
        UsageError: This command has not planned that trial, or does not see its folder.
    """
    start = receive(store, f"{TRIALS}/{number}", Start)
    out, trials = plan()
    folder = _checked_folder(out, trials, start.trial)
    with (
        files.temporary_folder("pdt-rank-") as reports,
        os.fdopen(files.open_descriptor(folder / "log.txt", os.O_WRONLY | os.O_APPEND), "ab") as log_file,
    ):
        rank = LocalRank(
            allocation.rank,
            allocation.local_rank,
            folder,
            allocation.rendezvous(folder, start.meeting),
            reports,
            # The pipe ends the rank when this process ends, as for a trial of an engine (`exit_with_parent`).
            stdin=subprocess.PIPE,
            stdout=log_file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**environment(1), PARENT: str(os.getpid())},
        )
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
    if record.spec != TrialSpec.from_json(files.read_json(json.dumps(planned.to_json()).encode())):
        raise UsageError(f"{folder}: trial.json is not that of the trial that the command of this rank has planned")
    return folder
