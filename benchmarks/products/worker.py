"""Worker process that computes cases in forked processes, so that a crash or a hang of one case ends only its fork.

`Worker` starts this module as a program; it is not meant to be started by hand.
"""

from __future__ import annotations

import importlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict

from benchmarks.products.cases import Case, errors_of


class Worker:
    """A process that has imported torch and forks a process for each list of cases."""

    def __init__(self, environment: dict[str, str], through_suite: bool) -> None:
        command = [sys.executable, "-m", __name__, *(["--through-suite"] if through_suite else [])]
        self._process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def run(self, cases: Sequence[Case], seconds: float) -> tuple[list[dict[str, float]], str]:
        """Return the errors of the finished cases, in order, and how the process ended (empty if normally)."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps({"cases": [asdict(case) for case in cases], "seconds": seconds}), file=self._process.stdin)
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"search_products: error: the worker ended with status {self._process.wait()}")
        answer = json.loads(line)
        return answer["errors"], answer["ended"]

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def work(through_suite: bool) -> None:
    """Read lists of cases from stdin, one per line, and write the answers to stdout."""
    # Import torch once for all forked processes, before any of its threads starts.
    importlib.import_module("suite.ops")
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # output of libraries must not mix with the answers
    for line in sys.stdin:
        asked = json.loads(line)
        found = forked([Case(**case) for case in asked["cases"]], asked["seconds"], through_suite)
        print(json.dumps(dict(zip(("errors", "ended"), found, strict=True))), file=answers, flush=True)


def forked(cases: list[Case], seconds: float, through_suite: bool) -> tuple[list[dict[str, float]], str]:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(reading)
            for case in cases:
                os.write(writing, (json.dumps(errors_of(case, through_suite)) + "\n").encode())
            status = 0
        except BaseException as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        finally:
            os._exit(status)
    os.close(writing)
    text, until, hung = b"", time.monotonic() + seconds, False
    while True:
        left = until - time.monotonic()
        if left <= 0 or not select.select([reading], [], [], left)[0]:
            hung = True
            os.kill(child, signal.SIGKILL)
            break
        part = os.read(reading, 65536)
        if not part:
            break
        text += part
    os.close(reading)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    ended = "hung" if hung else f"crashed, signal {-code}" if code < 0 else f"failed, status {code}" if code else ""
    return [json.loads(line) for line in text.decode().splitlines(keepends=True) if line.endswith("\n")], ended


if __name__ == "__main__":
    work("--through-suite" in sys.argv[1:])
