"""Folders that `merge` and `export` create: awkward places, killed commands, and measurements that are counted once."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from test_merge import ROOT, merge, put, spec, suite_at
from time_passes import one_pass

from reports import Written
from suite.cli import main as cli
from suite.cli.folders.entries import combine_times
from suite.errors import UsageError
from suite.trials.folder.entries import GroupEntries
from suite.trials.folder.times import MethodTime


@pytest.fixture(autouse=True)
def without_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write an empty report: these tests look at folders only."""

    def write_report(folder: Path, *arguments: Any, **more: Any) -> Written:
        (folder / "report.html").write_text("report")
        return Written([folder / "report.html"], ())

    monkeypatch.setattr("reports.write_report", write_report)


@pytest.fixture
def two(tmp_path: Path) -> tuple[Path, Path]:
    """Two folders, each with one trial that is done."""
    folders = [suite_at(tmp_path / name, (f"run {name}", f"2026-01-0{seed + 1}")) for seed, name in enumerate("ab")]
    for seed, folder in enumerate(folders):
        put(folder, spec(seed), 0.7)
    return folders[0], folders[1]


def others(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name not in ("a", "b"))


def test_a_link_to_an_empty_folder_is_filled_and_one_to_nothing_is_refused(
    two: tuple[Path, Path], tmp_path: Path, capsys: Any
) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "broken").symlink_to(tmp_path / "nowhere")
    assert merge(*two, out=tmp_path / "link") == 0
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real" / "report.html").is_file()
    assert merge(*two, out=tmp_path / "broken") == 2
    assert "is a symbolic link to nothing" in capsys.readouterr().err
    assert others(tmp_path) == ["broken", "link", "real"]


def test_places_that_cannot_be_created(
    two: tuple[Path, Path], tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    assert merge(*two, out=tmp_path / "file" / "x" / "out") == 2
    assert capsys.readouterr().err.endswith(f"merge: {tmp_path / 'file'} is a file, not a folder\n")
    access = os.access  # of root, who may write everywhere
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != tmp_path and access(path, mode))
    for command in (["merge", *map(str, two), "-o"], ["export", str(two[0])]):
        assert cli.main([*command, str(tmp_path / "out")]) == 2
        assert capsys.readouterr().err.endswith(f"{command[0]}: {tmp_path} is not writable\n")
    assert others(tmp_path) == ["file"]


def test_a_name_of_the_greatest_length(two: tuple[Path, Path], tmp_path: Path) -> None:
    assert merge(*two, out=tmp_path / ("ä" * 127)) == 0
    assert others(tmp_path) == ["ä" * 127]


KILLED = textwrap.dedent(
    """
    import os, signal, sys
    import reports
    from suite import files
    from suite.cli import main as cli
    reports.write_report = lambda *arguments: []
    write, left = files.write, [int(sys.argv[1])]
    def counted(path, content, **keywords):
        write(path, content, **keywords)
        if "/.export-" in str(path):
            left[0] -= 1
        if not left[0]:
            os.kill(os.getpid(), signal.SIGKILL)
    files.write = counted
    sys.exit(cli.main(sys.argv[2:]))
    """
)


@pytest.mark.parametrize("writes", [1, 4])
def test_a_killed_export_leaves_no_folder_and_the_same_command_continues(
    two: tuple[Path, Path], tmp_path: Path, writes: int
) -> None:
    arguments = ["export", str(two[0]), str(tmp_path / "out")]
    command = [sys.executable, "-c", KILLED, str(writes), *arguments]
    ended = subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True)
    assert ended.returncode == -signal.SIGKILL
    (left,) = others(tmp_path)
    assert left.startswith(".export-")
    assert cli.main(arguments) == 0
    assert others(tmp_path) == [left, "out"]
    assert not [path for path in (tmp_path / "out").rglob("*") if path.name.startswith(".")]


def test_files_that_cannot_be_read_or_copied_are_one_line(two: tuple[Path, Path], tmp_path: Path, capsys: Any) -> None:
    a, b = two
    place = a / "trials" / spec(0).trial_id
    os.mkfifo(place / "pipe")
    assert merge(a, b, out=tmp_path / "out") == 2
    assert capsys.readouterr().err.endswith(f"merge: {place / 'pipe'} is not an ordinary file; move it away\n")
    (place / "pipe").unlink()
    shutil.copytree(place, b / "trials" / place.name)
    (place / "layers.csv").unlink()
    (place / "layers.csv.gz").write_bytes(b"not compressed")
    assert merge(a, b, out=tmp_path / "out") == 2
    error = capsys.readouterr().err
    assert "their layers.csv cannot be compared: " in error
    assert error.count("\n") == 1
    (a / "suite.json").write_text((a / "suite.json").read_text().replace("{", '{"x": NaN, ', 1))
    assert merge(a, b, out=tmp_path / "out") == 2
    assert "suite.json is damaged: Out of range float values are not JSON compliant" in capsys.readouterr().err
    assert others(tmp_path) == []


