"""The ranks of a trial as processes: how they are started, waited for, and ended together.

The process that an engine starts for a trial starts the ranks. If a rank fails or is killed, it kills the others, which
may wait for that rank, and records which rank failed. Under `torchrun` it starts only rank 0
(`suite.trials.ranks.allocation`).
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal, Protocol

from annotated_types import MaxLen

from suite import files
from suite.trials.folder.records import RUNNING, lacking, read_record, write_record
from suite.trials.process import LOCAL_RANK, RANK, RENDEZVOUS, start_process, trial_command
from suite.trials.spec import TrialSpec

log = logging.getLogger("pdt.trial")

REPORTS = "PDT_RANK_FAILURES"
"""Environment variable of a rank: the folder for the report of its failure."""
POLL_INTERVAL = 0.1
GRACE_SECONDS = 10.0  # after the first failure: the other ranks find it, and rank 0 writes its measurements
CALLBACK_SECONDS = 60.0  # for the callbacks of rank 0 at the end of a failed trial

FailedStatus = Literal["diverged", "oom", "error"]


@dataclass(frozen=True)
class Failure:
    """How a rank ended without finishing.

    Attributes:
        rank: Its number.
        status, message: As in `trial.json`.
        lost_others: Whether its connection to another rank ended. The cause is then elsewhere.
    """

    rank: int
    status: FailedStatus
    message: Annotated[str, MaxLen(10_000)]
    lost_others: bool = False

    def in_words(self) -> str:
        """Return the message, with the number of the rank if it is above 0."""
        named = self.rank == 0 or self.message.startswith("rank ")
        return self.message if named else f"rank {self.rank}: {self.message}"

    def report(self) -> None:
        """Tell the process that started this rank, if it is a rank of a trial, how it failed."""
        if (folder := os.environ.get(REPORTS)) is None:
            return
        with contextlib.suppress(OSError):  # the disk may be full; the exit status too tells that the rank failed
            # The file is complete as soon as it exists, because another process reads it while the ranks run.
            files.write(Path(folder, f"{self.rank}.json"), json.dumps(asdict(self)), durable=False)


def cause(failures: Sequence[Failure]) -> Failure:
    """Return the failure that caused the others: that of the lowest rank which has not only lost a connection."""
    return min(failures, key=lambda failure: (failure.lost_others, failure.rank))


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
        variables: Environment variables of the trial.
    """

    def __init__(
        self, rank: int, local_rank: int, folder: Path, rendezvous: str, reports: Path, variables: Mapping[str, str]
    ) -> None:
        self.report = reports / f"{rank}.json"
        own = {RANK: str(rank), LOCAL_RANK: str(local_rank), RENDEZVOUS: rendezvous, REPORTS: str(reports)}
        self.process = start_process(trial_command(folder), folder, {**variables, **own})

    def poll(self) -> int | None:
        return self.process.poll()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def failure(self) -> Failure | None:
        return Failure(**json.loads(self.report.read_bytes())) if self.report.is_file() else None


def wait_for(ranks: Mapping[int, RankProcess]) -> Sequence[Failure]:
    """Wait until all ranks have ended or reported a failure.

    The wait also ends some time after a rank has failed, or after rank 0 is done, which has written the result. The
    other ranks may hang then.

    Returns:
        The failures of the ranks; empty if no rank that has ended has failed.
    """
    deadline = float("inf")
    while True:
        ended = sum(process.poll() is not None or process.failure() is not None for process in ranks.values())
        failed = [failure for rank, process in ranks.items() if (failure := _failure(rank, process))]
        if ended == len(ranks) or time.monotonic() >= deadline:
            return failed
        if failed or ranks[0].poll() == 0:
            deadline = min(deadline, time.monotonic() + GRACE_SECONDS)
        time.sleep(POLL_INTERVAL)


def _failure(rank: int, process: RankProcess) -> Failure | None:
    # The report counts more than the exit status, because a rank that has failed may also crash while it ends.
    status, reported = process.poll(), process.failure()
    if reported or not status:
        return reported
    how = f"was killed by signal {-status}" if status < 0 else f"ended with exit status {status}"
    return Failure(rank, "error", f"rank {rank} {how}")


def run_ranks(spec: TrialSpec, folder: Path, rendezvous: str, others: Mapping[int, RankProcess]) -> int:
    """Run a trial in `spec.processes` processes, and wait for them.

    Args:
        rendezvous: URL at which the ranks meet; empty for a file in a private temporary folder.
        others: The ranks above 0 that other commands start; empty to start all here.

    Returns:
        0 if the trial is done; otherwise 1, and `trial.json` has the reason.
    """
    with files.temporary_folder("pdt-ranks-") as reports:
        url, count = rendezvous or f"file://{reports / 'store'}", spec.processes - len(others)
        ranks = {**{rank: LocalRank(rank, rank, folder, url, reports, os.environ) for rank in range(count)}, **others}
        try:
            failed = wait_for(ranks)
            return _end(spec, folder, ranks, cause(failed)) if failed else 0
        finally:
            for process in ranks.values():
                process.kill()


def _end(spec: TrialSpec, folder: Path, ranks: Mapping[int, RankProcess], cause: Failure) -> int:
    """Write into the trial's record why it failed and what rank 0 measured, and return the exit status."""
    for rank, process in ranks.items():
        if rank or not process.failure():
            process.kill()  # otherwise it would write into the record
    record = read_record(folder)
    if record and record.done and not lacking(folder, record):
        log.warning("%s, after the trial was done; its result is kept", cause.in_words())
        return 0
    known = (record.result, record.provenance) if record else ({}, {})
    write_record(folder, spec, cause.status, cause.in_words(), *known)
    deadline = time.monotonic() + CALLBACK_SECONDS
    while ranks[0].poll() is None and time.monotonic() < deadline:
        time.sleep(POLL_INTERVAL)
    return 1


def settle(folder: Path, failure: Failure, write: Callable[[str, str], None]) -> tuple[str, str]:
    """Report, in rank 0, how it failed, and wait until the process that waits for the ranks has recorded the cause.

    Args:
        folder: Folder of the trial.
        failure: How rank 0 failed.
        write: Writes a status, a message and what rank 0 measured into the trial's record.

    Returns:
        Status and message of the record. The waiting process ends this one if it cannot write them.

    Raises:
        OSError: `write` failed. The failure has been reported nevertheless.
    """
    try:
        write(RUNNING, "")
    finally:
        failure.report()
    while (record := read_record(folder)) is None or record.status == RUNNING:
        time.sleep(POLL_INTERVAL)
    return record.status, record.message
