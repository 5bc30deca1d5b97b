"""Processes: what that of a trial gets from the one that starts it, what it tells that one, and calls in a fork.

The engine starts a trial as the leader of a new session, with a pipe as its standard input. Only the engine's process
holds the write end of the pipe, and it never writes. An end-of-file therefore means that the engine has ended.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import multiprocessing
import os
import shlex
import signal
import site
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final, TypeVar

from suite import files
from suite.engine.cost.hardware import available_cores, threads_of_environment
from suite.errors import UsageError
from suite.registry import ROOT

PARENT = "PDT_LIFELINE_PARENT"
"""Environment variable with the process id of the engine, for a process whose standard input is the engine's pipe."""
PLACE = "PDT_PLACE"
"""Environment variable with the trial's place as JSON (`suite.trials.engines.local.Place`)."""
RANK, LOCAL_RANK, RENDEZVOUS = "PDT_RANK", "PDT_LOCAL_RANK", "PDT_RENDEZVOUS"
"""Environment variables of a rank: its number, its number on its machine, and the URL at which the ranks meet."""

# By default, glibc maps each allocation above 128 KiB (later up to 32 MiB) separately and unmaps it when it is freed.
# Activations are larger, so every step would pay for new zeroed pages.
MALLOC: Final = {
    "MALLOC_MMAP_THRESHOLD_": str(2**32),
    "MALLOC_TRIM_THRESHOLD_": str(2**33),
    "MALLOC_TOP_PAD_": str(2**28),
}
_PR_SET_PDEATHSIG = 1
SMALLEST_INTERVAL = 0.5
"""Seconds between two versions of `progress.json`."""
PATIENCE_S = 1.0
"""Seconds in which an interrupted call ends."""
Result = TypeVar("Result")
FLAG_PREFIXES = (
    *("OMP_", "MKL_", "KMP_", "GOMP_", "ONEDNN_", "DNNL_", "MALLOC_", "TORCH_", "PYTORCH_", "ATEN_"),
    *("CUDA_", "CUBLAS_", "CUDNN_", "NVIDIA_TF32", "LD_PRELOAD"),
)
"""Beginnings of the names of environment variables that matter to bits and times."""


def command_line() -> str:
    """Return the command line of this process, without the folder that its program is installed in.

    That folder is part of the first argument for `python -m` and for an installed program.
    """
    program = Path(sys.argv[0])
    if program.is_absolute():
        here = Path.cwd()
        program = program.relative_to(here) if program.is_relative_to(here) else Path(program.name)
    return shlex.join([str(program), *sys.argv[1:]])


def trial_command(folder: Path) -> list[str]:
    """Return the command that runs a trial. `-P` excludes modules in the user's folder from imports."""
    return [sys.executable, "-P", "-m", "suite.trials.trial", str(folder)]


