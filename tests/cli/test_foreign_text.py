"""Text of strangers, and terminals that do not take all of it."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from report_fixtures import without_figures
from test_merge import ROOT, put, spec, suite_at

from suite.cli import main as cli
from suite.trials.folder.records import read_record

__all__ = ["without_figures"]
pytestmark = pytest.mark.usefixtures("without_figures")

FOREIGN = "\ud800\x1b[2J\x9b31m\0"


@pytest.fixture
def foreign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose record has a path in the home folder and, everywhere else, text that cannot be encoded."""
    monkeypatch.setenv("HOME", str(tmp_path))
    out = suite_at(tmp_path / "out", (f"run {FOREIGN}", "2026-01-01"))
    copy = {"kind": "original", "checksum": "ab" * 32, "path": str(tmp_path / "x.npz"), "note": FOREIGN}
    place = put(out, spec(0, data_copy=copy, recipe_source=FOREIGN), 0.7)
    record = json.loads((place / "trial.json").read_bytes())
    record |= {"message": FOREIGN, "provenance": {FOREIGN: [FOREIGN]}}
    (place / "trial.json").write_text(json.dumps(record))
    return out


def test_every_verb_reads_foreign_text_and_an_export_stays_valid(foreign: Path, tmp_path: Path, capsys: Any) -> None:
    other = suite_at(tmp_path / "other", ("run", "2026-01-01"))
    put(other, spec(1), 0.6)
    copy = tmp_path / "copy"
    for words in (
        ["compare", str(foreign), str(other)],
        ["export", str(foreign), str(copy)],
        ["merge", str(foreign), str(other), "-o", str(tmp_path / "merged")],
        ["report", str(foreign)],
        ["report", str(copy)],
    ):
        assert cli.main(words) == 0, words
        said = "".join(capsys.readouterr())
        assert not {"\x1b", "\x9b", "\0", "\ud800"} & set(said), words
    record = read_record(next((copy / "trials").iterdir()))
    assert record is not None
    assert (record.status, record.spec.data_copy["path"]) == ("done", "~/x.npz")
    assert record.message == "\ufffd\ufffd[2J\ufffd31m\ufffd"


def test_names_of_files_cannot_write_to_the_terminal(tmp_path: Path, capsys: Any, caplog: Any) -> None:
    assert cli.main(["report", str(tmp_path / "\x1b[31m")]) == 2
    assert "\x1b" not in capsys.readouterr().err
    assert cli._Clean("%(message)s").format(_record("a\x1b]0;x\x07")) == "a\ufffd]0;x\ufffd"


def _record(message: str) -> Any:
    return logging.LogRecord("x", logging.INFO, "", 0, message, (), None)


def test_a_terminal_without_a_character_gets_an_escape(foreign: Path) -> None:
    command = [sys.executable, str(ROOT / "run_suite.py"), "compare", str(foreign), str(foreign)]
    done = subprocess.run(command, capture_output=True, env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert (done.returncode, done.stderr) == (0, b"")
    assert rb"\xd7 first" in done.stdout


@pytest.mark.parametrize(("number", "ignored"), [
    (signal.SIGHUP, False), (signal.SIGHUP, True), (signal.SIGTERM, False),
])  # fmt: skip
def test_a_terminal_that_is_closed_ends_a_command_unless_it_was_told_to_go_on(
    tmp_path: Path, number: signal.Signals, ignored: bool
) -> None:
    driver = f"import sys; sys.path.insert(0, {str(ROOT)!r}); import signal, pathlib, time\n"
    driver += f"signal.signal({number:d}, signal.{'SIG_IGN' if ignored else 'SIG_DFL'})\n"
    driver += "from suite.cli import main as cli\n"
    driver += "cli._function = lambda verb: lambda words: (pathlib.Path('begun').touch(), time.sleep(1), 7)[2]\n"
    driver += "sys.exit(cli.main(['report']))"
    running = subprocess.Popen([sys.executable, "-c", driver], cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    while not (tmp_path / "begun").exists():
        assert running.poll() is None
        time.sleep(0.05)
    running.send_signal(number)
    _, errors = running.communicate(timeout=60)
    assert (running.returncode, errors) == ((7, "") if ignored else (130, "pdt: interrupted\n"))
