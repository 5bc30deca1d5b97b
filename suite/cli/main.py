"""Entry point of the command line: select the verb and print errors.

A `UsageError`, which the user can correct, becomes one line and exit status 2. So does an exception in a plugin's code.
Other exceptions keep their traceback.
"""

from __future__ import annotations

import io
import logging
import os
import pkgutil
import signal
import sys
import threading
from collections.abc import Sequence

from suite import registry
from suite.errors import UsageError, nearest
from suite.files import clean

VERBS = {
    "run": "suite.cli.run:run",
    "plan": "suite.cli.run:plan",
    "list": "suite.cli.describe:list_all",
    "describe": "suite.cli.describe:describe",
    "check": "suite.cli.check:check",
    "report": "suite.cli.folders:report",
    "time": "suite.cli.folders:time",
    "profile": "suite.cli.folders:profile",
    "tune": "suite.cli.tune:tune",
    "export": "suite.cli.folders:export",
    "merge": "suite.cli.folders:merge",
    "compare": "suite.cli.folders:compare",
    "reproduce": "suite.cli.reproduce:reproduce",
}
"""The function of each verb, `MODULE:NAME`, which alone is imported: `list` does not wait for the imports of `run`."""
CONTINUED = ("run", "tune", "reproduce", "time", "profile")
"""Verbs that keep each finished trial or measurement, so that the same command continues after an interruption."""
TRAINING = (*CONTINUED, "plan", "check")
"""Verbs that train, which needs what only POSIX systems have."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit status."""
    handler = logging.StreamHandler()
    handler.setFormatter(_Clean("pdt: %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # not where a program has replaced it
            stream.reconfigure(errors="backslashreplace")  # a terminal may have no "×"
    # Handle both signals like Ctrl-C, which stops and lists trials and removes half-written files.
    if threading.current_thread() is threading.main_thread():
        for number in {signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM)}:
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup
                signal.signal(number, signal.default_int_handler)
    words = list(sys.argv[1:] if arguments is None else arguments)
    verb = words.pop(0) if words and not words[0].startswith("-") else "run"
    try:
        return _run(verb, words)
    except UsageError as error:
        return _say(str(error))
    except KeyboardInterrupt:
        print(f"pdt: interrupted{_kept(verb)}", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # `pdt list | head` closed the pipe. Python would flush it once more when it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except Exception as error:
        if not (raised_at := registry.fault_in_plugin(error)):
            raise
        return _say(f"{raised_at}: {type(error).__name__}: {error}")


class _Clean(logging.Formatter):
    """Formats messages without control characters, which names of files may have and terminals obey."""

    def format(self, record: logging.LogRecord) -> str:
        return clean(super().format(record))


def _say(message: str) -> int:
    """Print an error as one line and return the exit status of wrong usage."""
    # Messages from plugins and libraries may have several lines.
    print("pdt: error:", clean(" ".join(message.split())), file=sys.stderr)
    return 2


def _kept(verb: str) -> str:
    """Return the end of the message of an interruption: what remains of the command's work."""
    if verb in CONTINUED:
        return "; finished work is kept, and the same command continues"
    return "; no probe is kept, and the same command starts again" if verb == "plan" else ""


def _run(verb: str, words: Sequence[str]) -> int:
    registry.check_own_packages()
    for text in (verb, *words):
        if (shown := text.encode(errors="backslashreplace").decode()) != text:  # records are UTF-8
            raise UsageError(f"the argument '{shown}' is not UTF-8")
    if verb not in VERBS:
        raise UsageError(f"there is no verb '{verb}'{nearest(verb, VERBS)}")
    if verb in TRAINING and not {"-h", "--help"} & {*words}:
        check_system()
    status: int = pkgutil.resolve_name(VERBS[verb])(words)
    return status


def check_system() -> None:
    """Check that this system has what trainings need.

    Raises:
        UsageError: It has not.
    """
    if not hasattr(os, "fork"):
        raise UsageError(
            f"{sys.platform} has no os.fork: this suite trains on Linux and macOS; on Windows use WSL. list, describe, "
            "report, compare, merge, export, load_results and your own loop work here too"
        )


if __name__ == "__main__":
    sys.exit(main())
