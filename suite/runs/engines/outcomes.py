"""How trials end, and which trial is next: what every engine needs."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

from suite import files
from suite.errors import UsageError, in_words
from suite.runs.folder.columns import REMOVED_NOTHING
from suite.runs.folder.records import RUNNING, damage, read_record, write_record
from suite.runs.progress.files import EpochReader, ProgressFile
from suite.runs.progress.listeners import ProgressListener
from suite.runs.spec import TrialSpec


def record_end(trial: TrialSpec, folder: Path, status: str, message: str) -> dict[str, Any]:
    """Write the record of how a trial ended, and return it. If writing fails, the message says so."""
    try:
        files.make_folder(folder)
        write_record(folder, trial, status, message)
    except (OSError, UsageError) as error:
        text = in_words(error) if isinstance(error, OSError) else str(error)
        return {"status": status, "message": f"{message}; its record cannot be written: {text}"}
    return {"status": status, "message": message}


def end_unstarted(trial: TrialSpec, folder: Path, status: str, message: str, progress: ProgressListener) -> None:
    """End a trial that was not started."""
    progress.started(trial)
    progress.ended(trial, record_end(trial, folder, status, message), 0.0)


def next_ready(waiting: Collection[tuple[TrialSpec, Path]], running: Iterable[str]) -> tuple[TrialSpec, Path] | None:
    """Return the first trial whose dependencies have all ended; `None` if there is none.

    Args:
        waiting: Trials that were not started, with their folders.
        running: Ids of the trials that are running.
    """
    ahead = {folder.name for _, folder in waiting} | set(running)
    return next((item for item in waiting if not ahead & set(item[0].depends_on.values())), None)


def why_skipped(trial: TrialSpec, folder: Path) -> str:
    """Return why a trial cannot be trained because of one that it depends on; empty if it can.

    A control of methods that removed nothing would repeat dense training (`REMOVED_NOTHING`).
    """
    results = {}
    for other in trial.depends_on.values():
        record = read_record(folder.parent / other)
        if record is None or record["status"] != "done" or damage(folder.parent / other, record):
            return f"it depends on {other}, which is not done"
        results[other] = record.get("result", {})
    counts = ("params", "inference_flops")
    # Some methods also depend on the dense training whose weights they start from, which removes nothing.
    whole = all(one.get(name) == one.get(f"{name}_dense") for one in results.values() for name in counts)
    if trial.control and results and whole:
        return f"it is a control of {' and '.join(results)}, which {REMOVED_NOTHING}"
    return ""


def status_of(folder: Path) -> str:
    """Return the status in `trial.json`; a missing or damaged record counts as running."""
    record = read_record(folder)
    return RUNNING if record is None or "spec" not in record else str(record["status"])


def show(trial: TrialSpec, folder: Path, epochs: EpochReader, progress: ProgressListener) -> None:
    """Report the position of a running trial, and the epochs that have ended since the last call."""
    position = ProgressFile(folder).read()
    if position is not None:
        progress.position(trial, position)
    for record in epochs.read():
        progress.epoch(trial, record)