def start_process(command: Sequence[str], folder: Path, variables: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start a process of a trial, which leads a session, appends to the trial's log, and ends with this process.

    Raises:
        OSError: The log cannot be written, or the process cannot be started.
    """
    with open(folder / "log.txt", "ab", opener=files.no_link) as log:
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE,  # nothing writes to it
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**variables, PARENT: str(os.getpid())},
        )


def environment(jobs: int) -> dict[str, str]:
    """Return the environment of a trial's process if `jobs` such processes share the machine.

    The user's variables take precedence.
    """
    ours = {"PDT_COMMAND_LINE": command_line()}
    # Without an installed package, trials import the package from the folder where this process found it.
    installed = ROOT in map(Path.resolve, map(Path, (*site.getsitepackages(), site.getusersitepackages())))
    if paths := [path for path in ("" if installed else str(ROOT), os.environ.get("PYTHONPATH")) if path]:
        ours["PYTHONPATH"] = os.pathsep.join(paths)
    if not threads_of_environment():  # an empty variable, or one that is not a number, counts as not set
        ours["OMP_NUM_THREADS"] = str(max(1, available_cores() // jobs))
    return {**MALLOC, "PYTHONUNBUFFERED": "1", **os.environ, **ours}


def watch_parent() -> None:
    """End this process, and every process that it starts, when the engine ends. Call this before torch starts threads.

    Two mechanisms are needed. Linux kills the trial itself as soon as its parent ends, but not the processes that the
    trial has started, such as data loaders and compilers. A guardian process, forked here, waits for the end-of-file
    and kills the whole process group. The guardian also works while the trial is in a long call that blocks all of its
    threads.

    Nothing happens if no engine started this process. Processes that leave the process group (daemons) survive.

    Raises:
        RuntimeError: This process does not lead its process group. Killing the group would kill other processes.
    """
    parent = os.environ.pop(PARENT, None)
    if parent is None:
        return
    if os.getpgrp() != os.getpid():
        raise RuntimeError(f"{PARENT} is set, but process {os.getpid()} does not lead a process group")
    if os.fork() == 0:
        _guard()
    # Processes that the trial starts must not read from the pipe, because they would wait for input.
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    if not die_with(int(parent)):
        os.killpg(os.getpgrp(), signal.SIGKILL)


def die_with(parent: int) -> bool:
    """Ask the kernel to kill this process when the thread that started it ends. Only Linux does.

    Returns:
        Whether the parent is alive. If it ended before this call, the kernel does not kill this process.
    """
    if sys.platform != "linux":
        return True
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    return os.getppid() == parent


def _guard() -> None:
    """Wait for the end-of-file, then kill the process group, which includes this process. Never returns."""
    try:
        # A copy of the trial's log and pipes in this process would keep them open.
        os.closerange(1, 256)
        while os.read(0, 1):
            pass
    finally:
        os.killpg(os.getpgrp(), signal.SIGKILL)
        os._exit(1)


def take_place() -> None:
    """Restrict this process, and those that it starts, to the cores of the place in the environment.

    Without a place, or if the place names no cores, nothing happens. Call this before torch starts threads.
    """
    if cpus := (place_of_environment() or {}).get("cpus"):
        os.sched_setaffinity(0, cpus)


def place_of_environment() -> dict[str, Any] | None:
    """Return the fields of the place that an engine gave to this process; `None` without a place."""
    return json.loads(os.environ.get(PLACE, "null"))


def rank_of_environment() -> int | None:
    """Return the number of this process among the ranks of its trial; `None` if the trial has one process."""
    text = os.environ.get(RANK)
    return None if text is None else int(text)


@dataclass(frozen=True)
class Position:
    """Progress of a trial.

    Attributes:
        epoch: Number of finished epochs.
        epochs: Number of epochs of the whole training.
        fraction: Finished fraction of the whole training, in [0, 1].
        resumed_after: Epoch after which this attempt resumed; 0 if it started from the beginning.
    """

    epoch: int
    epochs: int
    fraction: float
    resumed_after: int = 0


class ProgressFile:
    """`progress.json`, written by the trial and read by the engine."""

    NAME = "progress.json"

    def __init__(self, folder: Path) -> None:
        self._path = folder / self.NAME
        self._next = 0.0
        self.resumed_after = 0

    def write(self, epoch: int, epochs: int, fraction: float) -> None:
        """Write the progress. Calls that follow too soon do nothing, so this may be called at every step.

        The file is replaced atomically, but not flushed to disk. Errors, for example a full disk, are ignored.
        """
        now = time.monotonic()
        if now < self._next and fraction < 1:
            return
        self._next = now + SMALLEST_INTERVAL
        content = json.dumps(asdict(Position(epoch, epochs, fraction, self.resumed_after)))
        with contextlib.suppress(OSError):
            files.write(self._path, content, durable=False)

    def read(self) -> Position | None:
        """Return the progress; `None` if the trial has not written any."""
        try:
            return Position(**json.loads(self._path.read_bytes()))
        except (OSError, ValueError):
            return None


def forked(call: Callable[[], Result]) -> Result:
    """Return the result of `call`, computed in a forked process.

    torch takes hundreds of megabytes, which a command that waits for trials does not need. `call` runs in this process
    if torch is already imported, or if this process cannot be forked safely (it has threads, or is not on Linux).

    Args:
        call: Function whose result can be pickled.

    Raises:
        UsageError: `call` raised it.
        SystemExit: `call` raised another exception, and its traceback was printed.
    """
    if sys.platform != "linux" or "torch" in sys.modules or threading.active_count() > 1:
        return call()
    fork = multiprocessing.get_context("fork")
    reader, writer = fork.Pipe(duplex=False)
    process = fork.Process(target=_answer, args=(call, writer, os.getpid()))
    process.start()
    writer.close()
    try:
        result: Any = reader.recv()  # this program's own process wrote it
    except EOFError:
        result = SystemExit(1)
    except KeyboardInterrupt:
        # A terminal has interrupted the call too, and a killed call would leave the part of a file that it downloads.
        for number in (0, signal.SIGINT, signal.SIGKILL):
            if process.is_alive():
                os.kill(process.ident or 0, number)
                process.join(PATIENCE_S)
        raise
    process.join()
    if process.exitcode and process.exitcode < 0:
        print(f"pdt: planning was killed by signal {-process.exitcode}", file=sys.stderr)
    if isinstance(result, BaseException):
        raise result
    return result  # type: ignore[no-any-return]


def _answer(call: Callable[[], object], writer: Connection, parent: int) -> None:
    """Call the function in the forked process, and send its result."""
    if not die_with(parent):  # the call may take long, for example to fetch a data set
        return
    try:
        writer.send(call())
    except (UsageError, KeyboardInterrupt) as error:
        writer.send(error)
