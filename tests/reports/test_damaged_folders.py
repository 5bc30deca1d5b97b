"""A damaged file is named and left out of the report."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from reports import write_report
from reports.content.build import build
from suite.cli.folders import report
from suite.trials.folder import packed
from suite.trials.folder.reader import read

pytestmark = pytest.mark.usefixtures("without_figures")


def edit(path: Path, change: Any) -> None:
    """Change the record of a trial."""
    record = json.loads(path.read_text())
    change(record)
    path.write_text(json.dumps(record))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda record: record.update(spec=[1]), "'spec' is not a JSON object"),
        (lambda record: record.update(provenance="x"), "'provenance' is not a JSON object"),
        (lambda record: record["spec"].update(recipe=3), "'recipe' is not a JSON object"),
        (lambda record: record.update(more=[[[[[[1]]]]] * 3]), ""),
        (lambda record: record["provenance"].update(busy_cores=10**400), ""),
    ],
)
def test_records_of_other_types_are_named_and_the_others_reported(suite: Any, change: Any, named: str) -> None:
    suite.add_all(("dense",))
    folder = suite.write()
    edit(min(folder.glob("trials/*/trial.json")), change)
    report = build(read(folder))
    assert sum(len(group.tables[0].rows) for group in report.groups if group.tables) >= 1
    damage_named = [cell.text for row in report.problems.table.rows for cell in row] if report.problems else []
    assert not named or any(named in text for text in damage_named)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ('{"epoch": 6, "layers": {"a": {"out": "x"}}}', "'layers' has the wrong type"),
        ('{"epoch": 6, "step_flops": [1]}', "'step_flops' has the wrong type"),
        ('{"epoch": 5}', "epoch 5 follows epoch 5"),
        ('{"epoch": 1e3}', "it has no valid epoch number"),
        (f'{{"epoch": {10**400}}}', "it has no valid epoch number"),
        ("[" * 3000, "it is nested too deeply"),
        ("".join(f'{{"{end}":' for end in "}" * 50) + "1" + ',"{":1}' * 50, "it is nested too deeply"),
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


@pytest.mark.parametrize("compressed", [False, True])
def test_a_file_that_is_not_what_its_record_says_is_named(suite: Any, compressed: bool) -> None:
    """The file can be read and drawn; only its checksum shows that it belongs to another trial."""
    suite.add_all(("dense",))
    folder = suite.write()
    trial = min((folder / "trials").iterdir())
    content = (trial / "epochs.jsonl").read_bytes()
    facts = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    others = {
        "model.pt": facts,
        "layers.csv": facts,
    }  # a missing file, and one that reports do not use: neither is damage
    (trial / "layers.csv").unlink(missing_ok=True)
    edit(trial / "trial.json", lambda record: record.update(status="done", files={"epochs.jsonl": facts, **others}))
    line = "does not have the checksum in trial.json"
    assert line not in " ".join(line for one in read(folder).trials for line in one.damage)
    edited = content.replace(b'"epoch": 1,', b'"epoch": 1 ,')
    assert edited != content
    if compressed:
        (trial / "epochs.jsonl").unlink()
        (trial / "epochs.jsonl.gz").write_bytes(packed.pack(edited))
    else:
        (trial / "epochs.jsonl").write_bytes(edited)
    assert [one.damage for one in read(folder).trials if one.damage] == [(f"epochs.jsonl {line}",)]
    write_report(folder)
    assert line in (folder / "report.md").read_text(encoding="utf-8")


def test_the_terminal_names_damage_last(suite: Any, capsys: pytest.CaptureFixture[str]) -> None:
    suite.add_all(("dense", "sdgp", "prunetrain"))
    folder = suite.write()
    for path in sorted(folder.glob("trials/*/layers.csv"))[:7]:
        path.write_bytes(b"\xff\xfe\x00")
    assert report([str(folder)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("report: ")
    assert [line.partition(":")[0] for line in lines[1:]] == ["damaged"] * 7
    assert all("layers.csv" in line for line in lines[1:])
