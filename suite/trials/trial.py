"""One trial in its own process, `python -m suite.trials.trial FOLDER`: from `trial.json` to `model.pt` and a result.

A trial always ends with a status in `trial.json`. If it is killed, the engine writes the status. It resumes from
`checkpoint.pt` if that file exists.
"""

from __future__ import annotations

import contextlib
import json
import logging
import sys
import time
import traceback
from pathlib import Path

from suite.errors import in_words
from suite.trials.process import rank_of_environment, take_place, watch_parent
from suite.trials.ranks.allocation import remote_ranks
from suite.trials.ranks.processes import Failure, run_ranks, settle
from suite.trials.spec import TrialSpec


def main() -> int:
    """Run the trial whose folder is the first argument, and return 0 if it is done, otherwise 1."""
    began = time.perf_counter()
    watch_parent()  # before torch starts threads
    take_place()  # for the same reason
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    folder = Path(sys.argv[1])
    spec = TrialSpec.from_json(json.loads((folder / "trial.json").read_text(encoding="utf-8"))["spec"])
    rank = rank_of_environment()
    if spec.processes > 1 and rank is None:
        with remote_ranks(folder) as others:
            return run_ranks(spec, folder, *others)
    # These import torch, which must find the cores taken.
    from suite.trials.ranks.connection import leave_ranks
    from suite.trials.trial_run import TrialRun, failure_of

    trial = TrialRun(spec, folder, rank or 0, began)
    failure: Failure | None = None
    try:
        trial.run()
        if rank is not None:
            leave_ranks()
    except Exception as error:  # each failure becomes a status; log.txt has the traceback
        with contextlib.suppress(OSError):  # the disk of the log may be full
            traceback.print_exc()
        failure = failure_of(error, rank or 0)
    if rank:  # only rank 0 writes files of the trial
        if failure:
            failure.report()
        return 1 if failure else 0
    status, message = (failure.status, failure.message) if failure else ("done", "")
    try:
        if failure and rank is not None:
            # The process that waits for the ranks finds the cause, and records it with these results.
            status, message = settle(folder, failure, trial.write)
        else:
            trial.write(status, message)
        if trial.calls:
            named = {"trial_id": spec.trial_id, "status": status, "message": message}
            if not trial.calls.end({**named, "result": trial.result, "provenance": trial.provenance}):
                trial.write(status, message)  # the record names the callback that failed
    except OSError as error:  # the engine reports the last line of the log
        with contextlib.suppress(OSError):
            print(in_words(error), flush=True)
        return 1
    if status == "done":
        (folder / "checkpoint.pt").unlink(missing_ok=True)
    return 0 if status == "done" else 1


if __name__ == "__main__":
    sys.exit(main())
