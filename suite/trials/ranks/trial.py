"""A trial of several ranks.

The process that an engine starts for a trial starts the ranks, waits for them and ends them together. If a rank fails
or is killed, it kills the others, which may wait for that rank, and records which rank failed. Under `torchrun` it
starts only rank 0, and asks the other processes of the allocation to start theirs.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from suite import files
from suite.trials.folder.records import RUNNING, lacking, read_record, write_record
from suite.trials.ranks import failures
from suite.trials.ranks.allocation import MEETING
from suite.trials.ranks.failures import Failure
from suite.trials.ranks.processes import POLL_INTERVAL, LocalRank, RankProcess, wait_for
from suite.trials.ranks.remote import remote_ranks
from suite.trials.spec import TrialSpec

log = logging.getLogger("pdt.trial")

CALLBACK_SECONDS = 60.0  # for the callbacks of rank 0 at the end of a failed trial


def run_ranks(spec: TrialSpec, folder: Path) -> int:
    """Run a trial in `spec.processes` processes, and wait for them.

    Returns:
        0 if the trial is done; otherwise 1, and `trial.json` has the reason.
    """
    _remove_meetings(folder)  # a killed command may have left some
    try:
        with files.temporary_folder("pdt-ranks-") as reports:
            others = remote_ranks(folder)
            url = others.rendezvous if others else f"file://{reports / 'store'}"
            here = range(1 if others else spec.processes)
            ranks: dict[int, RankProcess] = {rank: LocalRank(rank, rank, folder, url, reports) for rank in here}
            ranks |= others.ranks if others else {}
            try:
                failed = wait_for(ranks)
                return _end(spec, folder, ranks, failures.cause(failed)) if failed else 0
            finally:
                for process in ranks.values():
                    process.kill()
    finally:
        _remove_meetings(folder)


def _remove_meetings(folder: Path) -> None:
    for path in folder.glob(f"{MEETING}*"):
        path.unlink(missing_ok=True)


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
        failures.report(failure)
    while (record := read_record(folder)) is None or record.status == RUNNING:
        time.sleep(POLL_INTERVAL)
    return record.status, record.message
