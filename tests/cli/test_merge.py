"""The verb `merge`, and folders that `merge` and `export` create: one new folder, or one clear line."""

from __future__ import annotations

import errno
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
import small_trials
from report_fixtures import without_figures
from small_trials import untrained
from time_passes import one_pass, time_json

import reports
from reports.data.records import read
from suite.cli import folders as verbs
from suite.cli import main as cli
from suite.measure.profiles import MethodProfile
from suite.measure.times import TIMES, MethodTime
from suite.recipe import Recipe
from suite.trials.folder.records import write_json
from suite.trials.folder.store import Store
from suite.trials.spec import TrialSpec

__all__ = ["without_figures"]
pytestmark = pytest.mark.usefixtures("without_figures")

ROOT = Path(__file__).parents[2]
MACHINE = {"hardware_id": "h1234567", "hardware": {"threads": 2}, "software": {"torch": "2.15.0"}}


def spec(seed: int = 0, **fields: Any) -> TrialSpec:
    copy = {"kind": "original", "checksum": "ab" * 32, "path": "/data/x.npz", "note": ""}
    recipe = Recipe(epochs=5, batch_size=4, learning_rate=0.1).fields()
    known = {"preset": "quick", "recipe": recipe, "arithmetic": "flush", "data_copy": copy}
    return untrained(seed, **{**known, **fields})


def put(folder: Path, trial: TrialSpec, accuracy: float | None, message: str = "", machine: Any = MACHINE) -> Path:
    """Write a trial that is done, or that failed if it has no accuracy."""
    if accuracy is None:
        return small_trials.put(folder, trial, "error", message, provenance=machine)
    result = {"test_accuracy": accuracy, "train_time_s": 10.0 + trial.seed, "train_flops_dense": 1e9}
    place = small_trials.put(folder, trial, result=result, provenance=machine)
    (place / "stages").mkdir(exist_ok=True)
    (place / "stages" / "2.pt").write_text("stage")
    return place


