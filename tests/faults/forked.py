"""Complete commands in forked processes, which save the seconds of importing torch.

A case process is forked from this one and runs the command in a separate process; the command's engine forks its
trials. Each of them is a process that can be killed and has real signals, locks and pipes. Two things are replaced:
programs are forked instead of started (`subprocess.Popen` of the engine), and facts that take long to collect (the load
of the machine, versions of compilers, the speed of inference) are constants.
"""

import contextlib
import ctypes
import importlib
import io
import json
import logging
import mmap
import os
import signal
import struct
import sys
import time
import traceback
import warnings
from dataclasses import dataclass
from pathlib import Path

import reports
from suite import files
from suite.cli import main as cli
from suite.trials import provenance, trial, trial_run
from suite.trials.engines import local

PR_SET_CHILD_SUBREAPER = 36
PATIENCE_S = 20  # until the processes of a killed command must have ended
LIMIT_S = 120  # limit for one command
WRITING = os.O_WRONLY | os.O_RDWR


@dataclass
class Ended:
    """Result of a command.

    Attributes:
        status: Exit status; negative for the signal that killed the command.
        output: Output of the command and its processes.
        orphans: Number of processes that were left.
        operations: Number of disk writes of the command and its trials, up to its end or the kill.
        killed: Operation at which a process was killed; empty if none was killed.
    """

    status: int
    output: str
    orphans: int
    operations: int
    killed: str


class Operations:
    """Counts the writes to a folder in all processes of a case, and kills a process at one of them.

    Args:
        folder: Folder whose files count.
        at: Number of the write, from 1; 0 kills no process.
        victim: `writer` for the process that is about to write, `command` for the one that started it.
    """

    def __init__(self, folder, at=0, victim="writer"):
        self.folder, self.at, self.victim = str(folder), at, victim
        self._shared = mmap.mmap(-1, 4096)
        self._active = False

    def install(self):
        """Start counting in this process and its forks. Only for processes that end with `os._exit`."""
        self._active = True
        self._command = os.getpid()
        sys.addaudithook(self._on_event)
        real_fsync, real_fdopen = os.fsync, os.fdopen

        def fsync(descriptor):
            if self._is_ours(Path(f"/proc/self/fd/{descriptor}").readlink()):
                self.happens("fsync")
            real_fsync(descriptor)

        def fdopen(descriptor, mode="r", *arguments, **keywords):
            if mode in ("wb", "ab") and self._is_ours(Path(f"/proc/self/fd/{descriptor}").readlink()):
                return _Writer(descriptor, mode, self)
            return real_fdopen(descriptor, mode, *arguments, **keywords)

        os.fsync, os.fdopen = fsync, fdopen

    @property
    def count(self):
        return struct.unpack_from("q", self._shared, 0)[0]

    @property
    def killed(self):
        return self._shared[8:200].rstrip(b"\0").decode()

    def happens(self, what, before=lambda: None):
        """Count an operation; at the selected one, call `before` and kill the process."""
        count = self.count + 1
        struct.pack_into("q", self._shared, 0, count)
        if count != self.at:
            return
        before()
        is_trial = os.getpid() != self._command
        self._shared[8:200] = f"{'trial' if is_trial else 'command'}: {what}".encode()[:192].ljust(192, b"\0")
        if self.victim == "command" and is_trial:
            os.kill(self._command, signal.SIGKILL)
            time.sleep(PATIENCE_S)  # this process then ends with its parent
        os.kill(os.getpid(), signal.SIGKILL)

    def _is_ours(self, path):
        return isinstance(path, (str, bytes, os.PathLike)) and os.fsdecode(path).startswith(self.folder)

    def _on_event(self, event, arguments):
        if event == "open" and isinstance(arguments[2], int) and arguments[2] & WRITING:
            path = arguments[0]
        elif event in ("os.rename", "os.remove", "os.mkdir", "os.rmdir"):
            path = arguments[1] if event == "os.rename" else arguments[0]
        else:
            return
        if self._is_ours(path):
            self.happens(f"{event} {Path(os.fsdecode(path)).name}")


