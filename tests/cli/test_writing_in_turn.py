"""Commands that write results at the same time lose no newer trial, and name one that is stopped."""

from __future__ import annotations

import csv
import importlib
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from report_fixtures import without_figures
from test_merge import put, spec, suite_at

import reports
from suite.cli import main as cli
from suite.errors import UsageError
from suite.trials.folder import store as stores
from suite.trials.folder.store import Store

__all__ = ["without_figures"]


@pytest.fixture
def one(tmp_path: Path) -> Path:
    """A folder with the first of two trials."""
    out = suite_at(tmp_path / "one", ("run one", "2026-01-01"))
    put(out, spec(0), 0.7)
    return out


def holding(folder: Path, then: Any) -> int:
    """Fork a process that writes results until a function returns, and return its number when it has begun."""
    child = os.fork()
    if child == 0:
        with Store(folder).writing():
            (folder / "held").touch()
            then()
        os._exit(0)
    while not (folder / "held").exists():
        time.sleep(0.01)
    return child


@pytest.mark.usefixtures("without_figures")
def test_a_report_that_is_overtaken_by_a_newer_trial_is_written_again(
    one: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, written = reports.write_report, []

    def overtaken(*arguments: Any) -> Any:
        written.append(write(*arguments))
        if len(written) == 1:
            put(one, spec(1), 0.8)
        return written[-1]

    monkeypatch.setattr(reports, "write_report", overtaken)
    assert cli.main(["report", str(one)]) == 0
    assert len(written) == 2
    assert "2 trials" in (one / "report.md").read_text(encoding="utf-8")
    with open(one / "results.csv", encoding="utf-8", newline="") as file:
        assert {row["trial_id"] for row in csv.DictReader(file)} == {spec(seed).trial_id for seed in (0, 1)}


def test_a_writer_that_is_stopped_is_named_after_a_while(
    one: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr(stores, "LOCK_TIMEOUT", 0.05)
    monkeypatch.setattr(stores, "WRITING_TIMEOUT", 0.05)
    child = holding(one, lambda: os.kill(os.getpid(), signal.SIGSTOP))
    try:
        os.waitpid(child, os.WUNTRACED)
        assert cli.main(["report", str(one)]) == 2
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    error = capsys.readouterr().err
    assert f"written by process {child}, which is stopped (kill -CONT {child} continues it)" in error
    assert not (one / "report.md").exists()


def test_a_writer_waits_for_another_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr(stores, "LOCK_TIMEOUT", 0.1)
    child = holding(tmp_path, lambda: time.sleep(stores.LOCK_TIMEOUT + 0.4))
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
