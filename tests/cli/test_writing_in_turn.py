"""Commands that write results at the same time: one that is stopped or killed anywhere loses no newer trial."""

from __future__ import annotations

import csv
import hashlib
import importlib
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from report_fixtures import without_figures
from test_merge import put, spec, suite_at

from suite.cli import main as cli
from suite.errors import UsageError
from suite.trials.folder import store as stores
from suite.trials.folder.store import Store

__all__ = ["without_figures"]
SAMPLE = 8
STARTED: list[int] = []


@pytest.fixture(autouse=True)
def no_stopped_process() -> Iterator[None]:
    """End the processes that a failed test has left."""
    yield
    for pid in STARTED:
        with suppress(ProcessLookupError, ChildProcessError):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    STARTED.clear()


class Stopping:
    """A forked command that stops itself, as Ctrl-Z does, at one of its accesses to a folder.

    Args:
        folder: The folder.
        words: Words of the command line.
        at: Number of the access, from 1; with 0 it never stops.
    """

    def __init__(self, folder: Path, words: list[str], at: int) -> None:
        reader, writer = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.setsid()
            seen = 0

            def access(event: str, arguments: Any) -> None:
                nonlocal seen
                if event in ("open", "os.rename", "os.remove", "os.scandir", "os.listdir", "fcntl.flock"):
                    if not (event == "fcntl.flock" or str(folder) in str(arguments[0])):
                        return
                    seen += 1
                    if seen == at:
                        os.kill(os.getpid(), signal.SIGSTOP)

            status = 70
            try:
                sys.addaudithook(access)
                status = cli.main(words)
            finally:
                os.write(writer, str(seen).encode())
                os._exit(status)
        os.close(writer)
        self._reader = reader
        STARTED.append(self.pid)

    def stops(self) -> bool:
        """Wait until the command stops or ends, and return whether it has stopped."""
        _, status = os.waitpid(self.pid, os.WUNTRACED)
        return os.WIFSTOPPED(status)

    def goes_on(self) -> int:
        """Let the command go on, and return its exit status."""
        os.kill(self.pid, signal.SIGCONT)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def accesses(self) -> int:
        """Return the number of accesses of a command that has ended."""
        with open(self._reader, "rb") as file:
            return int(file.read())


@contextmanager
def impatient(patch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let this process give up soon."""
    with patch.context() as inside:
        inside.setattr(stores, "LOCK_TIMEOUT", 0.05)
        inside.setattr(stores, "WRITING_TIMEOUT", 0.05)
        yield


@pytest.fixture
def one(tmp_path: Path) -> Path:
    """A folder with the first of two trials."""
    out = suite_at(tmp_path / "one", ("run one", "2026-01-01"))
    put(out, spec(0), 0.7)
    return out


def assert_whole(out: Path, trials: int) -> None:
    """Check that each file of the results has all trials, and that they agree."""
    names = {spec(seed).trial_id for seed in range(trials)}
    content = (out / "results.csv").read_bytes()
    assert {row["trial_id"] for row in csv.DictReader(content.decode().splitlines())} == names
    for name in ("report.md", "report.html"):
        text = (out / name).read_text(encoding="utf-8")
        assert f"{trials} trials" in text
        assert hashlib.sha256(content).hexdigest()[:8] in text


@pytest.mark.usefixtures("without_figures")
def test_a_stopped_report_loses_no_newer_trial(
    one: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    """While `report` is stopped at an access, a second trial ends and is reported; then it goes on or is killed."""
    shutil.copytree(one, tmp_path / "counted")
    command = Stopping(tmp_path / "counted", ["report", str(tmp_path / "counted")], 0)
    assert command.goes_on() == 0
    count = command.accesses()
    assert count > 20
    statuses = []
    for at in range(1, count + 1, max(1, count // SAMPLE)):
        out = tmp_path / f"out{at}"
        shutil.copytree(one, out)
        report = Stopping(out, ["report", str(out)], at)
        assert report.stops(), at
        put(out, spec(1), 0.8)
        with impatient(monkeypatch):
            statuses.append(cli.main(["report", str(out)]))
        if statuses[-1] == 0:
            assert_whole(out, 2)
        if at % 3 == 0:
            os.kill(report.pid, signal.SIGKILL)
            os.waitpid(report.pid, 0)
            if statuses[-1]:  # it was said that a report has to be written
                assert cli.main(["report", str(out)]) == 0
        else:
            assert report.goes_on() == 0, at
        assert_whole(out, 2)
    assert {*statuses} == {0, 2}  # stopped with and without the lock
    errors = capfd.readouterr().err
    assert "Traceback" not in errors
    assert errors.count("pdt: error: ") == statuses.count(2)
    assert "which is stopped (kill -CONT " in errors


def test_a_writer_waits_for_another_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr(stores, "LOCK_TIMEOUT", 0.1)
    child = os.fork()
    if child == 0:
        with Store(tmp_path).writing():
            (tmp_path / "held").touch()
            time.sleep(stores.LOCK_TIMEOUT + 0.4)
        os._exit(0)
    while not (tmp_path / "held").exists():
        time.sleep(0.01)
    with Store(tmp_path).writing():
        assert os.waitpid(child, 0)[1] == 0
    assert caplog.messages == [f"the results of {tmp_path} are being written by process {child}; waiting for it"]


def test_results_are_not_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / ".results.lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UsageError, match="is a symbolic link"), Store(tmp_path).writing():
        pass
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("verb", ["merge", "export"])
@pytest.mark.usefixtures("without_figures")
def test_a_folder_that_changes_while_it_is_copied_is_refused(
    one: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any, verb: str
) -> None:
    """A command that began after `merge` or `export` had looked whether there is one restarts the trial."""
    other = suite_at(tmp_path / "other", ("run two", "2026-01-02"))
    put(other, spec(1), 0.6)
    module = importlib.import_module(f"suite.cli.{'folders.' * (verb == 'merge')}{verb}")
    name = "copy_trial" if verb == "merge" else "contents"
    real = getattr(module, name)

    def beside(*arguments: Any) -> Any:
        found = real(*arguments)
        put(one, spec(0), None, "killed by signal 9")
        return found

    monkeypatch.setattr(module, name, beside)
    words = ["merge", str(one), str(other), "-o"] if verb == "merge" else ["export", str(one)]
    assert cli.main([*words, str(tmp_path / "new")]) == 2
    assert "in use by another command; try again when it has ended" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "other"]
