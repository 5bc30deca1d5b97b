"""Planning runs in a separate process, so that a command does not keep torch in memory while its trials train."""

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from suite.trials.process import forked

ROOT = Path(__file__).resolve().parents[2]

WAITS = """
import os, sys
from suite.cli.main import main
from suite.errors import MissingData
from suite.trials import trial
from suite.trials.process import forked
from suite.trials.folder.store import Store

def holds():
    return [name for name in ("torch", "numpy", "pandas", "pyarrow") if name in sys.modules]

def take_place():
    print("before torch:", holds())
    raise SystemExit

trial.watch_parent, trial.take_place = lambda: None, take_place
try:
    trial.main()
except SystemExit:
    pass

def fails():
    raise MissingData("toys are sold out")

def breaks():
    raise KeyError("a bug")

for call in (fails, lambda: sys.exit(3), breaks):
    try:
        forked(call)
    except (MissingData, SystemExit) as error:
        print(repr(error))

def choose(store, trials, only):
    print(len(trials), holds(), flush=True)
    os._exit(0)

Store.choose = choose
options = ("--methods", "dense", "--task", "digits", "--preset", "smoke", "--device", "cpu", "--dtype", "float32")
main([*options, "--seeds", "3", "--out", sys.argv[1]])
"""

ENDLESS = """
import sys, time
from pathlib import Path
from suite import files
from suite.trials.process import forked

def endless():
    import os
    with files.replacing(Path(sys.argv[1])):
        print(os.getpid(), flush=True)
        time.sleep(60)

forked(endless)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="calls happen in another process on Linux alone")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_call_dies_with_the_process_that_waits_for_it(tmp_path, number, started_programs):
    """Otherwise a killed command would continue to download a data set. An interrupted one removes what it has."""
    command = [sys.executable, "-c", ENDLESS, str(tmp_path / "data")]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        called = int(process.stdout.readline())
        process.send_signal(number)
        # Its output ends when the last process that has it open has ended.
        alive = not select.select([process.stdout], [], [], 20)[0]
        if alive:
            os.kill(called, signal.SIGKILL)
    assert called != process.pid
    assert not alive
    assert bool([*tmp_path.iterdir()]) is (number == signal.SIGKILL)


def test_the_process_that_waits_for_trials_holds_no_torch(tmp_path, started_programs):
    """Neither planning nor rehearsal may import it here: 629 MiB instead of 28. What they raise is raised here."""
    command = [sys.executable, "-c", WAITS, str(tmp_path / "out")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.stdout.splitlines() == [
        "before torch: []",
        "MissingData('toys are sold out')",
        "SystemExit(1)",
        "SystemExit(1)",
        "3 []",
    ], done.stderr
    assert "KeyError: 'a bug'" in done.stderr


def test_a_call_happens_here_where_torch_is():
    thing = torch.zeros(1)
    assert forked(lambda: thing) is thing