def test_a_damaged_trial_is_said_to_be_damaged(two: tuple[Path, Path], tmp_path: Path, capsys: Any) -> None:
    a, b = two
    name = spec(0).trial_id
    shutil.copytree(a / "trials" / name, b / "trials" / name)
    (a / "trials" / name / "epochs.jsonl").write_text("edited\n")
    assert merge(a, b, out=tmp_path / "out") == 0
    line = f"merge: {name}: done in {b} is kept; it is damaged (epochs.jsonl does not have the checksum in trial.json)"
    assert f"{line} in {a}\n" in capsys.readouterr().out


def test_of_trials_that_are_not_done_the_first_is_kept_whatever_its_files(
    two: tuple[Path, Path], tmp_path: Path, capsys: Any
) -> None:
    a, b = two
    put(a, spec(5), None, "out of memory")
    place = put(b, spec(5), None, "killed")
    (place / "log.txt").write_text("more files")
    assert merge(a, b, out=tmp_path / "out") == 0
    assert json.loads((tmp_path / "out" / "trials" / place.name / "trial.json").read_text())["message"] == (
        "out of memory"
    )
    assert f"{place.name}: error in {a} is kept; it is error in {b}" in capsys.readouterr().out


def test_commands_keep_the_order_of_their_folder_and_occur_once(two: tuple[Path, Path], tmp_path: Path) -> None:
    a, b = two
    # The clock was set back between two commands of the first folder.
    suite_at(a, ("first", "2026-01-05"), ("second", "2026-01-01"))
    assert merge(a, b, out=tmp_path / "out") == 0
    assert merge(tmp_path / "out", a, out=tmp_path / "again") == 0
    commands = json.loads((tmp_path / "again" / "suite.json").read_text())["commands"]
    assert [one["command_line"] for one in commands] == ["run b", "first", "second"]
    assert [one["folder"] for one in commands] == [str(b), str(a), str(a)]


def test_parts_of_killed_writers_are_not_copied(two: tuple[Path, Path], tmp_path: Path) -> None:
    place = two[0] / "trials" / spec(0).trial_id
    (place / ".model.pt.0123456789abcdef.part").write_text("half")
    assert merge(*two, out=tmp_path / "out") == 0
    assert not list((tmp_path / "out").rglob("*.part"))


def measured(change: float = 1.0, **fields: Any) -> list[Any]:
    """Return the groups of a time pass."""
    time = MethodTime.model_validate({"passes": [one_pass(0.9 * change, **fields)]})
    return [GroupEntries[MethodTime](key={"task": "cifar10"}, methods={"quick": time})]


def only(groups: list[Any]) -> MethodTime:
    (group,) = groups
    (time,) = group.methods.values()
    assert isinstance(time, MethodTime)
    return time


def test_a_pass_that_several_folders_have_counts_once() -> None:
    a, b, c = (Path(name) for name in "abc")
    first, second = measured(), measured(1.21)
    merged, _ = combine_times([(a, first), (b, second)])
    assert only(merged).passes == (*only(first).passes, *only(second).passes)
    assert only(merged).ratio == pytest.approx(1.1 * only(first).ratio)
    for folders in ([(a, first), (b, second), (c, first)], [(c, merged), (a, first)], [(a, first), (c, merged)]):
        found, notes = combine_times(folders)
        assert only(found).passes == only(merged).passes
        assert len(notes) == 1
    assert combine_times([(a, first), (c, first)]) == (first, [])


def test_passes_with_other_threads_are_refused() -> None:
    message = r"times were measured with 1 threads in a/time\.json and with 7 in b/time\.json"
    first, second = measured(), measured(1.1, threads=7)
    for other in (second, [one.model_copy(update={"methods": {"another": only(second)}}) for one in second]):
        with pytest.raises(UsageError, match=message):
            combine_times([(Path("a"), first), (Path("b"), other)])
