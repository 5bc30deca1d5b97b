"""An engine for tests whose subject is what trials leave, and not their processes."""

import sys
import time

import pytest

import reports
from suite.cli import preparation
from suite.trials import trial
from suite.trials.engines.local import LocalEngine
from suite.trials.folder.records import RUNNING, read_record, write_record


def run_here(engine, trials, progress):
    """Run trials one after the other in this process, which has imported torch already."""
    for spec, folder in trials:
        began = time.monotonic()
        progress.started(spec)
        folder.mkdir(parents=True, exist_ok=True)
        write_record(folder, spec, RUNNING)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "argv", ["trial", str(folder)])
            trial.main()
        progress.ended(spec, read_record(folder).to_json(), time.monotonic() - began)


def let_run_here(patch):
    """Let commands run trials with `run_here`, without rehearsal and report, which take longer than a small trial."""
    patch.setattr(LocalEngine, "run", run_here)
    patch.setattr(preparation, "rehearse", lambda *given: {})
    patch.setattr(reports, "write_report", lambda *given, **more: reports.Written([], ()))