def suite_at(folder: Path, *commands: tuple[str, str]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    entries = [{"command_line": line, "spec": {"margin": 0.005}, "time_utc": time} for line, time in commands]
    write_json(folder / "suite.json", {**entries[-1], "provenance": MACHINE, "commands": entries})
    return folder


@pytest.fixture
def two(tmp_path: Path) -> tuple[Path, Path]:
    a = suite_at(tmp_path / "a", ("run a", "2026-01-01"), ("run c", "2026-01-03"))
    b = suite_at(tmp_path / "b", ("run b", "2026-01-02"))
    put(a, spec(0), 0.7)
    put(a, spec(1), None, "killed by signal 9")
    put(b, spec(1), 0.72)
    put(b, spec(2), 0.71, machine={**MACHINE, "hardware_id": "h7654321"})
    return a, b


def merge(*folders: Path, out: Path) -> int:
    return cli.main(["merge", *map(str, folders), "-o", str(out)])


def test_trials_of_both_folders_and_their_provenance(two: tuple[Path, Path], tmp_path: Path, capsys: Any) -> None:
    a, b = two
    out = tmp_path / "new" / "out"
    put(a, spec(0, method="sdgp"), 0.7)
    place = a / "trials" / spec(0).trial_id
    (place / ".model.pt.0123456789abcdef.part").write_text("half")  # of a killed writer
    assert merge(a, b, out=out) == 0
    printed = capsys.readouterr().out
    failed = spec(1).trial_id
    assert f"merge: {failed}: done in {b} is kept; it is error in {a}\n" in printed
    assert f"merge: {out}, 4 trials, 4 of them done; report: {out / 'report.html'}" in printed
    trials = {trial.name: trial for trial in read(out).trials}
    assert sorted(trials) == sorted([spec(0, method="sdgp").trial_id, *(spec(seed).trial_id for seed in range(3))])
    assert not any(trial.damage for trial in trials.values())
    for folder, seed in ((a, 0), (b, 1), (b, 2)):
        name = spec(seed).trial_id
        merged, own = ((place / "trials" / name / "trial.json").read_bytes() for place in (out, folder))
        assert merged == own
    # Trials of another machine are another group of the report.
    assert {trial.text("hardware_id") for trial in trials.values()} == {"h1234567", "h7654321"}
    text = (out / "report.md").read_text()
    assert text.count("\n## ") >= 2
    assert f"--out {out}" in text
    assert ".merge" not in text
    # Models are linked, and what is appended to is copied.
    for name in ("model.pt", "stages/2.pt", "trial.json", "epochs.jsonl", "layers.csv"):
        assert (place / name).samefile(out / "trials" / place.name / name) == name.endswith(".pt")
    assert not list(out.rglob("*.part"))
    commands = json.loads((out / "suite.json").read_text())["commands"]
    assert [(one["command_line"], one["folder"]) for one in commands] == [
        ("run a", str(a)), ("run b", str(b)), ("run c", str(a)),
    ]  # fmt: skip
    assert json.loads((out / "suite.json").read_text())["command_line"] == "run c"
    # The folder can be used like any other: a merged trial counts as done.
    assert Store(out).state(failed)[0] == "done"
    assert sorted(path.name for path in out.parent.iterdir()) == ["out"]


def test_a_trial_with_two_results_is_refused_and_nothing_is_written(
    two: tuple[Path, Path], tmp_path: Path, capsys: Any
) -> None:
    a, b = two
    put(b, spec(0), 0.71)
    assert merge(a, b, out=tmp_path / "out") == 2
    error = capsys.readouterr().err
    assert f"{spec(0).trial_id} is not the same trial in {a} and {b}: 'result' of their trial.json differs" in error
    assert error.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


def test_an_export_and_its_folder_give_the_folder_s_trials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setenv("HOME", "/data")
    a = suite_at(tmp_path / "a", ("run a", "2026-01-01"))
    put(a, spec(0), 0.7)
    assert cli.main(["export", str(a), str(tmp_path / "kept")]) == 0
    (place,) = (tmp_path / "kept" / "trials").iterdir()
    assert json.loads((place / "trial.json").read_text())["spec"]["data_copy"]["path"] == "~/x.npz"
    assert merge(tmp_path / "kept", a, out=tmp_path / "out") == 0
    assert (tmp_path / "out" / "trials" / place.name / "model.pt").is_file()
    assert len(json.loads((tmp_path / "out" / "suite.json").read_text())["commands"]) == 1
    assert "is kept" not in capsys.readouterr().out


def test_two_measurements_of_a_method_give_one_with_both_in_it(
    two: tuple[Path, Path], tmp_path: Path, capsys: Any
) -> None:
    for folder, ratio in zip(two, (0.9, 1.0), strict=True):
        write_json(folder / "time.json", time_json({"task": "cifar10"}, quick=(ratio,), slow=(1.1,)))
    assert merge(*two, out=tmp_path / "out") == 0
    (before,), (other,), (group,) = (TIMES.read(folder) for folder in (*two, tmp_path / "out"))
    assert group.methods["slow"] == before.methods["slow"]
    assert group.methods["quick"].passes == (*before.methods["quick"].passes, *other.methods["quick"].passes)
    line = f"time.json: quick was measured in {two[1]} too"
    printed = capsys.readouterr().out
    assert printed.count("time.json: ") == printed.count(line) == 1


def test_places_that_cannot_be_merged(two: tuple[Path, Path], tmp_path: Path, capsys: Any) -> None:
    a, b = two
    (tmp_path / "empty").mkdir()
    for folders, out, complaint in (
        ((a,), tmp_path / "out", "at least two different folders"),
        ((a, a), tmp_path / "out", "at least two different folders"),
        ((a, b), b, "is not an empty folder"),
        ((a, b), a / "out", f"is inside {a}"),
        ((a, tmp_path / "empty"), tmp_path / "out", "not the folder of a suite"),
        ((a, tmp_path / "absent"), tmp_path / "out", "not the folder of a suite"),
    ):
        assert merge(*folders, out=out) == 2
        assert complaint in capsys.readouterr().err
    with Store(b).lock():
        assert merge(a, b, out=tmp_path / "out") == 2
        assert f"merge {b}: in use" in capsys.readouterr().err
    (b / "suite.json").write_text("{}")
    assert merge(a, b, out=tmp_path / "out") == 2
    assert "suite.json is damaged: commands: Field required" in capsys.readouterr().err


KILLED = textwrap.dedent(
    """
    import os, signal, sys
    from suite.cli import folders
    from suite.cli import main as cli
    copy = folders.copy_trial
    def once(*arguments):
        copy(*arguments)
        os.kill(os.getpid(), signal.SIGKILL)
    folders.copy_trial = once
    cli.main(sys.argv[1:])
    """
)


def test_a_killed_merge_leaves_no_destination_and_the_same_command_works(
    two: tuple[Path, Path], tmp_path: Path
) -> None:
    a, b = two
    command = [sys.executable, "-c", KILLED, "merge", str(a), str(b), "-o", str(tmp_path / "out")]
    ended = subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True)
    assert ended.returncode == -signal.SIGKILL
    (left,) = tmp_path.glob(".merge-*")
    assert len(list(left.glob("trials/*"))) == 1
    assert not (tmp_path / "out").exists()
    assert merge(a, b, out=tmp_path / "out") == 0
    assert len(read(tmp_path / "out").trials) == 3


def test_the_later_profile_of_a_method_is_kept() -> None:
    later, earlier = (
        MethodProfile.model_construct(provenance={"time_utc": day}) for day in ("2026-01-02", "2026-01-01")
    )
    assert verbs.later_profile(later, earlier, "") is later
    assert verbs.later_profile(earlier, later, "") is later


def others(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name not in ("a", "b"))


