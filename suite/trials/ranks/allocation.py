"""Commands that `torchrun` or Slurm has started once per rank.

The command of rank 0 plans, runs the trials one after the other, and reports. The commands of the other ranks follow
it: for each trial they start their rank, in the same output folder, until rank 0 says that it has finished. They find
each other through a `TCPStore` of torch, in which each also shows that it still answers (`heartbeats`). What they run
follows from their own command lines, not from the store, which is not protected (`messages`).
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Self

from suite import files
from suite.errors import UsageError
from suite.trials.engines.exit_with_parent import PARENT
from suite.trials.folder.records import read_record
from suite.trials.ranks.failures import Failure
from suite.trials.ranks.heartbeats import Pulse, beat, has_joined
from suite.trials.ranks.messages import ExitStatus, RankEnd, Start, receive, send
from suite.trials.ranks.processes import RANK, LocalRank
from suite.trials.spec import TrialSpec

log = logging.getLogger(__name__)

VARIABLE = "PDT_ALLOCATION"
"""Environment variable of the trials of rank 0's command: the allocation, as JSON."""

POLL_INTERVAL = 0.2
ANNOUNCE_AFTER = timedelta(seconds=15)
FIRST_CONTACT = timedelta(minutes=10)
SLURM_PORT = 29400
TRIALS = "trials"
MEETING = ".ranks-"
"""Beginning of the name of a file in a trial's folder, through which its ranks on one machine find each other."""
Plan = Callable[[], tuple[Path, Sequence[TrialSpec]]]
"""Returns the output folder and the trials of a command line."""
_END, _LEFT, _IDENTITY = "end", "left", "pdt/identity"


