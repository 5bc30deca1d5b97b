"""A trial of several ranks.

The process that an engine starts for a trial starts the ranks, waits for them and ends them together: if one of them
fails or is killed, the others, which may be waiting for it, are killed, and the trial's record says which one it was.
Under `torchrun` or Slurm it starts rank 0 only, and asks the other processes of the allocation to start theirs.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from suite.runs.folder.records import read_record, write_record
from suite.runs.ranks import failures
from suite.runs.ranks.allocation import remote_ranks
from suite.runs.ranks.failures import Failure
from suite.runs.ranks.processes import LocalRank, RankProcess, wait_for
from suite.runs.spec import TrialSpec


def run_ranks(spec: TrialSpec, folder: Path) -> int:
    """Run a trial in `spec.processes` processes, and wait for them.

    Returns:
        0 if the trial is done; otherwise 1, and `trial.json` says why.
    """
    reports = Path(tempfile.mkdtemp(prefix="pdt-ranks-"))
    try:
        others = remote_ranks(folder)
        url = others.rendezvous if others else f"file://{reports / 'store'}"
        here = range(1 if others else spec.processes)
        ranks: dict[int, RankProcess] = {rank: LocalRank(rank, rank, folder, url, reports) for rank in here}
        ranks |= others.ranks if others else {}
        try:
            found = wait_for(ranks)
        finally:
            for one in ranks.values():
                one.kill()
        if found:
            _record(spec, folder, failures.cause(found))
        return 1 if found else 0
    finally:
        shutil.rmtree(reports, ignore_errors=True)


def _record(spec: TrialSpec, folder: Path, cause: Failure) -> None:
    """Write the cause into the trial's record, with what rank 0 measured."""
    record = read_record(folder) or {}
    result, provenance = record.get("result") or {}, record.get("provenance") or {}
    write_record(folder, spec, cause.status, cause.in_words(), result=result, provenance=provenance)