def test_a_link_to_an_empty_folder_is_filled(two: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert merge(*two, out=tmp_path / "link") == 0
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real" / "report.html").is_file()
    assert others(tmp_path) == ["link", "real"]


@pytest.mark.parametrize("verb", ["merge", "export"])
def test_places_that_cannot_be_created(two: tuple[Path, Path], tmp_path: Path, capsys: Any, verb: str) -> None:
    (tmp_path / "file").write_text("")
    words = ["merge", *map(str, two), "-o"] if verb == "merge" else ["export", str(two[0])]
    assert cli.main([*words, str(tmp_path / "file" / "x" / "out")]) == 2
    assert f"pdt: error: Not a directory: {tmp_path / 'file'}" in capsys.readouterr().err
    assert others(tmp_path) == ["file"]


def test_a_name_of_the_greatest_length(two: tuple[Path, Path], tmp_path: Path) -> None:
    assert merge(*two, out=tmp_path / ("ä" * 127)) == 0
    assert others(tmp_path) == ["ä" * 127]


def test_files_that_cannot_be_read_or_copied_are_one_line(
    two: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    def unreadable(path: Path) -> bytes:
        if path.name == "layers.csv":
            raise OSError(errno.EIO, "Input/output error")
        return path.read_bytes()

    a, b = two
    place = a / "trials" / spec(0).trial_id
    os.mkfifo(place / "pipe")
    assert merge(a, b, out=tmp_path / "out") == 2
    error = capsys.readouterr().err
    assert f"merge: {place / 'pipe'} cannot be copied: " in error
    assert error.count("\n") == 1
    assert others(tmp_path) == []


def test_a_damaged_trial_is_said_to_be_damaged(two: tuple[Path, Path], tmp_path: Path, capsys: Any) -> None:
    a, b = two
    name = spec(0).trial_id
    shutil.copytree(a / "trials" / name, b / "trials" / name)
    (a / "trials" / name / "epochs.jsonl").write_text("edited\n")
    assert merge(a, b, out=tmp_path / "out") == 0
    line = f"merge: {name}: done in {b} is kept; it is damaged (epochs.jsonl has 7 bytes, not 26)"
    assert f"{line} in {a}\n" in capsys.readouterr().out
    assert not any(trial.damage for trial in read(tmp_path / "out").trials)


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


@pytest.mark.parametrize("verb", ["merge", "export"])
def test_a_folder_that_changes_while_it_is_copied_is_refused(
    two: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any, verb: str
) -> None:
    """A command that began after `merge` or `export` had looked whether there is one restarts the trial."""
    a, b = two
    name = "copy_trial" if verb == "merge" else "contents"
    real = getattr(verbs, name)

    def beside(*arguments: Any) -> Any:
        found = real(*arguments)
        put(a, spec(0), None, "killed by signal 9")
        return found

    monkeypatch.setattr(verbs, name, beside)
    words = ["merge", str(a), str(b), "-o"] if verb == "merge" else ["export", str(a)]
    assert cli.main([*words, str(tmp_path / "new")]) == 2
    assert "in use by another command; try again when it has ended" in capsys.readouterr().err
    assert others(tmp_path) == []


def test_a_report_that_is_overtaken_by_a_newer_trial_is_written_again(
    two: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, written = two[0], []
    write = reports.write_report

    def overtaken(*arguments: Any) -> Any:
        written.append(write(*arguments))
        if len(written) == 1:
            put(folder, spec(5), 0.8)
        return written[-1]

    monkeypatch.setattr(reports, "write_report", overtaken)
    assert cli.main(["report", str(folder)]) == 0
    assert len(written) == 2
    assert "3 trials" in (folder / "report.md").read_text(encoding="utf-8")
    assert spec(5).trial_id in (folder / "results.csv").read_text(encoding="utf-8")


def measured(folder: Path, *ratios: float, **fields: Any) -> Path:
    """Write the passes of a method."""
    folder.mkdir()
    time = MethodTime.model_validate({"passes": [one_pass(ratio, **fields) for ratio in ratios]})
    TIMES.add(folder, {"task": "cifar10"}, "quick", time)
    return folder


def test_a_pass_that_several_folders_have_counts_once(tmp_path: Path) -> None:
    a, b, both = (measured(tmp_path / "".join(map(str, ratios)), *ratios) for ratios in ((0.9,), (1.1,), (0.9, 1.1)))
    for number, (sources, notes) in enumerate((([a, b], 1), ([a, b, a], 2), ([both, a], 1), ([a, both], 1))):
        new = tmp_path / f"new{number}"
        new.mkdir()
        assert len(verbs.combine(TIMES, sources, new, verbs.join_passes)) == notes
        assert TIMES.read(new) == TIMES.read(both)


def test_passes_with_other_threads_are_refused(two: tuple[Path, Path], tmp_path: Path, capsys: Any) -> None:
    for folder, threads in zip(two, (2, 7), strict=True):
        shutil.copy(measured(tmp_path / f"a{threads}", 0.9, threads=threads) / "time.json", folder)
    assert merge(*two, out=tmp_path / "out") == 2
    error = capsys.readouterr().err
    assert f"merge: quick in {two[1] / 'time.json'}: Value error, its passes have different numbers of threads" in error