@dataclass(frozen=True)
class Allocation:
    """The place of this command among those that were started together.

    Attributes:
        rank, size: Its number, and the number of commands.
        local_rank: Its number on this machine.
        address, port: Where rank 0 runs, and where the store listens.
        source: What started the commands.
        identity: Names what was started, in words; other commands that reach the same store have another identity.
        has_store: Whether the store runs already, in a process of `torchrun`.
        one_machine: Whether all of them run on one machine.
    """

    rank: int
    size: int
    local_rank: int
    address: str
    port: int
    source: str
    identity: str
    has_store: bool
    one_machine: bool = False

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
                # After a restart the agent's store still has what the commands before it have written.
                restart = variables.get("TORCHELASTIC_RESTART_COUNT", "0")
                return cls(
                    rank=int(variables["RANK"]),
                    size=int(variables["WORLD_SIZE"]),
                    local_rank=int(variables["LOCAL_RANK"]),
                    address=variables["MASTER_ADDR"],
                    port=int(variables["MASTER_PORT"]),
                    source="torchrun",
                    identity=f"restart {restart} of {variables['WORLD_SIZE']} commands",
                    has_store=variables.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
                    one_machine=variables.get("LOCAL_WORLD_SIZE") == variables["WORLD_SIZE"],
                )
            # A batch script has SLURM_NTASKS too, but only `srun` sets the number of tasks of a step.
            if int(variables.get("SLURM_STEP_NUM_TASKS", "1")) > 1:
                size, job, step = (int(variables[f"SLURM_{one}"]) for one in ("STEP_NUM_TASKS", "JOB_ID", "STEP_ID"))
                # The steps of a job, and jobs with neighbouring numbers, may run on the same host.
                port = SLURM_PORT + (31 * job + step) % 1000
                one_machine = variables.get("SLURM_STEP_NUM_NODES") == "1"
                here = "127.0.0.1" if one_machine else variables.get("MASTER_ADDR")
                return cls(
                    rank=int(variables["SLURM_PROCID"]),
                    size=size,
                    local_rank=int(variables["SLURM_LOCALID"]),
                    address=here or _first_host(variables["SLURM_STEP_NODELIST"]),
                    port=int(variables.get("MASTER_PORT") or port),
                    source="Slurm",
                    identity=f"job {job}, step {step} of {size} commands",
                    has_store=False,
                    one_machine=one_machine,
                )
        except (KeyError, ValueError) as error:
            raise UsageError(f"the environment of torchrun or Slurm is incomplete: {error}") from error
        return None

    @property
    def holder(self) -> str:
        """What runs the store, in words."""
        return "torchrun" if self.has_store else "the command of rank 0"

    def rendezvous(self, folder: Path, meeting: str) -> str:
        """Return the URL at which the ranks of a trial find each other.

        On one machine this is a file in the folder of the trial, which only its owner can write to.

        Args:
            folder: Folder of the trial.
            meeting: As in `messages.Start`.
        """
        return f"file://{folder / MEETING}{meeting}" if self.one_machine else f"tcp://{self.address}:{meeting}"

    def store(self) -> Any:
        """Return a connection to the store; rank 0's command starts it under Slurm.

        Raises:
            UsageError: The store cannot be reached, or belongs to commands that were started otherwise.
        """
        import torch.distributed as dist

        where = f"{self.address}:{self.port}"
        holds = self.rank == 0 and not self.has_store and VARIABLE not in os.environ
        try:
            store = self._connect(holds)
            if not self.has_store:
                if holds:
                    store.set(_IDENTITY, self.identity)
                found = store.get(_IDENTITY).decode()
                if found != self.identity:
                    raise UsageError(
                        f"at {where} is the store of {found}, and this command belongs to {self.identity}; give each "
                        "step a MASTER_PORT of its own"
                    )
        except (RuntimeError, OSError) as error:  # all errors of the store are, and the port may be taken
            raise UsageError(f"the store of {self.source} at {where} cannot be reached: {error}") from error
        return dist.PrefixStore(f"pdt/{self.identity}", store)

    def _connect(self, holds: bool) -> Any:
        """Start the store, or connect with it; one line says what is waited for if that takes long."""
        import torch.distributed as dist

        def connect(timeout: timedelta) -> Any:
            return dist.TCPStore(self.address, self.port, is_master=holds, timeout=timeout, wait_for_workers=False)

        if holds and self.one_machine:
            # By itself, torch listens on all interfaces.
            listener = socket.create_server((self.address, self.port))
            return dist.TCPStore(
                self.address, self.port, is_master=True, timeout=FIRST_CONTACT, wait_for_workers=False,
                master_listen_fd=listener.detach(),
            )  # fmt: skip
        if holds:
            return connect(FIRST_CONTACT)
        try:
            store = connect(ANNOUNCE_AFTER)
            store.set_timeout(FIRST_CONTACT)
            return store
        except dist.DistError:
            log.info("%s, at %s:%d", waiting_for(self.holder), self.address, self.port)
            return connect(FIRST_CONTACT)


def waiting_for(whom: str) -> str:
    """Return a line that says for whom this command waits, and how long."""
    return f"waiting for {whom} to start, up to {FIRST_CONTACT.total_seconds() / 60:.0f} minutes"


@contextlib.contextmanager
def _as_leader(allocation: Allocation) -> Iterator[None]:
    os.environ[VARIABLE] = json.dumps(asdict(allocation))
    try:
        yield
    finally:
        del os.environ[VARIABLE]


def lead(allocation: Allocation, command: Callable[[], int]) -> int:
    """Run the command of rank 0 when all ranks have started, and tell the others its exit status when it ends.

    Raises:
        UsageError: Another rank has not started in time.
    """
    store = allocation.store()
    status = 1
    try:
        _wait_for_commands(allocation, store)
        with _as_leader(allocation):
            status = command()
        return status
    except UsageError:
        status = 2
        raise
    finally:
        send(store, _END, status)
        # Rank 0's process may hold the store, so that it must end last.
        pulses = {rank: Pulse(store, rank) for rank in range(1, allocation.size) if has_joined(store, rank)}
        while any(not store.check([f"{_LEFT}/{rank}"]) and not one.is_silent() for rank, one in pulses.items()):
            time.sleep(POLL_INTERVAL)


