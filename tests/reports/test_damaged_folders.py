"""A damaged file is named and left out of the report."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from reports import write_report
from reports.data.records import read
from suite.cli.folders import report
from suite.trials.folder.reader import read_layers
from suite.trials.folder.records import pack

pytestmark = pytest.mark.usefixtures("without_figures")


def test_a_damaged_record_is_named_in_table_report_and_terminal_and_the_others_are_reported(
    suite: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    suite.add_all(("dense",))
    folder = suite.write()
    path, other, _ = sorted(folder.glob("trials/*/trial.json"))
    path.write_text("{")
    other.with_name("layers.csv").write_bytes(b"\xff\xfe\x00")
    assert report([str(folder)]) == 0
    reason = "damaged record: Expecting property name"
    written, record, layers = capsys.readouterr().out.splitlines()
    assert written.startswith("report: ")
    assert record.startswith(f"damaged: {path.parent.name}: {reason}")
    assert layers.startswith(f"damaged: {other.parent.name}: layers.csv is damaged")
    page = (folder / "report.md").read_text(encoding="utf-8")
    assert "2 trials, 2 done." in page
    assert f"| `{path.parent.name}` | damaged | {reason}" in page
    assert "--only failed" in page
    with (folder / "results.csv").open(newline="", encoding="utf-8") as file:
        rows = {row["trial_id"]: row for row in csv.DictReader(file)}
    assert len(rows) == 3
    found = rows[path.parent.name]
    assert (found["status"], found["message"][: len(reason)], found["method"]) == ("error", reason, "")


def test_a_provenance_of_another_schema_is_damage_and_other_keys_are_free(suite: Any) -> None:
    suite.add_all(("dense",))
    folder = suite.write()
    paths = sorted(folder.glob("trials/*/trial.json"))
    free = {"time_utc": 3, "busy_cores": 9, "more": [[[[[[1]]]]]]}
    for path, provenance in zip(paths, ({"hardware": [1]}, {"hardware": {"threads": "two"}}, free), strict=True):
        record = json.loads(path.read_text())
        path.write_text(json.dumps({**record, "provenance": provenance}))
    assert report([str(folder), "--target", "70"]) == 0
    records = read(folder)
    assert [trial.name for trial in records.trials] == [paths[2].parent.name]
    first, second = records.damaged.values()
    assert first == "damaged record: provenance.hardware: Input should be a valid dictionary"
    assert second.endswith("threads is two: not a number")


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ('{"epoch": 6, "layers": {"a": {"out": "3"}}}', "layers.a.out.int: Input should be a valid integer"),
        ('{"epoch": 6, "step_flops": [1]}', "step_flops: Input should be a valid dictionary"),
        ('{"epoch": 6, "train_time_s": NaN}', "train_time_s"),
        ('{"epoch": 5}', "epoch 5 follows epoch 5"),
        ('{"epoch": 1e3}', "epoch: Input should be a valid integer"),
        ('{"epoch": "6"}', "epoch: Input should be a valid integer"),
        (f'{{"epoch": {10**400}}}', "epoch: Input should be"),
        ("[" * 3000, "it is nested too deeply"),
    ],
)
def test_a_damaged_line_of_epochs_is_named_and_left_out(suite: Any, line: str, why: str) -> None:
    suite.add_all(("prunetrain",), seeds=1)
    folder = suite.write()
    (path,) = folder.glob("trials/*/epochs.jsonl")
    with path.open("a") as file:
        file.write(line + "\n")
    (trial,) = read(folder).trials
    assert len(trial.epochs) == 5
    assert len(trial.damage) == 1
    assert "line 6" in trial.damage[0]
    assert why in trial.damage[0]


@pytest.mark.parametrize("content", ["interval,layer\n0,a,4\n", "interval,out_channels\n1,x\n", 'interval\n"0\n'])
def test_damaged_layers_are_named_and_left_out(tmp_path: Path, content: str) -> None:
    (tmp_path / "layers.csv").write_text(content)
    damage: list[str] = []
    assert read_layers(tmp_path / "layers.csv", damage) == ()
    (line,) = damage
    assert line.startswith("layers.csv is damaged: ")


@pytest.mark.parametrize("compressed", [False, True])
def test_a_file_that_was_cut_off_is_named(suite: Any, compressed: bool) -> None:
    """What is left of it can be read and drawn; only its size shows that the end is missing."""
    suite.add_all(("dense",))
    folder = suite.write()
    path = min(folder.glob("trials/*/epochs.jsonl"))
    content = path.read_bytes()
    lines = content.splitlines(keepends=True)
    (path.parent / "layers.csv").unlink()  # reports do without it
    if compressed:
        path.unlink()
        path = path.with_name("epochs.jsonl.gz")
    for kept, named in ((content, False), (b"".join(lines[:-1]), True)):
        path.write_bytes(pack(kept) if compressed else kept)
        line = f"{path.name} has {len(kept)} bytes, not {len(content)}"
        assert [one.damage for one in read(folder).trials if one.damage] == [(line,)] * named
        write_report(folder)
        assert (line in (folder / "report.md").read_text(encoding="utf-8")) == named
