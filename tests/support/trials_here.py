"""An engine for tests whose subject is what trials leave, and not their processes."""

import sys
import time

import pytest

from suite import files
from suite.trials import trial
from suite.trials.folder.records import RUNNING, read_record, write_record


def run_here(engine, trials, progress):
    """Run trials one after the other in this process, which has imported torch already."""
    for spec, folder in trials:
        began = time.monotonic()
        progress.started(spec)
        files.make_folder(folder)
        write_record(folder, spec, RUNNING)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "argv", ["trial", str(folder)])
            trial.main()
        progress.ended(spec, read_record(folder), time.monotonic() - began)
