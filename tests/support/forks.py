"""Python programs that tests start, forked from a process that has imported torch and pandas already.

Starting Python and importing torch takes four processor seconds, which is most of what a test of a command costs.
`install` replaces `subprocess.Popen`, so that also the processes that a command starts are forked.

A server, which imports and does nothing else, forks the programs of the process that tests run in. They become children
of that process, because it adopts the orphans of the server. A program forks its own programs itself, so that these
have loaded the plugins that it has. The fixture `started_programs` starts all.

Programs with other threads, instruction sets, arithmetic or text encodings than those of the server are started as
ever, for these are chosen while Python or torch starts.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import dataclasses
import json
import logging
import os
import re
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import types
import weakref
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PRELOADED = ("torchvision", "pandas", "matplotlib.pyplot", "seaborn", "scipy.stats", "rich.progress")
PRELOADED += ("suite.cli.main", "suite.trials.building", "reports")
# Variables that are read while Python or torch starts, or before a program's first line.
AT_START = re.compile(
    r"OMP_|GOMP_|KMP_|MKL_|OPENBLAS|ONEDNN_|DNNL_|ATEN_|TORCH_|PYTORCH_|CUDA_|LD_|LC_|LANG|PYTHON|MPL"
)
NOT_AT_START = {"PYTHONPATH", "PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE"}
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD)
PR_SET_CHILD_SUBREAPER = 36

STARTED = subprocess.Popen
_environment = dict(os.environ)
_search_path = list(sys.path)


def install() -> None:
    """Fork the Python programs that this process starts from now on, where that makes no difference (Linux only)."""
    if sys.platform == "linux":
        subprocess.Popen = ForkedPopen  # type: ignore[misc]


class ForkedPopen(STARTED):
    """`subprocess.Popen` that forks Python programs."""

    server: Server | None = None  # only in the process that tests run in
    is_forked = False

    def _execute_child(  # type: ignore[no-untyped-def]
        self, args, executable, preexec_fn, close_fds, pass_fds, cwd, env, startupinfo, creationflags, shell,
        p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite, *rest,
    ):  # fmt: skip
        given = (args, executable, preexec_fn, close_fds, pass_fds, cwd, env, startupinfo, creationflags, shell)
        pipes = (p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)
        program = None
        if not (executable or preexec_fn or pass_fds or shell or (cwd and not Path(cwd).is_dir())):
            program = Program.of(args, os.environ if env is None else env, os.fspath(cwd or Path.cwd()), rest[-2])
        if program is None:
            return super()._execute_child(*given, *pipes, *rest)
        descriptors = [inherited if one == -1 else one for inherited, one in enumerate((p2cread, c2pwrite, errwrite))]
        if self.is_forked:
            self.pid = _fork(program, descriptors)
        else:
            if ForkedPopen.server is None:
                ForkedPopen.server = Server()
            self.pid = ForkedPopen.server.fork(program, descriptors)
        self._child_created = True
        self._close_pipe_fds(*pipes)
        return None


@dataclasses.dataclass(frozen=True)
class Program:
    """A command line of Python, and where it runs.

    Attributes:
        kind: `-c`, `-m`, or empty for a file.
        name: Code, module or file.
        arguments: What follows the name.
        safe_path: Whether the folder of the program is kept out of the search path (`-P`).
        variables: Environment variables.
        folder: Working folder.
        session: Whether it leads a session of its own.
        ignored: Signals that it ignores, as the process does that starts it.
    """

    kind: str
    name: str
    arguments: list[str]
    safe_path: bool
    variables: dict[str, str]
    folder: str
    session: bool
    ignored: list[int]

    @classmethod
    def of(cls, command: object, variables: Mapping[str, str], folder: str, session: bool) -> Program | None:
        """Return the program of a command line, `None` for one that must be started."""
        if isinstance(command, (str, bytes, os.PathLike)):
            return None
        python, *words = map(os.fsdecode, command)  # type: ignore[call-overload]
        changed = (name for name, _ in set(variables.items()) ^ set(_environment.items()) if AT_START.match(name))
        if python != sys.executable or set(changed) - NOT_AT_START:
            return None
        safe_path = False
        while words[:1] in (["-P"], ["-u"]):
            safe_path |= words.pop(0) == "-P"
        kind = words.pop(0) if words[:1] in (["-c"], ["-m"]) else ""
        if not words or (not kind and words[0].startswith("-")):
            return None
        paths = [*variables.get("PYTHONPATH", "").split(os.pathsep), "" if kind else str(Path(words[0]).parent)]
        if any(path and Path(path, "suite").is_dir() and Path(path).resolve() != ROOT for path in paths):
            return None  # another copy of this project
        ignored = [number for number in SIGNALS if signal.getsignal(number) is signal.SIG_IGN]
        return cls(kind, words[0], words[1:], safe_path, dict(variables), folder, session, ignored)

    def run(self) -> None:
        """Run in this process, as Python would."""
        os.chdir(self.folder)
        os.environ.clear()
        os.environ.update(self.variables)
        tempfile.tempdir = None  # chosen by the environment at first use
        paths = [part for part in self.variables.get("PYTHONPATH", "").split(os.pathsep) if part]
        if not self.safe_path:
            paths.insert(0, self.folder if self.kind else str(Path(self.name).resolve().parent))
        sys.path[:] = [*paths, *_search_path]
        sys.argv = ["-c" if self.kind == "-c" else self.name, *self.arguments]
        sys.orig_argv = [sys.executable, *([self.kind] if self.kind else []), self.name, *self.arguments]
        if self.kind == "-m":
            runpy.run_module(self.name, run_name="__main__", alter_sys=True)
        elif self.kind == "-c":
            main = sys.modules["__main__"] = types.ModuleType("__main__")
            exec(compile(self.name, "<string>", "exec"), main.__dict__)
        else:
            runpy.run_path(self.name, run_name="__main__")


def _fork(program: Program, descriptors: list[int], parent: int | None = None) -> int:
    """Fork this process, run the program in the child with these as descriptors 0 to 2, and return its process id."""
    pid = os.fork()
    if pid:
        return pid
    status = 120
    try:
        ForkedPopen.is_forked, ForkedPopen.server = True, None
        copies = [os.dup(one) for one in descriptors]
        for number, one in enumerate(copies):
            os.dup2(one, number)
        os.closerange(3, 4096)
        for number in SIGNALS:
            usual = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
            signal.signal(number, signal.SIG_IGN if number in program.ignored else usual)
        if program.session:
            os.setsid()
        # What the parent would do at its end is not for this process to do.
        atexit._clear()
        weakref.finalize._registry.clear()  # type: ignore[attr-defined]
        for logger in (logging.root, *logging.Logger.manager.loggerDict.values()):
            if isinstance(logger, logging.Logger):
                logger.handlers.clear()
                logger.setLevel(logging.NOTSET if logger.parent else logging.WARNING)
        buffered = not program.variables.get("PYTHONUNBUFFERED")
        sys.stdin = open(0, closefd=False)  # noqa: SIM115
        sys.stdout = open(1, "w", closefd=False, buffering=-1 if buffered else 1)  # noqa: SIM115
        sys.stderr = open(2, "w", closefd=False, buffering=1, errors="backslashreplace")  # noqa: SIM115
        while parent is not None and os.getppid() != parent:
            time.sleep(0.001)
        status = _ends(program)
    finally:
        os._exit(status)


def _ends(program: Program) -> int:
    """Run a program to the end of its threads and exit handlers, and return its exit status."""
    status = 0
    try:
        program.run()
    except SystemExit as error:
        if error.code is not None and not isinstance(error.code, int):
            print(error.code, file=sys.stderr)
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
    except KeyboardInterrupt:
        traceback.print_exc()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException:
        traceback.print_exc()
        status = 1
    with contextlib.suppress(Exception):
        threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    return status & 255


class Server:
    """The process that has imported, seen from the one that tests run in."""

    def __init__(self) -> None:
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self._lock = threading.Lock()
        self._socket, other = socket.socketpair(type=socket.SOCK_SEQPACKET)
        command = [sys.executable, "-P", __file__, str(other.fileno()), str(os.getpid())]
        variables = {name: value for name, value in _environment.items() if name != "PYTHONPATH"}
        self._process = STARTED(command, pass_fds=[other.fileno()], stdin=subprocess.DEVNULL, env=variables)
        other.close()

    def fork(self, program: Program, descriptors: list[int]) -> int:
        """Run a program, and return its process id."""
        with self._lock:
            socket.send_fds(self._socket, [json.dumps(vars(program)).encode()], descriptors)
            answer = self._socket.recv(8)
        assert answer, "the server has ended"
        return int.from_bytes(answer, "big")


def _serve(connection: socket.socket, parent: int) -> None:
    """Fork what is asked for, until the other end of the socket is closed."""
    while True:
        message, descriptors, *_ = socket.recv_fds(connection, 1 << 20, 3)
        if not message:
            return
        program = Program(**json.loads(message))
        reader, writer = os.pipe()
        between = os.fork()
        if between == 0:
            os.write(writer, _fork(program, descriptors, parent).to_bytes(8, "big"))
            os._exit(0)
        os.waitpid(between, 0)  # from now on, the child belongs to the process that tests run in
        connection.sendall(os.read(reader, 8))
        descriptors += [reader, writer]
        for one in descriptors:
            os.close(one)


if __name__ == "__main__":
    import importlib

    sys.path.insert(0, str(ROOT))
    for _name in PRELOADED:
        importlib.import_module(_name)
    sys.path.pop(0)
    sys.modules["forks"] = sys.modules["__main__"]
    install()
    _serve(socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]))