class _Writer(io.BufferedWriter):
    """A file that has half of the bytes on the disk if its process is killed in a write."""

    def __init__(self, descriptor, mode, operations):
        super().__init__(io.FileIO(descriptor, mode))
        self._operations, self._written, self._next = operations, 0, 0

    def write(self, data):
        view = memoryview(data).cast("B")
        self._written += len(view)
        if self._written < self._next:
            return super().write(data)
        # torch writes a file in thousands of parts; count only the first one and others at growing distances.
        self._next = max(2048, 8 * self._written)

        def half():
            io.BufferedWriter.write(self, view[: len(view) // 2])
            self.flush()

        self._operations.happens("write", half)
        return super().write(data)


class ForkedPopen:
    """Replacement of `subprocess.Popen` for `python -m suite.trials.trial FOLDER` that forks this process."""

    def __init__(self, command, *, stdin, stdout, stderr, start_new_session, env):
        assert start_new_session
        reader, writer = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.setsid()
            os.dup2(reader, 0)
            os.dup2(stdout.fileno(), 1)
            os.dup2(1, 2)
            os.closerange(3, 256)  # as Popen does, so that no trial keeps the lock
            os.environ.clear()
            os.environ.update(env)
            _speak_to_descriptors()
            sys.argv = ["trial", command[-1]]
            _leave(trial.main)
        os.close(reader)
        self.stdin = os.fdopen(writer, "wb", buffering=0)
        self.returncode = None

    def kill(self):
        os.kill(self.pid, signal.SIGKILL)

    def wait(self):
        if self.returncode is None:
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.returncode


class SamePopen:
    """Like `ForkedPopen`, but runs the trial in this process and then forks a child that ends at once."""

    def __init__(self, command, **options):
        sys.argv = ["trial", command[-1]]
        status = trial.main()
        self.pid, self.stdin = os.fork(), None
        if self.pid == 0:
            os._exit(status)

    kill, wait = ForkedPopen.kill, ForkedPopen.wait
    returncode = None


def _speak_to_descriptors():
    """Print to the descriptors 1 and 2, even if a test runner captures `print`."""
    sys.stdout = open(1, "w", buffering=1, encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
    for logger in (logging.getLogger(), logging.getLogger("pdt.trial")):
        for handler in list(logger.handlers):
            logger.removeHandler(handler)


def _leave(main):
    """End a forked process with the status that `main` returns, without the exit handlers of a test runner."""
    status = 70
    try:
        status = main()
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else 71
    except BaseException:
        with contextlib.suppress(OSError):
            traceback.print_exc()
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
        os._exit(status & 255)


def quick_facts(popen=ForkedPopen):
    """Replace slow functions that do not matter here, in a forked process."""
    os.environ["OMP_NUM_THREADS"] = "1"  # as in the process that this one was forked from
    provenance.busy_cores = lambda: 0.0
    provenance.program_output = lambda *command: ""
    trial_run.images_per_second = lambda trainer: 1.0
    local.POLL_INTERVAL = 0.01
    local.subprocess = type("Forking", (), {"Popen": popen, "PIPE": -1, "STDOUT": -2})


def import_as(main):
    """Import everything into this process that `main` imports when it runs in a forked one."""
    reader, writer = os.pipe()
    before = set(sys.modules)
    pid = os.fork()
    if pid == 0:
        status = main()
        os.write(writer, "\n".join(sorted(set(sys.modules) - before)).encode())
        os._exit(status)
    os.close(writer)
    with open(reader, encoding="utf-8") as file:
        names = file.read().splitlines()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in names:
            with contextlib.suppress(Exception):  # imports that only its package uses
                importlib.import_module(name)


def quick_report():
    """Replace the report by a file, because its figures take longer than everything else."""

    def write_report(folder, *options, **more):
        files.write(folder / "report.html", "x")
        return reports.Written([folder / "report.html"], ())

    reports.write_report = write_report


def pdt(arguments, folder, *, operations=None, report=False, before=lambda: None):
    """Run a command line of the suite in separate processes.

    Args:
        arguments: Arguments of the command line.
        folder: Working folder, which receives the output.
        operations: Counter of its writes, which may kill it.
        report: Whether to write the real report.
        before: Function that is called in the command's process before it starts.
    """
    folder.mkdir(parents=True, exist_ok=True)
    log, answer = folder / "output.txt", folder / "ended.json"
    sys.stdout.flush()
    sys.stderr.flush()
    case = os.fork()
    if case == 0:
        _leave(lambda: _case(arguments, log, answer, operations, report, before))
    _, status = os.waitpid(case, 0)
    output = log.read_text(encoding="utf-8", errors="replace")
    assert status == 0, f"the harness failed: {output}"
    found = json.loads(answer.read_text())
    counted = (operations.count, operations.killed) if operations else (0, "")
    return Ended(found["status"], output, found["orphans"], *counted)


def _case(arguments, log, answer, operations, report, before):
    """Run as the parent of a command and of all processes that it leaves."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1)
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    _speak_to_descriptors()
    command = os.fork()
    if command == 0:
        os.setsid()
        os.closerange(3, 256)
        quick_facts()
        if not report:
            quick_report()
        sys.argv = ["run_suite.py", *arguments]
        before()
        if operations:
            operations.install()
        _leave(lambda: cli.main(arguments))
    status, orphans, deadline = None, 0, time.monotonic() + LIMIT_S
    while True:
        try:
            pid, code = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            break
        if pid == command:
            status, deadline = os.waitstatus_to_exitcode(code), time.monotonic() + PATIENCE_S
        elif pid == 0:
            if time.monotonic() > deadline:
                orphans = max(1, orphans) + _kill_children()
            time.sleep(0.01)
    answer.write_text(json.dumps({"status": 124 if status is None else status, "orphans": orphans}))
    return 0


def _kill_children():
    """Kill the remaining descendants of this process, and return their number."""
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    for child in children:
        os.kill(int(child), signal.SIGKILL)
    return len(children)
