"""A command of the suite whose processes count their writes to a folder, of which one is killed before a chosen write.

    python killing.py FOLDER COUNTER AT VICTIM WORDS...

COUNTER is a file with the number of writes and what was killed. AT is the number of the write, from 1; 0 kills nothing.
VICTIM is `writer` for the process that is about to write, or `command` for the one that started it. Facts and reports
that take long are left out. Trials have to be forked from the command, to inherit the counter.
"""

import mmap
import os
import signal
import sys
import time
from pathlib import Path

import reports
from suite import files
from suite.cli import main as cli
from suite.trials import provenance, trial_run
from suite.trials.engines import local

WRITING = os.O_WRONLY | os.O_RDWR
EVENTS = {"os.rename": 1, "os.remove": 0, "os.mkdir": 0, "os.rmdir": 0}
"""Events that count besides opening, with the place of the path in their arguments."""


def count_writes(folder: str, counter: str, at: int, victim: str) -> None:
    """Count the writes of this process and its forks."""
    with open(counter, "r+b") as file:
        shared = mmap.mmap(file.fileno(), 0)
    command = os.getpid()

    def listen(event: str, arguments: tuple) -> None:
        if event == "open" and isinstance(arguments[2], int) and arguments[2] & WRITING:
            path = arguments[0]
        elif event in EVENTS:
            path = arguments[EVENTS[event]]
        else:
            return
        if not isinstance(path, (str, bytes, os.PathLike)) or not os.fsdecode(path).startswith(folder):
            return
        number = int.from_bytes(shared[:8], "big") + 1
        shared[:8] = number.to_bytes(8, "big")
        if number != at:
            return
        is_trial = os.getpid() != command
        what = f"{'trial' if is_trial else 'command'}: {event} {Path(os.fsdecode(path)).name}"
        shared[8:] = what.encode()[:192].ljust(192)
        if victim == "command" and is_trial:
            os.kill(command, signal.SIGKILL)
            time.sleep(60)  # this process then ends with its parent
        os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(listen)


def write_report(folder: Path, **more: bool) -> reports.Written:
    """Write an empty report."""
    files.write(folder / "report.html", "x")
    return reports.Written([folder / "report.html"], ())


if __name__ == "__main__":
    provenance.busy_cores = lambda: 0.0
    provenance.program_output = lambda *command: ""
    trial_run.images_per_second = lambda trainer: 1.0
    local.POLL_INTERVAL = 0.01
    reports.write_report = write_report
    folder, counter, at, victim, *words = sys.argv[1:]
    count_writes(folder, counter, int(at), victim)
    sys.argv[1:] = words  # which the suite records
    sys.exit(cli.main(words))