def _wait_for_commands(allocation: Allocation, store: Any) -> None:
    """Wait until the commands of all ranks have started, so that a trial never waits for one that does not exist.

    Raises:
        UsageError: One has not started within `FIRST_CONTACT`.
    """
    began, announced = time.monotonic(), False
    while missing := [str(rank) for rank in range(1, allocation.size) if not has_joined(store, rank)]:
        waited = timedelta(seconds=time.monotonic() - began)
        whom = f"the command of rank {', '.join(missing)} of {allocation.source}"
        if waited > FIRST_CONTACT:
            raise UsageError(f"{whom} has not started within {FIRST_CONTACT.total_seconds() / 60:.0f} minutes")
        if waited > ANNOUNCE_AFTER and not announced:
            log.info("%s", waiting_for(whom))
            announced = True
        time.sleep(POLL_INTERVAL)


def follow(allocation: Allocation, plan: Plan) -> int:
    """Start this rank of each trial of rank 0's command, until that command ends.

    Args:
        allocation: The place of this command.
        plan: Returns the output folder and the trials that follow from this command's own line. It is called when rank
            0 starts its first trial, which has then found no error in the line.

    Returns:
        The exit status of rank 0's command; 1 if that command, and the store with it, has ended without one.

    Raises:
        UsageError: The store has a message that no command of the suite has written.
    """
    plan = functools.cache(plan)
    dist = _quiet_distributed()
    store = allocation.store()
    try:
        try:
            return _follow(allocation, store, plan)
        finally:
            store.set(f"{_LEFT}/{allocation.rank}", "")
    except dist.DistError:
        log.error("%s has ended", allocation.holder)
        return 1


def _quiet_distributed() -> Any:
    """Return `torch.distributed`, whose C++ code does not print a stack trace when the store is lost."""
    name = "TORCH_CPP_LOG_LEVEL"  # torch reads it when it is imported
    chosen = name in os.environ
    os.environ.setdefault(name, "FATAL")
    try:
        import torch.distributed as dist
    finally:
        if not chosen:
            del os.environ[name]  # the trials print all
    return dist


def _follow(allocation: Allocation, store: Any, plan: Plan) -> int:
    number = 1
    while True:
        beat(store, allocation.rank)
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
    """Return whether rank 0 does not wait for a trial any more.

    The process of a trial that is killed, such as by `--timeout`, says nothing; but then the next trial starts, or the
    command ends.
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
    from suite.trials.engines.local import environment

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
            # As an engine starts a trial, so that the rank ends with this process (`exit_with_parent`).
            stdin=subprocess.PIPE,
            stdout=log_file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**environment(1), PARENT: str(os.getpid())},
        )
        try:
            while (status := rank.poll()) is None and not _is_over(store, number):
                beat(store, allocation.rank)
                time.sleep(POLL_INTERVAL)
        finally:
            rank.kill()
        return RankEnd(status or 0, rank.failure())


def _checked_folder(out: Path, trials: Sequence[TrialSpec], trial_id: str) -> Path:
    """Return the folder of a trial of this command, whose record must have the specification that this command planned.

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
    for path in (folder.parent, folder):
        files.refuse_link(path)
    record = read_record(folder)
    if record is None:
        raise UsageError(f"{folder} is not visible here; --out must be a folder that all machines share")
    if record.get("spec") != files.read_json(json.dumps(planned.to_json()).encode()):
        raise UsageError(f"{folder}: trial.json is not that of the trial that the command of this rank has planned")
    return folder


def _first_host(nodes: str) -> str:
    """Return the first host of a list as Slurm writes it, such as `gpu[01-04,07]`."""
    done = subprocess.run(["scontrol", "show", "hostnames", nodes], capture_output=True, text=True, check=False)
    if done.returncode or not done.stdout.split():
        raise ValueError(f"MASTER_ADDR is not set, and scontrol does not know the hosts of '{nodes}'")
    return done.stdout.split()[0]
